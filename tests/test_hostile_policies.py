"""Policies and lanes that fail in every way we could think of: nobody is lost, nobody comes twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from threading import Thread
from typing import Any

import numpy as np
import pytest
from support.queues import NOW, Blocks, cache_of, planner_of, rows_of

from peek import (
    AdmissionPolicy,
    Cycle,
    FirstCome,
    InvalidConfig,
    InvalidKey,
    LaneController,
    PeekConfig,
    PendingRequest,
    Planner,
    PlannerBusy,
    PolicyFault,
    UnknownRequest,
)
from peek.fleet import FleetConfig, FleetPlanner
from peek.policy.lanes import Lanes

NAMES = ["r0", "r1", "r2", "r3"]
CACHE = cache_of([("", (1, 2))])
Order = Callable[[list[PendingRequest], Cycle], Any]


def raising(error: BaseException) -> Order:
    def order(queue: list[PendingRequest], cycle: Cycle) -> Any:
        raise error

    return order


def emptied(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue.clear()
    return queue


def doubled(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue.append(queue[0])
    return queue


def replaced(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue[1] = queue[0]
    return queue


def renamed(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue[0].request_id = "somebody else"
    return queue


def handed_over(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue[0].tenant = "somebody else"
    return queue


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def swapped_names(queue: list[PendingRequest], cycle: Cycle) -> Any:
    queue[0].request_id, queue[1].request_id = queue[1].request_id, queue[0].request_id
    return queue


def lookalike(queue: list[PendingRequest], cycle: Cycle) -> Any:
    return [PendingRequest(queue[0].request_id, [1], 0.0), *queue[1:]]


def copied(queue: list[PendingRequest], cycle: Cycle) -> Any:
    return [copy(queue[0]), *queue[1:]]


def taken_out(queue: list[PendingRequest], cycle: Cycle) -> Any:
    cycle.tree.remove("r0")
    return queue


def put_in(queue: list[PendingRequest], cycle: Cycle) -> Any:
    cycle.tree.insert("late", [9])
    return queue


def extended(queue: list[PendingRequest], cycle: Cycle) -> Any:
    cycle.tree.extend("r0", [1, 2, 3, 4, 5])
    return queue


def ids(queue: list[PendingRequest], cycle: Cycle) -> Any:
    return [request.request_id for request in queue]


def generator(queue: list[PendingRequest], cycle: Cycle) -> Iterator[PendingRequest]:
    yield from queue


def long_gone(queue: list[PendingRequest], cycle: Cycle) -> Any:
    return [*queue, GONE]


GONE = PendingRequest("gone", [7], 0.0)

FAULTS: dict[str, tuple[Order, str]] = {
    "returns nothing": (lambda queue, cycle: None, "a NoneType, not a list"),
    "returns a tuple": (lambda queue, cycle: tuple(queue), "a tuple, not a list"),
    "returns a generator": (generator, "a generator, not a list"),
    "returns ids": (ids, "a str among the requests"),
    "returns None among them": (lambda queue, cycle: [*queue[1:], None], "a NoneType among"),
    "returns nobody": (lambda queue, cycle: [], "left out request 'r0'"),
    "empties its list": (emptied, "left out request 'r0'"),
    "forgets the last": (lambda queue, cycle: queue[:-1], "left out request 'r3'"),
    "forgets one": (lambda queue, cycle: [queue[0], *queue[2:]], "left out request 'r1'"),
    "doubles one": (doubled, "'r0' twice"),
    "doubles all": (lambda queue, cycle: queue * 2, "'r0' twice"),
    "one in another's place": (replaced, "'r0' twice"),
    "a lookalike": (lookalike, "'r0', which is not the one that waits"),
    "a copy": (copied, "'r0', which is not the one that waits"),
    "a stranger": (long_gone, "'gone', which is not the one that waits"),
    "renames one": (renamed, "raised AttributeError"),
    "hands one to another tenant": (handed_over, "raised AttributeError"),
    "swaps names": (swapped_names, "raised AttributeError"),
    "raises ValueError": (raising(ValueError("no")), "raised ValueError: no"),
    "raises StopIteration": (raising(StopIteration()), "raised StopIteration"),
    "raises MemoryError": (raising(MemoryError()), "raised MemoryError"),
    "raises our own": (raising(UnknownRequest("r9")), "raised UnknownRequest: r9"),
    "raises what cannot be told": (raising(Unspeakable()), "raised Unspeakable: an error without a text"),
    "takes one out of the tree": (taken_out, "raised PlannerBusy"),
    "puts one into the tree": (put_in, "raised PlannerBusy"),
    "extends one in the tree": (extended, "raised PlannerBusy"),
}


class Hostile(AdmissionPolicy):
    """Does as it is told, and sees all signals."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.then = order

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return self.then(queue, cycle)


