"""One planner for each priority, which together answer as one."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import PendingRequest, Planner, UnknownRequest
from peek.adapters import priorities
from peek.adapters.observed import Observations, ObservedPlanner
from peek.adapters.priorities import PriorityPlanners
from peek.config import PeekConfig


class Empty:
    """A cache with nothing in it, which knows that it does not change."""

    unit_tokens = 1
    version = 0

    def root(self, namespace: str) -> int:
        return 0

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        return 0, cursor

    def node_id(self, cursor: object) -> int:
        return -1


NOTHING_CACHED = Empty()


def request(name: str, prefix: int = 0, tenant: str = "", at: float = 0.0) -> PendingRequest:
    return PendingRequest(name, [prefix] * 30 + [crc32(name.encode()) % 2**30], at, tenant=tenant)


def number_of(name: str) -> int:
    return int(name.split(".")[0])


def planners(config: PeekConfig | None = None, **options: Any) -> PriorityPlanners:
    return PriorityPlanners(partial(Planner, config, **options), number_of)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "hold", "resume", "plan"]),
        st.integers(-2, 3),
        st.integers(0, 2),
        st.integers(0, 99),
    ),
    max_size=60,
)


@given(events=EVENTS, most=st.sampled_from([1, 2, 32]), asked=st.integers(0, 9))
def test_it_answers_as_one_planner_for_each_priority_would(
    events: list[tuple[str, int, int, int]], most: int, asked: int
) -> None:
    """With too few planners the smaller number goes first all the same, and nobody is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priorities, "MOST_PLANNERS", most)
        together = planners(strict=True)
        apart = {number: Planner(strict=True) for number in range(-2, 4)}
        waiting: list[str] = []
        for at, (event, number, prefix, pick) in enumerate(events):
            if event == "add":
                waiting.append(f"{number}.{at}")
                for planner in (together, apart[number]):
                    planner.add(request(waiting[-1], prefix, at=float(pick)))
            elif event != "plan" and waiting:
                name = waiting[pick % len(waiting)]
                own = apart[number_of(name)]
                if event == "remove":
                    waiting.remove(name)
                    assert together.remove(name) == own.remove(name)
                elif (event == "hold") != (name in own.held):
                    key = request(name, prefix).key
                    for planner in (together, own):
                        planner.hold(name) if event == "hold" else planner.resume(name, key)
            lazy = together.lazy_plan(NOTHING_CACHED, float(at))
            assert [lazy.at(place) for place in range(asked)] == [lazy.at(place) for place in range(asked)]
            expected = [name for n in range(-2, 4) for name in apart[n].plan(NOTHING_CACHED, float(at))]
            names = list(together.plan(NOTHING_CACHED, float(at)))
            assert sorted(names) == sorted(expected)
            assert [number_of(name) for name in names] == sorted(map(number_of, names))
            assert sorted(together.held) == sorted(name for n in apart for name in apart[n].held)
            assert len(together) == len(waiting)
            assert len(together._planners) <= most
            if most == 32:
                assert names == list(together.lazy_plan(NOTHING_CACHED, float(at))) == expected
        totals = together.totals()
        assert totals["admitted"] == sum(planner.stats.admitted for planner in apart.values())
        assert totals["waiting"] + totals["held"] == len(waiting)


def test_a_priority_is_planned_when_the_smaller_ones_have_no_more() -> None:
    together = planners(plan_lasts_s=9.0)
    for name in ("7.a", "7.b", "3.a", "3.b"):
        together.add(request(name))
    plan = together.lazy_plan(NOTHING_CACHED, 1.0)
    assert [plan.at(0), plan.at(1)] == ["3.a", "3.b"]
    assert together.totals()["plans"] == 1
    assert [plan.at(2), plan.at(3), plan.at(4)] == ["7.a", "7.b", None]
    assert together.totals()["plans"] == 2


def test_a_plan_stands_while_nothing_has_changed() -> None:
    together = planners(plan_lasts_s=9.0)
    for name in ("7.a", "7.b", "3.a", "3.b"):
        together.add(request(name))
    plan, whole = together.lazy_plan(NOTHING_CACHED, 1.0), together.plan(NOTHING_CACHED, 1.0)
    assert together.lazy_plan(NOTHING_CACHED, 2.0) is plan
    assert together.plan(NOTHING_CACHED, 2.0) is whole
    together.remove("7.a")
    assert together.lazy_plan(NOTHING_CACHED, 3.0) is not plan
    assert list(plan) == ["3.a", "3.b", "7.a", "7.b"]
    assert list(together.plan(NOTHING_CACHED, 3.0)) == ["3.a", "3.b", "7.b"]


