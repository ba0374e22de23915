"""`--scheduling-policy priority`: what the operator set stands, and equals are put in the planner's order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken import Broken
from vllm_lab import RequestStatus, free_blocks, make_request, make_scheduler, waiting_names
from vllm_small import STRICT, A, B, run_out, step

from peek.adapters.vllm import PeekScheduler
from peek.planner import LazyPlan, Plan

REQUESTS = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 9), st.integers(1, 30)),
    min_size=2,
    max_size=16,
)
"""Priority, shared prefix, arrival, tokens to generate."""


def by_priority(cls: Any = PeekScheduler, options: Any = STRICT, **more: Any) -> Any:
    more = {"num_blocks": 200, "max_num_seqs": 1, **more}
    return make_scheduler(cls, options=options, priority=True, **more)


def requests(rows: list[tuple[int, int, int, int]]) -> list[Any]:
    return [
        make_request(
            f"r{i}", [5 + prefix] * 64 + [200 + i] * 8, tokens, priority=priority, arrival_time=float(arrival)
        )
        for i, (priority, prefix, arrival, tokens) in enumerate(rows)
    ]


def test_equals_are_planned_and_the_rest_is_as_set() -> None:
    engine = by_priority(max_num_seqs=2)
    engine.add_request(make_request("running", [3] * 40, 60, priority=-5))
    step(engine)
    for i, (priority, tokens) in enumerate([(2, A), (1, B), (1, A), (2, B), (1, B), (2, A), (1, A), (0, B)]):
        engine.add_request(
            make_request(f"{priority}{'A' if tokens is A else 'B'}{i}", [*tokens, i], 1, priority=priority)
        )
    engine.peek.adapter.before_schedule()
    names = waiting_names(engine)
    assert [name[0] for name in names] == ["0", "1", "1", "1", "1", "2", "2", "2"]
    assert [name[1] for name in names[1:5]] in (["B", "B", "A", "A"], ["A", "A", "B", "B"])
    assert [name[1] for name in names[5:]] in (["A", "A", "B"], ["B", "A", "A"])
    assert set(run_out(engine)) == {"running", *names}
    assert len(engine.peek.adapter.mirror) == 0


def test_whoever_comes_later_waits_behind_its_equals_and_before_larger_numbers() -> None:
    engine = by_priority()
    engine.add_request(make_request("running", [3] * 40, 60, priority=-5))
    step(engine)
    for i in range(4):
        engine.add_request(make_request(f"r{i}", [*(A, B)[i % 2], i], 1, priority=1 + i // 2))
    engine.max_num_running_reqs = 2
    engine.peek.adapter.before_schedule()
    engine.waiting.follow(LazyPlan.of(Plan(["r1", "r0", "r2", "r3"])).at)
    engine.add_request(make_request("late", [*A, 9], 1, priority=1))
    engine.add_request(make_request("urgent", [*A, 8], 1, priority=0))
    assert waiting_names(engine) == ["urgent", "r1", "r0", "late", "r2", "r3"]
    back = engine.requests["r3"]
    engine.waiting.remove_request(back)
    back.num_preemptions = 1
    back.status = RequestStatus.PREEMPTED
    engine.waiting.prepend_request(back)
    assert waiting_names(engine) == ["urgent", "r1", "r0", "late", "r3", "r2"]
    engine.peek.adapter.before_schedule()
    assert "r3" not in engine.peek.adapter.planner
    assert waiting_names(engine).index("r3") == 4
    with pytest.raises(ValueError, match="'x' is not in the queue"):
        engine.waiting.remove_request(make_request("x", A))


def test_an_empty_queue() -> None:
    engine = by_priority()
    for call in (engine.waiting.peek_request, engine.waiting.pop_request):
        with pytest.raises(IndexError, match="empty"):
            call()


def test_after_an_error_the_queue_is_vllms_own() -> None:
    engine = by_priority(options={"policy": "peek"}, max_num_seqs=1)
    engine.add_request(make_request("running", [3] * 40, 10))
    step(engine)
    made = requests([(i % 3, i % 2, 9 - i, 2) for i in range(9)])
    for request in made:
        engine.add_request(request)
    engine.max_num_running_reqs = 2
    engine.peek.adapter.before_schedule()
    engine.peek.adapter.planner = Broken(engine.peek.adapter.planner, "lazy_plan", 0)
    engine.finish_requests(made[0].request_id, RequestStatus.FINISHED_ABORTED)
    engine.schedule()
    engine.schedule()
    assert engine.peek.shield.fallbacks == 1
    assert type(engine.waiting).__name__ == "PriorityRequestQueue"
    assert list(engine.waiting) == sorted(request for request in made if request in list(engine.waiting))


@settings(max_examples=12)
@given(rows=REQUESTS, odd=st.sets(st.integers(0, 15)), aborts=st.sets(st.integers(0, 15), max_size=4))
def test_times_that_are_none_or_change_stop_nobody(
    rows: list[tuple[int, int, int, int]], odd: set[int], aborts: set[int]
) -> None:
    engine = by_priority(options={"policy": "peek"}, max_num_seqs=2, num_blocks=40)
    made = requests(rows)
    for at, request in enumerate(made):
        request.arrival_time = float("nan") if at in odd else request.arrival_time
        engine.add_request(request)
        step(engine)
        made[at // 2].arrival_time = 50.0 - at
    gone = {made[at].request_id for at in aborts if at < len(made)} & engine.requests.keys()
    engine.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
    run_out(engine)
    assert engine.peek.shield.fallbacks == 0
    assert (len(engine.peek.adapter.planner), len(engine.peek.adapter.mirror)) == (0, 0)
    assert free_blocks(engine) == 39


def test_a_step_plans_the_smallest_numbers_only() -> None:
    engine = by_priority(max_num_seqs=2)
    for i in range(300):
        made = make_request(f"r{i}", [*(A, B)[i % 2], 300 + i], 4, priority=i // 3, arrival_time=float(i))
        engine.add_request(made)
    order = []
    for _ in range(20):
        before = engine.peek.adapter.planner.totals()["plans"]
        order += [new.req_id for new in step(engine).scheduled_new_reqs]
        assert engine.peek.adapter.planner.totals()["plans"] <= before + 3
    assert len(order) >= 8
    assert [int(name[1:]) // 3 for name in order] == sorted(int(name[1:]) // 3 for name in order)
