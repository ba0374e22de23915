"""Requests that cannot run for now: in no plan, and where they stood once they can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import cache_of

from peek import DuplicateRequest, InvalidKey, PeekConfig, PeekPolicy, PendingRequest, Planner, UnknownRequest
from peek.policy.default import PeekOptions
from peek.policy.lanes import FAIR_LANE

EMPTY = cache_of([])

HELD_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "held", "held", "hold", "resume", "admit", "abort"]), st.randoms()
    ),
    max_size=30,
)


@pytest.mark.parametrize("label", ["peek", "clpm+gm", "lpm-nolimit+lru", "dfs-weight+lru"])
@given(events=HELD_EVENTS)
def test_plans_are_as_if_those_held_were_not_there(label: str, events: list[tuple[str, object]]) -> None:
    """Against a planner that never hears of a request before it can run."""
    planner, twin = (Planner(PeekConfig.from_label(label)) for _ in range(2))
    keys: dict[str, list[int]] = {}
    for at, (event, random) in enumerate(events):
        choice = random.choice  # type: ignore[attr-defined]
        waiting, held = [request.request_id for request in planner.tree.requests()], list(planner.held)
        if event in ("add", "held"):
            name = f"r{at}"
            keys[name] = [choice([1, 2])] * choice([1, 4]) + [at + 9] * choice([1, 8])
            planner.add(_waiting(name, keys[name], at), held=event == "held")
            if event == "add":
                twin.add(_waiting(name, keys[name], at))
        elif event == "hold" and waiting:
            planner.hold(name := choice(waiting))
            twin.remove(name, admitted=False)
        elif event == "resume" and held:
            planner.resume(name := choice(held), keys[name])
            twin = Planner(PeekConfig.from_label(label))  # from here on it knows him as of his arrival
            for request in planner.tree.requests():
                twin.add(_waiting(request.request_id, keys[request.request_id], request.arrival_time))
        elif event in ("admit", "abort") and waiting + held:
            name = choice(waiting + held)
            cost = planner.remove(name, admitted=event == "admit")
            assert cost == (0 if event == "abort" else len(keys[name]))
            if name in waiting:
                twin.remove(name, admitted=False)
        planner.tree.check()
        arrivals = [request.sequence for request in planner.tree.requests()]
        assert arrivals == sorted(arrivals)
        assert len(planner) == len(planner.tree) + len(planner.held)
        assert all(name in planner for name in planner.held)
        assert list(planner.plan(EMPTY, 1000.0)) == list(twin.plan(EMPTY, 1000.0))
    assert planner.totals()["held"] == len(planner.held)


def _waiting(name: str, key: list[int], arrival: float) -> PendingRequest:
    return PendingRequest(name, list(key), float(arrival), num_tokens=len(key))


def test_what_is_held_is_due_when_it_was() -> None:
    """The virtual engine in arrival order does nothing for it meanwhile, and it loses no time by it."""
    policy = PeekPolicy(PeekOptions(fair_share=0.5, grace_tokens=50.0))
    lane, planner = policy.overdue, Planner(policy=policy)
    planner.add(PendingRequest("first", [1] * 100, 0.0))
    planner.add(PendingRequest("held", b"", 1.0, num_tokens=100), held=True)
    planner.add(PendingRequest("last", [3] * 100, 2.0))
    planner.plan(EMPTY, 3.0)
    last, held = lane.turn_of("last"), lane.turn_of("held")
    assert last is not None
    assert held is not None
    assert (last.start, held.due) == (100.0, 50.0)
    planner.remove("first")
    planner.resume("held", [2] * 100)
    assert planner.plan(EMPTY, 4.0) == ["held", "last"]
    assert (held.due, lane.virtual) == (50.0, 300.0)
    planner.hold("held")
    assert lane.virtual == 200.0
    planner.remove("held", admitted=False)
    assert lane.virtual == 200.0


def test_no_lane_picked_what_is_held() -> None:
    planner = Planner(PeekConfig.from_label("clpm:lanes=work"))
    for place in range(3):
        planner.add(PendingRequest(f"r{place}", [1, 2, place], float(place)))
    planner.plan(cache_of([]), 5.0)
    assert planner.request("r0").lane == FAIR_LANE
    planner.hold("r0")
    planner.plan(cache_of([]), 6.0)
    planner.remove("r0")
    assert planner.stats.fair_admitted == 0


def test_a_tenant_that_cannot_run_holds_up_nobody() -> None:
    planner = Planner(PeekConfig(options={"tenant_lead": 10.0}))
    planner.add(PendingRequest("theirs", [1] * 9, 0.0, tenant="idle"))
    for at in range(9):
        planner.add(PendingRequest(f"r{at}", [5, at], 1.0, num_tokens=50, tenant="busy"))
    planner.hold("theirs")
    for _ in range(9):
        planner.remove(planner.plan(EMPTY, 2.0)[0])
    assert planner.served() == {}  # nobody waits who could have been served
    planner.resume("theirs", [1] * 9)
    assert planner.plan(EMPTY, 3.0) == ["theirs"]


def test_who_can_be_held_and_resumed() -> None:
    planner = Planner()
    planner.add(PendingRequest("a", [1], 0.0))
    planner.hold("a")
    for wrong in (lambda: planner.hold("a"), lambda: planner.hold("b"), lambda: planner.resume("b", [1])):
        with pytest.raises(UnknownRequest):
            wrong()
    with pytest.raises(DuplicateRequest):
        planner.add(PendingRequest("a", [1], 0.0, num_tokens=1), held=True)
    with pytest.raises(DuplicateRequest):
        planner.add(PendingRequest("a", [1], 0.0))
    with pytest.raises(InvalidKey, match="num_tokens"):
        planner.add(PendingRequest("b", [1], 0.0), held=True)
    with pytest.raises(InvalidKey):
        planner.resume("a", [-1])
    for tail in (-5, 2**63):
        with pytest.raises(InvalidKey, match="tail of 'a' is"):
            planner.resume("a", [1], tail)
    assert (len(planner), list(planner.held)) == (1, ["a"])
    assert planner.upcoming(9) == []
    assert planner.plan(EMPTY, 1.0) == []
    assert planner.cached_len("a") == 0
    planner.resume("a", [1], np.int64(0))
    with pytest.raises(UnknownRequest):
        planner.resume("a", [1])
    assert planner.plan(EMPTY, 1.0) == ["a"]


def test_a_queue_that_is_put_in_order_keeps_those_held() -> None:
    class Queue:
        ids: ClassVar[list[str]] = ["a", "b", "c"]

        def waiting_ids(self) -> list[str]:
            return self.ids

        def reorder(self, order: Sequence[str]) -> None:
            assert sorted(order) == sorted(self.ids)
            self.ids[:] = order

        def translate(self, request_id: str) -> PendingRequest:
            return PendingRequest(request_id, [ord(request_id)], 0.0)

        def uncached_tokens(self, request_id: str) -> int:
            return -1

    planner, queue = Planner(), Queue()
    planner.cycle(queue, EMPTY, 1.0)
    planner.hold("a")
    planner.cycle(queue, EMPTY, 2.0)
    assert queue.ids == ["b", "c", "a"]
    planner.cycle(queue, EMPTY, 3.0)
    assert planner.stats.reordered == 1