class HostileLanes(Lanes):
    """The same as lanes."""

    def __init__(self, order: Order) -> None:
        self.then = order

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        return self.then(cache_lane, cycle)


def planner_with(order: Order, where: str, **options: Any) -> Planner:
    policy = Hostile(order) if where == "policy" else FirstCome()
    lanes = HostileLanes(order) if where == "lanes" else None
    rows = rows_of([1, 2, 3], [1, 2, 4], [1, 5], [6])
    return planner_of(rows, policy=policy, lanes=lanes, **options)


def arrivals(planner: Planner) -> list[tuple[str, str, float]]:
    return [(r.request_id, r.namespace, r.arrival_time) for r in planner.tree.requests()]


@pytest.mark.parametrize("where", ["policy", "lanes"])
@pytest.mark.parametrize("case", list(FAULTS))
def test_a_fault_leaves_arrival_order(case: str, where: str) -> None:
    order, words = FAULTS[case]
    planner = planner_with(order, where)
    before = arrivals(planner)
    for faults in (1, 2, 3):
        plan = planner.plan(CACHE, NOW)
        assert plan == NAMES
        assert (plan.reordered, plan.stood_aside) == (False, False)
        assert words in plan.reason
        assert ("HostileLanes" if where == "lanes" else "Hostile ") in plan.reason
        assert planner.stats.policy_faults == faults
    assert arrivals(planner) == before
    planner.tree.check()
    planner.remove("r1")
    planner.add(PendingRequest("r4", [1, 2, 9], 9.0))
    assert planner.plan(CACHE, NOW) == ["r0", "r2", "r3", "r4"]
    for name in ("r0", "r2", "r3", "r4"):
        planner.remove(name)
    assert len(planner) == 0
    assert planner.plan(CACHE, NOW) == []


@pytest.mark.parametrize("case", list(FAULTS))
def test_strictly_a_fault_is_raised(case: str) -> None:
    order, words = FAULTS[case]
    planner = planner_with(order, "policy", strict=True)
    with pytest.raises(PolicyFault) as caught:
        planner.plan(CACHE, NOW)
    assert words in str(caught.value)
    assert (len(planner), planner.stats.policy_faults) == (4, 1)
    planner.tree.check()
    planner.add(PendingRequest("r4", [1, 2, 9], 9.0))  # nothing holds the planner


def test_a_policy_that_comes_round_is_believed_again() -> None:
    policy = Hostile(lambda queue, cycle: queue[::-1])
    planner = planner_of(rows_of([1], [2], [3]), policy=policy)
    assert planner.plan(CACHE, NOW) == ["r2", "r1", "r0"]
    policy.then = raising(ValueError("for once"))
    assert planner.plan(CACHE, NOW) == ["r0", "r1", "r2"]
    policy.then = lambda queue, cycle: queue[::-1]
    plan = planner.plan(CACHE, NOW)
    assert plan == ["r2", "r1", "r0"]
    assert plan.reordered