def test_what_was_not_asked_for_is_lost_when_one_leaves() -> None:
    together = planners()
    for name in ("7.a", "3.a", "3.b"):
        together.add(request(name))
    plan = together.lazy_plan(NOTHING_CACHED, 1.0)
    assert plan.at(0) == "3.a"
    together.remove("7.a")
    assert "7.a" not in list(plan)


def test_a_thousand_priorities_are_not_a_thousand_planners() -> None:
    together = planners(plan_lasts_s=9.0)
    for number in range(1000):
        together.add(request(f"{999 - number}.x"))
    plan = together.lazy_plan(NOTHING_CACHED, 1.0)
    assert [plan.at(place) for place in range(9)] == [f"{number}.x" for number in range(9)]
    assert len(together._planners) == priorities.MOST_PLANNERS
    assert [number_of(name) for name in plan] == list(range(1000))


def test_a_plan_ends_when_a_request_of_a_further_priority_is_held_or_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(priorities, "MOST_PLANNERS", 1)
    together = planners(plan_lasts_s=9.0)
    for name in ("7.a", "3.a", "9.a"):
        together.add(request(name))
    assert list(together.lazy_plan(NOTHING_CACHED, 1.0)) == ["3.a", "7.a", "9.a"]
    together.hold("3.a")
    assert list(together.lazy_plan(NOTHING_CACHED, 2.0)) == ["7.a", "9.a"]
    together.resume("3.a", [3] * 30)
    assert list(together.lazy_plan(NOTHING_CACHED, 3.0)) == ["3.a", "7.a", "9.a"]


def test_what_was_learned_outlives_an_empty_queue() -> None:
    together, one = planners(), Planner()
    for planner in (together, one):
        planner.add(request("0.a", tenant="A"))
        planner.add(request("0.b", tenant="B"))
        planner.plan(NOTHING_CACHED, 1.0)
        planner.remove("0.a", True, 48)
        planner.generated("A", 50_000)
        planner.remove("0.b", True, 48)
        planner.generated("B", 20)  # while nobody waits
        planner.answered(400, "0.a")
        planner.add(request("0.c", tenant="A"))
        planner.add(request("0.d", tenant="B"))
    own = together._planners[0]
    assert own.served() == one.served()
    assert own.served()["A"] > 50_000
    assert own.stats.uncached_admitted == one.stats.uncached_admitted == 96
    assert [each.policy.overdue.answers.mean for each in (own, one)] == [400, 400]  # type: ignore[attr-defined]


def test_the_planner_that_was_empty_longest_takes_a_new_priority_over() -> None:
    together = planners()
    numbers = range(priorities.MOST_PLANNERS)
    for number in numbers:
        together.add(request(f"{number}.x"))
    for number in (1, 0, *numbers[2:]):
        together.remove(f"{number}.x")
    together.add(request("0.y"))
    together.remove("0.y")
    longest = together._planners[1]
    together.add(request("100.x"))
    assert together._planners[100] is longest
    assert sorted(together._planners) == [0, *numbers[2:], 100]
    assert together.totals()["admitted"] == len(numbers) + 1
    with pytest.raises(UnknownRequest, match=r"'0\.x' is not waiting"):
        together.request("0.x")


@given(asked=st.lists(st.integers(1, 6), min_size=2, max_size=12))
def test_the_seconds_of_plans_are_those_of_their_parts(asked: list[int]) -> None:
    """Also of the parts that are made when they are asked for, and once each, however long a part stands."""
    seconds = iter(range(1000))
    together = planners(timer=lambda: float(next(seconds)), plan_lasts_s=inf)
    seen = Observations()
    observed = ObservedPlanner(together, seen)  # type: ignore[arg-type]
    for number in range(3):
        for name in (f"{number}.x", f"{number}.y"):
            observed.add(request(name))
    for at, places in enumerate(asked):
        plan = observed.lazy_plan(NOTHING_CACHED, float(at))
        assert seen.plan_s.sum == together.totals()["plan_s"] == together.totals()["plans"]
        for place in range(min(places, len(together))):
            plan.at(place)
        observed.remove(plan.at(0), admitted=False)
        observed.add(request(f"{at % 3}.{at}", at=float(at)))
    assert seen.plan_s.total == len(asked)


def test_prefills_that_ended_are_told_to_all() -> None:
    together = planners(in_flight_gate=True)
    together.add(request("0.a"))
    together.remove("0.a")
    for name in ("1.b", "0.c"):
        together.add(request(name))
    together.plan(NOTHING_CACHED, 1.0)
    assert together.request("0.c").coming_len > 0
    together.prefilled("0.a")
    together.plan(NOTHING_CACHED, 1.0)
    assert together.request("0.c").coming_len == 0
