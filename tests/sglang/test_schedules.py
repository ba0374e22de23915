"""Random schedules through the real cache, policy and `PrefillAdder`, as beside each engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang_alike import SglangLab
from sglang_lab import CORES
from sglang_plays import INTERLEAVED, plays
from support.alike_plays import AlikeInPlays, both
from support.followed import check_foretold_comes_true
from support.plays import Job, Play


@pytest.fixture(params=CORES)
def lab(request: pytest.FixtureRequest) -> SglangLab:
    return SglangLab(request.param, 1)


class TestPlays(AlikeInPlays):
    """On SGLang."""

    unit = 1


def test_what_a_shadow_foretells_in_pages_comes_true() -> None:
    check_foretold_comes_true(SglangLab(CORES[-1], 16).simulate, 3)


@both
@pytest.mark.parametrize("label", ["peek", "clpm+gm+dl+pe", "fcfs+pe"])
def test_retracted_requests_come_back(label: str, lab: SglangLab, overlap: bool) -> None:
    """Outputs outgrow the pool: some lose their slots, wait again with what they generated, and finish."""
    jobs = [Job(i // 4, i % 2, 32, 8, 70) for i in range(12)]
    stepper = lab.perform(Play(jobs, slack=160, seats=6, budget=16384, unit=1, ratio=0.1), label, overlap)
    again = sum(admission.again for admission in stepper.admissions)
    assert min(stepper.preemptions, again) > 0
    adapter = stepper.beside.adapter
    stats = adapter.planner.stats
    assert (stats.admitted, stats.withdrawn) == (len(jobs) + again, 0)
    assert adapter.cached_real == sum(admission.cached for admission in stepper.admissions)
    assert stats.cached_expected == adapter.cached_real


def test_an_unchanged_queue_is_told_from_a_changed_one(lab: SglangLab) -> None:
    """Where the adapter says that nothing has changed all is as it was, and a new plan is the old one."""
    seen: Counter[str] = Counter()

    @settings(max_examples=40)
    @given(plays(priority=True))
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        last: list[Any] = []

        def called_twice(stepper: Any, batch: Any) -> None:
            adapter = stepper.world.policy.peek.adapter
            queue = stepper.waiting_queue
            if batch is not None or not queue:
                return
            for again in (False, True):
                if again:
                    adapter._followed = None
                    for planner in lab.planners(adapter):
                        planner.tree.version += 1
                before = adapter._followed
                stepper.policy.calc_priority(queue)
                now = [(request.rid, len(request.output_ids)) for request in queue]
                stands = len(adapter.planner) > 1 and adapter._followed is before is not None
                seen["unchanged"] += stands
                assert now == last or not (again or stands)
                last[:] = now

        lab.perform(play, "peek", each_step=called_twice)

    random_schedule()
    assert seen["unchanged"] > 0 or lab.core == "rust"