def test_a_policy_has_a_list_of_its_own() -> None:
    kept: list[list[PendingRequest]] = []

    def hoards(queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        for earlier in kept:
            earlier.clear()
        kept.append(queue)
        return list(queue)

    planner = planner_with(hoards, "policy", strict=True)
    assert [planner.plan(CACHE, NOW) for _ in range(3)] == [NAMES] * 3


@pytest.mark.parametrize("where", ["policy", "lanes"])
def test_what_ends_a_process_is_not_held_up(where: str) -> None:
    planner = planner_with(raising(KeyboardInterrupt()), where)
    with pytest.raises(KeyboardInterrupt):
        planner.plan(CACHE, NOW)
    planner.add(PendingRequest("r4", [1, 2, 9], 9.0))


class Interrupted(Blocks):
    """A cache in whose `advance` Ctrl-C comes, in call number `calls` from now."""

    calls = 0

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> Any:
        self.calls -= 1
        if self.calls == 0:
            raise KeyboardInterrupt
        return super().advance(cursor, segment, offset)


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("label", ["peek", "peek:ttft_target_s=2", "clpm+gm+dl+pe", "hrrn+lru"])
def test_ctrl_c_in_a_view_leaves_the_planner_whole(label: str, calls: int) -> None:
    rows = rows_of([1, 2, 3], [1, 2, 4], [1, 5], [1, 2, 3, 6], [7, 8])
    config = PeekConfig.from_label(label)
    planner, cache = planner_of(rows, config, strict=True), Interrupted([("", (1, 2, 3)), ("", (7,))])
    cache.calls = calls
    with pytest.raises(KeyboardInterrupt):
        planner.plan(cache, NOW)
    planner.tree.check()
    assert planner.plan(cache, NOW) == planner_of(rows, config).plan(cache, NOW)


@pytest.mark.parametrize("strict", [False, True])
def test_lanes_that_cannot_be_charged_lose_nobody(strict: bool) -> None:
    class Unpaid(LaneController):
        def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
            raise OverflowError("too dear")

    planner = planner_of(rows_of([1], [2]), policy=FirstCome(), lanes=Unpaid(), strict=strict)
    planner.plan(CACHE, NOW)
    if strict:
        with pytest.raises(PolicyFault, match="Unpaid raised OverflowError: too dear"):
            planner.remove("r0")
    else:
        planner.remove("r0")
    assert (planner.stats.admitted, planner.stats.policy_faults) == (1, 1)
    assert planner.plan(CACHE, NOW) == ["r1"]


@pytest.mark.parametrize("strict", [False, True])
def test_one_that_is_held_is_not_lost_where_the_policy_fails(strict: bool) -> None:
    class Deaf(FirstCome):
        def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
            raise ValueError(how)

    planner = planner_of(rows_of([1], [2]), policy=Deaf(), strict=strict)
    with pytest.raises(PolicyFault) if strict else nullcontext():
        planner.hold("r0")
    assert (planner.plan(CACHE, NOW), len(planner)) == (["r1"], 2)
    planner.resume("r0", [1])
    assert planner.plan(CACHE, NOW) == ["r0", "r1"]


@pytest.mark.parametrize("policy", [FirstCome, object(), "peek", lambda queue, cycle: queue])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises((InvalidConfig, TypeError)):
        Planner(policy=policy)


@pytest.mark.parametrize("config", ["fcfs+lru", {"policy": "fcfs"}, PeekConfig])
def test_what_is_no_config_is_refused(config: Any) -> None:
    """A label is the likeliest mistake: it is how a policy is named everywhere else."""
    with pytest.raises(InvalidConfig, match="need a PeekConfig"):
        Planner(config)
    with pytest.raises(InvalidConfig, match="need a PeekConfig"):
        FleetPlanner(FleetConfig(order=config)).join("gpu0")


def test_a_policy_of_ones_own_has_no_lanes_unless_asked() -> None:
    def fair_picks(**options: Any) -> int:
        policy = Hostile(lambda queue, cycle: queue[::-1])
        planner = planner_of(rows_of(*[[i] * 10 for i in range(10)]), policy=policy, **options)
        while len(planner):
            planner.remove(planner.plan(CACHE, NOW)[0])
        return planner.stats.fair_admitted

    assert fair_picks() == 0
    assert fair_picks(lanes=LaneController(fair_share=0.5)) == 5


@pytest.mark.parametrize("cost", [-1, 2**63, 2**53 + 1, 10**30, 1.5, "1", np.int64(-1)])
def test_an_impossible_cost_is_named_and_changes_nothing(cost: Any) -> None:
    planner = planner_with(lambda queue, cycle: queue, "policy")
    planner.plan(CACHE, NOW)
    with pytest.raises(InvalidKey, match=re.escape(f"uncached_tokens of 'r0' is {cost!r}; need 0")):
        planner.remove("r0", uncached_tokens=cost)
    assert (len(planner), planner.stats.admitted) == (4, 0)
    assert planner.remove("r0", uncached_tokens=2**53) == 2**53
    assert planner.remove("r1", uncached_tokens=np.int64(7)) == 7


@pytest.mark.parametrize("now", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_is_none_is_named(now: float) -> None:
    planner = planner_with(lambda queue, cycle: queue, "policy")
    with pytest.raises(InvalidKey, match=r"now is .*, not a finite number"):
        planner.plan(CACHE, now)


# -- who may call when --------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Planner], object]] = {
    "add": lambda planner: planner.add(PendingRequest("late", [1], 1.0)),
    "remove": lambda planner: planner.remove("r0"),
    "extend": lambda planner: planner.extend("r0", [1, 2, 3, 4]),
    "plan": lambda planner: planner.plan(CACHE, NOW),
    "cached_len": lambda planner: planner.cached_len("r0"),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_a_policy_that_calls_back_is_stopped(call: str) -> None:
    def calls_back(queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        with pytest.raises(PlannerBusy, match=r"was called while Planner\.plan is under way"):
            CALLS[call](planner)
        return queue[::-1]

    planner = planner_with(calls_back, "policy", strict=True)
    assert planner.plan(CACHE, NOW) == NAMES[::-1]
    planner.tree.check()


@pytest.mark.parametrize("call", list(CALLS))
def test_a_second_thread_is_stopped_while_a_plan_is_made(call: str) -> None:
    caught: list[BaseException] = []

    def meanwhile() -> None:
        try:
            CALLS[call](planner)
        except PlannerBusy as error:
            caught.append(error)

    def waits(queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        other = Thread(target=meanwhile)
        other.start()
        other.join()
        return queue

    planner = planner_with(waits, "policy", strict=True)
    assert planner.plan(CACHE, NOW) == NAMES
    assert len(caught) == 1


def test_a_policy_that_forgets_its_base_class_is_refused() -> None:
    class Forgetful(AdmissionPolicy):
        def __init__(self) -> None:
            pass

        def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
            return queue

    with pytest.raises(InvalidConfig, match=r"Forgetful.__init__ did not call super\(\).__init__\(\)"):
        Planner(policy=Forgetful())


@pytest.mark.parametrize("unit_tokens", [0, -16, 2**31, 2**64])
def test_symbols_of_impossible_sizes_are_refused(unit_tokens: int) -> None:
    with pytest.raises(InvalidConfig, match=f"unit_tokens is {unit_tokens}; need a whole number"):
        Planner(unit_tokens=unit_tokens)


def test_accounts_that_fail_are_none() -> None:
    class Broken(FirstCome):
        def served(self) -> dict[str, float]:
            raise RuntimeError("boom")

    planner = Planner(policy=Broken())
    assert planner.served() == {}
    assert planner.stats.policy_faults == 1


def test_more_cached_than_there_is_costs_nothing() -> None:
    """A caller may count fewer tokens than its pages hold; a negative cost would turn the accounts back."""
    prompt = list(range(1000))
    planner = Planner(strict=True)
    cache = cache_of([("", tuple(prompt))])
    for number in range(4):
        planner.add(PendingRequest(f"a{number}", prompt, 0.0, num_tokens=10, tenant="A"))
        planner.add(PendingRequest(f"b{number}", prompt, 0.0, num_tokens=1000, tenant="B"))
    planner.plan(cache, 1.0)
    assert [planner.remove("a0"), planner.remove("a1")] == [0, 0]
    assert len(planner.plan(cache, 2.0)) == 6


def test_a_look_at_the_cache_ends_no_order_that_does_not_read_it() -> None:
    class Streamed(AdmissionPolicy):
        def __init__(self) -> None:
            super().__init__(reads_cache=False)

        def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
            return queue

        def stream(self, cycle: Cycle) -> Any:
            return iter(cycle.tree.requests())

    planner = planner_of(rows_of([1], [2], [3]), policy=Streamed())
    plan = planner.lazy_plan(CACHE, NOW)
    assert plan.at(0) == "r0"
    planner.cached_len("r1")
    assert list(plan) == ["r0", "r1", "r2"]


def test_a_request_that_leaves_before_a_plan_is_not_kept() -> None:
    planner = Planner()
    for number in range(100):
        planner.add(PendingRequest(f"r{number}", [number], 0.0))
        planner.remove(f"r{number}")
    assert not planner._arrivals._unsized
