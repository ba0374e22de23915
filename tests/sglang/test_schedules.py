"""Random schedules through the real cache, policy and `PrefillAdder`: nothing breaks, nobody starves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang_lab import CORES
from sglang_plays import INTERLEAVED, Job, Play, check_outcome, perform, plays
from sglang_small import attach, planners_of
from sglang_stepper import Stepper

from peek.policy.default.tenants import DECODE_WEIGHT

POLICIES = ("peek", "clpm+gm+dl+pe", "fcfs+pe")
KINDS = [(core, overlap) for core in CORES for overlap in (False, True)]
EXAMPLES = 50  # times three policies times two or four kinds


@pytest.mark.parametrize(("core", "overlap"), KINDS)
@pytest.mark.parametrize("label", POLICIES)
def test_random_schedules(label: str, core: str | None, overlap: bool) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES)
    @given(plays(priority=True))
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        outcome = perform(play, lambda stepper: attach(stepper.world, label), core=core, overlap=overlap)
        check_outcome(play, outcome)
        adapter = outcome.attached.adapter
        adapter.order([])
        assert outcome.attached.shield.fallbacks == 0
        assert len(adapter.planner) == len(adapter._in_flight) == 0
        assert adapter._door.pages is None or len(adapter._door.pages) == 0, "pages outlive their requests"
        for planner in planners_of(adapter):
            planner.tree.check()
        seen["reordered"] += adapter.reordered
        seen["aborted"] += sum(record.aborted for record in outcome.records.values())
        seen["examples"] += 1

    random_schedule()
    assert seen["examples"] >= EXAMPLES
    assert seen["aborted"] > 0
    assert label == "fcfs+pe" or seen["reordered"] > 0


@pytest.mark.parametrize(("core", "overlap"), KINDS)
@pytest.mark.parametrize("label", POLICIES)
def test_retracted_requests_come_back(label: str, core: str | None, overlap: bool) -> None:
    """Outputs outgrow the pool: some lose their slots, wait again with what they generated, and finish."""
    jobs = [Job(i // 4, i % 2, 32, 8, 70, None, None, 0, None) for i in range(12)]
    play = Play(jobs, slack=160, max_running=6, budget=16384, chunk=None, ratio=0.1)
    outcome = perform(play, lambda stepper: attach(stepper.world, label), core=core, overlap=overlap)
    check_outcome(play, outcome)
    assert outcome.retractions > 0
    stats = outcome.attached.adapter.planner.stats
    again = sum(admission.again for record in outcome.records.values() for admission in record.admissions)
    assert again > 0
    outcome.attached.adapter.order([])
    assert stats.admitted == len(jobs) + again
    assert stats.withdrawn == 0


@settings(max_examples=60)
@given(play=plays(priority=True))
def test_priorities_come_first(play: Play) -> None:
    """Within a call of `calc_priority` nobody stands before one of higher priority."""

    def ordered(stepper: Stepper, batch: Any) -> None:
        if batch is None and play.priority and stepper.waiting_queue:
            queue = list(stepper.waiting_queue)
            stepper.policy.calc_priority(queue)
            values = [request.priority * stepper.policy.priority_sign for request in queue]
            assert values == sorted(values)

    outcome = perform(play, lambda stepper: attach(stepper.world, "peek"), each_step=ordered)
    check_outcome(play, outcome)


@pytest.mark.parametrize("share", [0.05, 0.3])
@settings(max_examples=EXAMPLES)
@given(play=plays(aborts=False, plain=True, page_sizes=(1,)))
def test_fairness_bound(play: Play, share: float) -> None:
    """In any window the oldest get `share` of the uncached tokens, less one request and one batch's share.

    The lane counts in work: a request costs its uncached tokens, and two for each token of the mean answer.

    A window's deficit is `share` x its tokens less those of the oldest; the largest deficit of all
    windows is a maximum subarray.  A batch is admitted by one plan, whose costs are expectations.
    """
    outcome = perform(play, lambda stepper: attach(stepper.world, "peek", fair_share=share))
    check_outcome(play, outcome)
    worst = deficit = 0.0
    batch: Counter[int] = Counter()
    for admission in outcome.admissions:
        if admission.again:
            continue
        batch[admission.step] += admission.uncached
        deficit = max(0.0, deficit + share * admission.uncached - admission.uncached * admission.oldest)
        worst = max(worst, deficit)
    answer = DECODE_WEIGHT * max(job.max_tokens for job in play.jobs)
    dearest = max(admission.uncached for admission in outcome.admissions) + answer
    assert worst <= dearest + share * max(batch.values(), default=0)


@pytest.mark.parametrize("core", CORES)
def test_an_unchanged_queue_is_told_from_a_changed_one(core: str | None) -> None:
    """Where the adapter says that nothing has changed all is as it was, and a new plan is the old one."""
    seen: Counter[str] = Counter()

    @settings(max_examples=40)
    @given(plays(priority=True))
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        last: list[Any] = []

        def called_twice(stepper: Stepper, batch: Any) -> None:
            adapter = stepper.world.policy.peek.adapter
            queue = stepper.waiting_queue
            if batch is not None or not queue:
                return
            for again in (False, True):
                if again:
                    adapter._followed = None
                    for planner in planners_of(adapter):
                        planner.tree.version += 1
                before = adapter._followed
                stepper.policy.calc_priority(queue)
                now = [(request.rid, len(request.output_ids)) for request in queue]
                stands = len(adapter.planner) > 1 and adapter._followed is before is not None
                seen["unchanged"] += stands
                assert now == last or not (again or stands)
                last[:] = now

        outcome = perform(
            play, lambda stepper: attach(stepper.world, "peek"), core=core, each_step=called_twice
        )
        check_outcome(play, outcome)

    random_schedule()
    assert seen["unchanged"] > 0 or core == "rust"
