"""Random plays for both engines' adapters: nothing breaks, and no request starves."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from peek.adapters.activation import MODES
from peek.policy.default.tenants import DECODE_WEIGHT
from support.followed import (
    check_answers_are_found_where_they_are_repeated,
    check_foretold_comes_true,
    check_nothing_is_foretold_where_nothing_is_shared,
)
from support.lab import Lab
from support.plays import Play, interleaved
from support.stepping import token_at

EXAMPLES = 50
both = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])


class AlikeInPlays:
    """The suite; `unit` is that of the interleaved play."""

    unit: int

    @both
    @pytest.mark.parametrize("label", ["peek", "clpm+gm+dl+pe", "fcfs+pe"])
    def test_random_schedules(self, lab: Lab, label: str, overlap: bool) -> None:
        seen: Counter[str] = Counter()

        @settings(max_examples=EXAMPLES)
        @given(lab.plays(priority=True))
        @example(interleaved(self.unit))
        def random_schedule(play: Play) -> None:
            stepper = lab.perform(play, label, overlap)
            adapter = stepper.beside.adapter
            for planner in lab.planners(adapter):
                planner.tree.check()
            assert adapter.planner.totals()["admitted"] == len(stepper.admissions)
            assert adapter.cached_real == sum(each.cached for each in stepper.admissions)
            seen["reordered"] += adapter.reordered
            seen["preempted"] += stepper.preemptions
            seen["aborted"] += sum(record.aborted for record in stepper.records.values())
            seen["examples"] += 1

        random_schedule()
        assert seen["examples"] >= EXAMPLES
        assert min(seen["aborted"], seen["preempted"]) > 0, "the plays are too easy"
        assert label == "fcfs+pe" or seen["reordered"] > 0

    @pytest.mark.parametrize("share", [0.05, 0.3])
    def test_fairness_bound(self, lab: Lab, share: float) -> None:
        """In any window the oldest get `share` of the uncached tokens, less one request and a batch's share.

        The lane counts in work: the uncached tokens of a request, and two for each token of the mean answer.
        A window's deficit is `share` x its tokens less those of the oldest; the largest deficit of all
        windows is a maximum subarray.  A batch is admitted by one plan, whose costs are expectations.
        """

        @settings(max_examples=EXAMPLES)
        @given(lab.plays(aborts=False, plain=True))
        def history(play: Play) -> None:
            stepper = lab.perform(play, "peek", fair_share=share)
            worst = deficit = 0.0
            batch: Counter[int] = Counter()
            first = [each for each in stepper.admissions if not each.again]
            for each in first:
                batch[each.step] += each.uncached
                deficit = max(0.0, deficit + share * each.uncached - each.uncached * each.oldest)
                worst = max(worst, deficit)
            answer = DECODE_WEIGHT * max(job.max_tokens for job in play.jobs)
            dearest = max(each.uncached for each in first) + answer
            assert worst <= dearest + share * max(batch.values())

        history()

    @both
    def test_what_is_foretold_is_found(self, lab: Lab, overlap: bool) -> None:
        seen: Counter[str] = Counter()

        @settings(max_examples=30)
        @given(lab.plays(priority=True))
        @example(interleaved(self.unit))
        def history(play: Play) -> None:
            beside = lab.perform(play, "peek", overlap).beside
            assert beside.adapter.agreement.differed == 0, str(beside.adapter.agreement)
            seen["admitted"] += beside.seen.surprises.total
            seen["hit"] += beside.adapter.agreement.compared

        history()
        assert seen["admitted"] > 50
        assert seen["hit"] > 0

    @both
    def test_nobody_overtakes_another_priority(self, lab: Lab, overlap: bool) -> None:
        sign = 1 if lab.low_first else -1
        seen: Counter[str] = Counter()

        @settings(max_examples=40)
        @given(lab.plays(priority=True, plain=True))
        def history(play: Play) -> None:
            def ordered(stepper: Any, decided: Any) -> None:
                if decided is None or not play.priority:
                    return
                ranks = [sign * request.priority for request in lab.in_order(stepper)]
                assert ranks == sorted(ranks)
                for each in [each for each in stepper.admissions if each.step == stepper.at]:
                    assert sign * play.jobs[int(each.rid[1:])].priority <= min(ranks, default=9), "overtaken"
                    seen["admitted"] += 1

            lab.perform(play, "peek", overlap, ordered)

        history()
        assert seen["admitted"] > 50

    def test_where_nothing_is_shared_or_cached_the_schedule_is_the_stock_one(self, lab: Lab) -> None:
        """Every prompt starts with a token of its own; who is preempted would hit what it left."""

        @settings(max_examples=30)
        @given(lab.plays(plain=True, priority=True))
        def history(play: Play) -> None:
            play = replace(play, jobs=[replace(job, alone=True) for job in play.jobs])
            stock = lab.perform(play, None)
            assume(stock.preemptions == 0)
            assert lab.perform(play, "peek", unshared="arrival").decisions == stock.decisions

        history()

    @both
    def test_as_modes_change_the_order_is_the_engines_own_wherever_it_should_be(
        self, lab: Lab, overlap: bool
    ) -> None:
        """In shadow and off those are admitted first that came first, whatever was planned before."""
        seen: Counter[str] = Counter()

        @settings(max_examples=40)
        @given(lab.plays(plain=True), st.randoms(use_true_random=False))
        def history(play: Play, rnd: random.Random) -> None:
            def switched(stepper: Any, decided: Any) -> None:
                beside, records = stepper.beside, stepper.records
                new = [each.rid for each in stepper.admissions]
                stepper.admissions.clear()
                if beside.mode != "on" and not stepper.preemptions:
                    waits = {name for name, it in records.items() if not (it.admissions or it.aborted)}
                    assert [name for name in records if name in {*new, *waits}][: len(new)] == new
                    seen[beside.mode] += len(new)
                mode = rnd.choice(MODES)
                if mode != beside.mode:
                    beside._turn(mode)

            lab.perform(play, "peek", overlap, switched)

        history()
        assert min(seen["off"], seen["shadow"]) > 20

    # -- shadows -----------------------------------------------------------------------------------

    @both
    def test_a_shadow_changes_nothing(self, lab: Lab, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The engine decides as it would alone, and the account is over those it admitted."""
        monkeypatch.setattr("peek.simulation.cost.ENOUGH", 4)
        monkeypatch.setattr("peek.simulation.cost._SOLVE_EVERY", 1)
        seen: Counter[str] = Counter()

        @settings(max_examples=40)
        @given(lab.plays())
        @example(interleaved(self.unit))
        def random_schedule(play: Play) -> None:
            alone = lab.perform(play, None, overlap)
            stepper = lab.perform(play, "peek", overlap, mode="shadow")
            assert stepper.decisions == alone.decisions
            account = lab.account_at_the_end(stepper)
            if account is None or not account.steps.known:  # everybody was aborted at once, or nearly so
                return
            for later in range(1, 200):
                account.step(stepper.at + 10.0 * later)
            firsts = [record.admissions[0] for record in stepper.records.values() if record.admissions]
            assert not account._pairs
            assert account.requests == len(firsts)
            assert account.stock_hit_tokens == sum(first.cached for first in firsts)
            seen["requests"] += account.requests
            seen["aborted"] += sum(record.aborted for record in stepper.records.values())

        random_schedule()
        assert min(seen["requests"], seen["aborted"]) > 0

    @pytest.mark.parametrize("seed", [1, 2])
    def test_what_a_shadow_foretells_comes_true(self, lab: Lab, seed: int) -> None:
        check_foretold_comes_true(lab.simulate, seed)

    def test_nothing_is_foretold_where_nothing_is_shared(self, lab: Lab) -> None:
        check_nothing_is_foretold_where_nothing_is_shared(lab.simulate)

    def test_answers_are_found_where_they_are_repeated(self, lab: Lab) -> None:
        check_answers_are_found_where_they_are_repeated(lab.simulate, token_at)
