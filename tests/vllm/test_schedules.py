"""Random schedules through the real Scheduler and KVCacheManager: nothing breaks, nobody starves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from vllm_plays import INTERLEAVED, Play, check_outcome, perform, plays

POLICIES = ("peek", "clpm+gm+dl+pe", "fcfs+pe")
EXAMPLES = 60  # times two kinds of scheduler times three policies


def strict(policy: str, **more: Any) -> dict[str, Any]:
    return {"policy": policy, "strict": True, **more}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", POLICIES)
def test_random_schedules(policy: str, asynchronous: bool) -> None:
    seen = {"preemptions": 0, "plans": 0, "reorders": 0, "examples": 0}

    @settings(max_examples=EXAMPLES)
    @given(plays())
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        outcome = perform(play, strict(policy), asynchronous=asynchronous)
        check_outcome(play, outcome)
        adapter = outcome.scheduler.peek.adapter
        assert outcome.scheduler.peek.shield.fallbacks == 0
        assert len(adapter.planner) == 0
        assert len(adapter.mirror) == 0, "symbols outlive their requests"
        adapter.planner.tree.check()
        seen["preemptions"] += outcome.preemptions
        seen["plans"] += adapter.planner.stats.plans
        seen["reorders"] += adapter.reordered
        seen["examples"] += 1

    random_schedule()
    assert seen["examples"] >= EXAMPLES
    assert seen["preemptions"] > 0, "the plays are too easy"
    assert seen["plans"] > 0
    assert policy == "fcfs+pe" or seen["reorders"] > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@settings(max_examples=15)
@given(play=plays())
def test_the_plays_suit_the_stock_scheduler(play: Play, asynchronous: bool) -> None:
    check_outcome(play, perform(play, None, asynchronous=asynchronous, stock=True))


@pytest.mark.parametrize("share", [0.05, 0.3])
@settings(max_examples=EXAMPLES)
@given(play=plays(aborts=False, plain=True))
def test_fairness_bound(play: Play, share: float) -> None:
    """In any window the oldest get `share` of the uncached tokens, less the cost of one request.

    A window's deficit is `share` x its tokens less those of the oldest; the largest deficit of all
    windows is a maximum subarray.  Expected and real costs differ when a cycle admits several requests
    and evicts what it counted on, so one more cycle's admissions are allowed for.
    """
    cycle = [0]

    def most_per_cycle(scheduler: Any, scheduled: Any) -> None:
        cost = 0
        for new in scheduled.scheduled_new_reqs if scheduled is not None else ():
            cost += scheduler.requests[new.req_id].num_prompt_tokens - new.num_computed_tokens
        cycle[0] = max(cycle[0], cost)

    outcome = perform(play, strict("peek", fair_share=share), each_step=most_per_cycle)
    check_outcome(play, outcome)
    worst = deficit = 0.0
    for _, cost, oldest in outcome.admissions:
        deficit = max(0.0, deficit + share * cost - (cost if oldest else 0))
        worst = max(worst, deficit)
    dearest = max(cost for _, cost, _ in outcome.admissions)
    assert worst <= dearest + share * cycle[0]
