"""The planner piece by piece: who waits, the counters, prefills under way."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Arrival, Blocks, Scene, cache_of, planner_of, rows_of, scenes

from peek import (
    PRESETS,
    DuplicateRequest,
    InvalidKey,
    LaneOptions,
    PeekConfig,
    PendingRequest,
    Planner,
    PlannerStats,
    UnknownRequest,
)
from peek.config import POLICIES
from peek.policy.lanes import FAIR_LANE
from peek.policy.sections import SIBLING
from peek.request import NO_LANE

EMPTY = cache_of([])
LABELS = list(PRESETS)


def state(planner: Planner) -> object:
    """All that the outside can see of a planner."""
    planner.tree.check()
    requests = [(r.request_id, r.arrival_time, r.sequence) for r in planner.tree.requests()]
    return requests, planner.tree.clusters(), planner.tree.scores(), planner.stats.as_dict(), len(planner)


# -- who waits ----------------------------------------------------------------------------------------


def test_add_and_remove() -> None:
    planner = Planner()
    assert (len(planner), "a" in planner) == (0, False)
    planner.add(PendingRequest("a", [1, 2], 0.0))
    planner.add(PendingRequest("b", [1, 3], 1.0))
    assert (len(planner), "a" in planner, "c" in planner) == (2, True, False)
    assert sorted(planner.plan(EMPTY, NOW)) == ["a", "b"]
    planner.remove("a")
    assert (len(planner), "a" in planner) == (1, False)
    assert planner.plan(EMPTY, NOW) == ["b"]
    planner.remove("b", admitted=False)
    assert planner.plan(EMPTY, NOW) == []


@pytest.mark.parametrize("chained", [False, True])
def test_a_refused_request_leaves_no_trace(chained: bool) -> None:
    planner = planner_of(rows_of([1, 2, 3], [1, 2, 4]), chained=chained)
    planner.plan(EMPTY, NOW)
    before = state(planner)
    with pytest.raises(DuplicateRequest, match="'r0'"):
        planner.add(PendingRequest("r0", [9], 5.0))
    for key in ([], [-1], [2**31], ["x"], b"123", "abc", None):
        with pytest.raises(InvalidKey):
            planner.add(PendingRequest("new", key, 5.0))
    for admitted in (True, False):
        with pytest.raises(UnknownRequest, match="'nobody'"):
            planner.remove("nobody", admitted=admitted)
    assert state(planner) == before
    assert planner.plan(EMPTY, NOW) == ["r0", "r1"]


@pytest.mark.parametrize("arrival_time", [float("nan"), float("inf"), float("-inf")])
def test_an_arrival_time_is_finite(arrival_time: float) -> None:
    with pytest.raises(InvalidKey, match="arrival_time of 'r'"):
        PendingRequest("r", [1], arrival_time)


def test_a_length_is_not_negative() -> None:
    with pytest.raises(InvalidKey, match="num_tokens of 'r' is -1"):
        PendingRequest("r", [1], 0.0, num_tokens=-1)


@given(scene=scenes(min_size=2), data=st.data())
def test_first_come_sorts_by_arrival_whenever_added(scene: Scene, data: st.DataObject) -> None:
    """Equal arrivals stay in the order they were added."""
    rows = data.draw(st.permutations(scene.rows))
    planner = planner_of(rows, PeekConfig.from_label("fcfs+pe"))
    expected = [row.request_id for row in sorted(rows, key=lambda row: row.arrival_time)]
    assert planner.plan(EMPTY, NOW) == expected
    planner.add(PendingRequest("oldest", [1], -1.0))
    assert planner.plan(EMPTY, NOW) == ["oldest", *expected]
    planner.remove("oldest")
    planner.add(PendingRequest("newest", [1], NOW))
    assert planner.plan(EMPTY, NOW) == [*expected, "newest"]


# -- counters -----------------------------------------------------------------------------------------


def test_counters_literally() -> None:
    planner = planner_of(rows_of([1] * 10, [1] * 10, [1] * 5), PeekConfig("clpm"))
    assert planner.stats.as_dict() == PlannerStats().as_dict()
    planner.plan(cache_of([("", (1,) * 4)]), NOW)
    planner.remove("r0")  # as expected: 10 - 4
    planner.remove("r1", uncached_tokens=2)
    planner.remove("r2", admitted=False)
    planner.plan(EMPTY, NOW)
    planner.add(PendingRequest("alone", [3] * 7, 9.0, num_tokens=20))
    planner.plan(EMPTY, NOW)
    assert planner.stats.as_dict() == {
        "plans": 3,
        "stood_aside": 2,
        "policy_faults": 0,
        "reordered": 0,
        "planned": 4,
        "admitted": 2,
        "withdrawn": 1,
        "fair_admitted": 0,
        "prompt_tokens": 20,
        "cached_expected": 8,
        "uncached_admitted": 8,
        "cache_calls": 2,
        "plan_s": 0.0,
        "last_plan_s": 0.0,
    }


def test_lengths_come_from_the_key_where_nothing_is_shared_too() -> None:
    planner = planner_of(rows_of([1] * 10, [2] * 5), PeekConfig(options={"unshared": "arrival"}))
    assert planner.plan(EMPTY, NOW).stood_aside
    planner.remove("r0")
    assert (planner.stats.prompt_tokens, planner.stats.uncached_admitted) == (10, 10)


def test_fair_picks_are_counted() -> None:
    planner = planner_of(
        rows_of(*[[i, i] for i in range(6)]), PeekConfig("lpm", lanes=LaneOptions("work", 0.5))
    )
    for _ in range(6):
        planner.remove(planner.plan(EMPTY, NOW)[0])
    assert (planner.stats.admitted, planner.stats.fair_admitted) == (6, 3)


@pytest.mark.parametrize("admission", POLICIES)
def test_without_lanes_nobody_is_a_fair_pick(admission: str) -> None:
    planner = planner_of(rows_of([1] * 40, [1] * 40, [1] * 40), PeekConfig(admission))
    planner.plan(EMPTY, NOW)
    for row in ("r0", "r1", "r2"):
        planner.remove(row)
    assert (planner.stats.admitted, planner.stats.fair_admitted) == (3, 0)


@pytest.mark.parametrize("policy_time", [0.0, 0.25])
def test_durations_come_from_the_callers_timer(policy_time: float) -> None:
    ticks = count(100.0, 0.25)
    planner = planner_of(rows_of([1], [1]), timer=(lambda: next(ticks)) if policy_time else None)
    for cycles in (1, 2, 3):
        planner.plan(EMPTY, NOW)
        assert planner.stats.last_plan_s == policy_time
        assert planner.stats.plan_s == cycles * policy_time


def test_lengths_are_in_tokens_of_the_cache() -> None:
    planner = planner_of((Arrival("key", (1, 2, 3)), Arrival("tail", (1, 2), 1.0, num_tokens=40)))
    planner.plan(cache_of([("", (1, 2))], unit=16), NOW)
    found = {r.request_id: (r.num_tokens, r.cached_len) for r in planner.tree.requests()}
    assert found == {"key": (48, 32), "tail": (40, 32)}


# -- prefills under way -------------------------------------------------------------------------------

PREFIX = [1] * 100


def gated(label: str = "peek", **options: object) -> Planner:
    """A planner of an engine that shows a prefix when its prefill ends, with a pioneer and two siblings."""
    config = PeekConfig.from_dict({"policy": label, **options})
    planner = planner_of(rows_of([*PREFIX, 5], [*PREFIX, 6], [*PREFIX, 7]), config, in_flight_gate=True)
    planner.plan(EMPTY, NOW)
    return planner


def coming(planner: Planner) -> list[int]:
    planner.plan(EMPTY, NOW)
    return [request.coming_len for request in planner.tree.requests()]


@pytest.mark.parametrize("label", ["peek", "clpm", "lpm+lru", "spf+lru", "hrrn+lru"])
def test_what_is_being_prefilled_is_coming(label: str) -> None:
    planner = gated(label)
    assert coming(planner) == [0, 0, 0]
    planner.remove("r0")
    assert coming(planner) == [100, 100]
    assert [r.section for r in planner.tree.requests()] == [SIBLING, SIBLING]
    planner.add(PendingRequest("other", [9] * 20, 5.0))
    assert planner.plan(EMPTY, NOW)[0] == "other"
    planner.prefilled("r0")
    assert coming(planner) == [0, 0, 0]


def test_a_request_brings_no_signals_from_another_planner() -> None:
    request = PendingRequest("moved", [*PREFIX, 9], 0.0)
    planner = gated()
    planner.add(request)
    planner.remove("r0")
    planner.plan(cache_of([("", (1, 1))]), NOW)
    planner.remove("moved", admitted=False)
    assert (request.coming_len, request.cached_len) == (100, 2)
    request.key, request.lane = [*PREFIX, 9], FAIR_LANE
    here = Planner(PeekConfig("fcfs"))
    here.add(request)
    here.plan(EMPTY, NOW)
    assert (request.coming_len, request.cached_len, request.lane) == (0, 0, NO_LANE)


def test_the_prefill_may_end_before_the_planner_hears_of_the_admission() -> None:
    planner = gated()
    planner.prefilled("r0")
    planner.remove("r0")
    assert coming(planner) == [0, 0]
    planner.add(PendingRequest("r0", [*PREFIX, 5], 0.0))  # preempted; prefilled again
    planner.remove("r0")
    assert coming(planner) == [100, 100]
    planner.prefilled("r0")
    assert coming(planner) == [0, 0]


@pytest.mark.parametrize("is_held", [False, True])
def test_the_withdrawn_the_held_and_the_unknown_prefill_nothing(is_held: bool) -> None:
    planner = gated()
    planner.prefilled("nobody")
    planner.prefilled("r0")
    if is_held:
        planner.hold("r0")
    planner.remove("r0", admitted=is_held)
    planner.prefilled("r0")
    assert coming(planner) == [0, 0]
    planner.add(PendingRequest("r0", [*PREFIX, 5], 0.0))
    planner.remove("r0")
    assert coming(planner) == [100, 100]


def test_the_longest_of_several_prefills_counts() -> None:
    planner = gated()
    planner.add(PendingRequest("short", [1] * 60, 3.0))
    planner.remove("short")
    assert coming(planner) == [60, 60, 60]
    planner.remove("r0")
    assert coming(planner) == [100, 100]
    planner.prefilled("r0")
    assert coming(planner) == [60, 60]


def test_what_is_cached_by_now_is_not_waited_for() -> None:
    planner = gated()
    planner.remove("r0")
    planner.plan(cache_of([("", tuple(PREFIX))]), NOW)
    found = [(r.coming_len, r.cached_len, r.section) for r in planner.tree.requests()]
    assert all(known[:2] == (100, 100) and known[2] < SIBLING for known in found)


def test_without_the_gate_nothing_is_coming() -> None:
    planner = planner_of(rows_of([*PREFIX, 5], [*PREFIX, 6], [*PREFIX, 7]))
    planner.plan(EMPTY, NOW)
    planner.remove("r0")
    assert coming(planner) == [0, 0]
    assert SIBLING not in [r.section for r in planner.tree.requests()]


@pytest.mark.parametrize("label", ["clpm", "clpm+gm+dl+pe"])
def test_with_the_gate_a_plan_still_stands_aside(label: str) -> None:
    """Nothing shared, cached or coming: only a prefill under way that somebody waits for is worth a plan."""
    planner = planner_of(rows_of([1] * 20, [2] * 20), PeekConfig.from_label(label), in_flight_gate=True)
    assert planner.plan(EMPTY, NOW).stood_aside
    planner.remove("r0")
    assert planner.plan(EMPTY, NOW).stood_aside, "what is under way is nobody's prefix"
    planner.add(PendingRequest("sibling", [1] * 30, 5.0))
    assert not planner.plan(EMPTY, NOW).stood_aside


def test_demand_is_of_the_cache_not_of_the_prefills() -> None:
    planner = gated(eviction="plain")
    planner.remove("r0")
    blocks = Blocks([("", tuple(PREFIX[:40]))])
    planner.plan(blocks, NOW)
    assert {planner.eviction_score(node_id) for node_id in blocks.node_ids.values()} == {200.0}
