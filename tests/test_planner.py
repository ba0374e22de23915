"""The planner piece by piece: who waits, counters, prefills, plans that stand, policies of one's own."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, PROMPTS, Arrival, Blocks, Scene, cache_of, ids, planner_of, rows_of, scenes

from peek import (
    PRESETS,
    AdmissionPolicy,
    Cycle,
    DuplicateRequest,
    InvalidConfig,
    InvalidKey,
    LaneOptions,
    PeekConfig,
    PendingRequest,
    PendingTree,
    Planner,
    PlannerStats,
    PolicyFault,
    UnknownRequest,
)
from peek.config import POLICIES
from peek.fleet import FleetPlanner
from peek.planner import PrefillsInFlight
from peek.policy.lanes import FAIR_LANE
from peek.policy.sections import SIBLING
from peek.request import NO_LANE
from peek.simulation.caches import RadixCache
from peek.testing.twins import common_length
from peek.trie.keys import pack
from peek.trie.tree_view import TreeView

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


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_planner_and_tree_are_not_copied(how: Callable[[object], object]) -> None:
    planner = planner_of(rows_of([1, 2, 3], [1, 2, 4]))
    for what, name in ((planner, "Planner"), (planner.tree, "PendingTree")):
        with pytest.raises(TypeError, match=f"a {name} cannot be copied or pickled"):
            how(what)
    planner.plan(EMPTY, NOW)
    with pytest.raises(TypeError, match="a Planner cannot be copied"):
        how(planner)
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


def test_counters_show_themselves() -> None:
    planner = planner_of(rows_of([1], [2]))
    planner.plan(cache_of([]), NOW)
    assert "'plans': 1, 'stood_aside': 0" in repr(planner.stats)
    assert repr(FleetPlanner().stats).startswith("FleetStats({'added': 0, ")


def test_lengths_come_from_the_key_where_nothing_is_shared_too() -> None:
    planner = planner_of(rows_of([1] * 10, [2] * 5), PeekConfig(options={"unshared": "arrival"}))
    assert planner.plan(EMPTY, NOW).stood_aside
    planner.remove("r0")
    assert (planner.stats.prompt_tokens, planner.stats.uncached_admitted) == (10, 10)


def test_who_leaves_before_the_first_plan_is_charged_the_whole_key() -> None:
    """By the planner's `unit_tokens`, then by those of the last plan's cache."""
    planner = Planner(unit_tokens=4)
    planner.add(PendingRequest("before", [1, 2, 3], 0.0))
    assert planner.remove("before") == 12
    planner.plan(TreeView(PendingTree(), 16), NOW)
    for name in ("waits", "held"):
        planner.add(PendingRequest(name, [1, 2, 3], NOW))
    planner.hold("held")
    assert [planner.remove(name) for name in ("waits", "held")] == [48, 48]
    planner.add(PendingRequest("told", [1, 2, 3], NOW))
    assert planner.remove("told", uncached_tokens=5) == 5
    assert (planner.stats.prompt_tokens, planner.stats.uncached_admitted) == (156, 113)


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


@given(
    waiting=st.lists(st.tuples(PROMPTS, st.sampled_from(["", "lora"])), min_size=1, max_size=8),
    running=st.lists(st.tuples(PROMPTS, st.sampled_from(["", "lora"])), max_size=4),
    unit=st.sampled_from([1, 16]),
)
def test_coming_is_the_longest_common_prefix_with_a_prefill(
    waiting: list[tuple[tuple[int, ...], str]], running: list[tuple[tuple[int, ...], str]], unit: int
) -> None:
    tree, in_flight = PendingTree(), PrefillsInFlight()
    noted: list[PendingRequest] = []
    for i, (key, namespace) in enumerate(waiting):
        tree.insert(f"w{i}", list(key), namespace)
    for i, (key, namespace) in enumerate(running):
        in_flight.admit(f"p{i}", pack(list(key)), namespace)
    for request in tree.requests():
        request.cached_len = 77
    for ended in range(len(running) + 1):  # one prefill after another ends
        in_flight.note_coming(tree, unit, noted)
        for i, (key, namespace) in enumerate(waiting):
            shared = [common_length(key, other) for other, theirs in running[ended:] if theirs == namespace]
            assert tree.request(f"w{i}").coming_len == unit * max(shared, default=0)
            assert tree.request(f"w{i}").cached_len == 77, "somebody else's signal"
        in_flight.ended(f"p{ended}", False)


# -- a plan that stands -------------------------------------------------------------------------------


class Counting(AdmissionPolicy):
    """Youngest first; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.asked += 1
        return queue[::-1]


def standing(lasts_s: float = 10.0, **options: object) -> tuple[Planner, Counting, RadixCache]:
    policy = Counting()
    planner = planner_of(
        rows_of([1, 2, 3], [1, 2, 4], [5]), policy=policy, plan_lasts_s=lasts_s, strict=True, **options
    )
    return planner, policy, RadixCache(1)


@pytest.mark.parametrize("lasts_s", [float("nan"), -1.0, float("-inf")])
def test_a_plan_lasts_for_no_time_that_is_none(lasts_s: float) -> None:
    with pytest.raises(InvalidConfig, match=f"plan_lasts_s is {lasts_s}; need a number from 0"):
        Planner(plan_lasts_s=lasts_s)


def test_while_nothing_changes_the_plan_stands() -> None:
    planner, policy, cache = standing()
    first = planner.plan(cache, NOW)
    assert first == ["r2", "r1", "r0"]
    assert planner.plan(cache, NOW + 9.9) is first
    assert (policy.asked, planner.stats.plans) == (1, 1)


def test_by_default_no_plan_stands() -> None:
    planner, policy, cache = standing(lasts_s=0.0)
    assert planner.plan(cache, NOW) == planner.plan(cache, NOW)
    assert policy.asked == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda planner, cache: planner.add(PendingRequest("late", [7], 9.0)),
        lambda planner, cache: planner.remove("r0"),
        lambda planner, cache: planner.remove("r0", admitted=False),
        lambda planner, cache: cache.insert(pack([1, 2]), ""),
        lambda planner, cache: planner.prefilled("r0"),
    ],
    ids=["arrival", "admission", "withdrawal", "cache", "prefill ended"],
)
def test_whatever_happens_ends_it(change: object) -> None:
    planner, policy, cache = standing(in_flight_gate=True)
    first = planner.plan(cache, NOW)
    change(planner, cache)
    second = planner.plan(cache, NOW)
    assert second is not first
    assert sorted(second) == sorted(request.request_id for request in planner.tree.requests())
    assert policy.asked == 2


def test_planners_of_one_engine_share_what_is_under_way() -> None:
    under_way, cache = PrefillsInFlight(), RadixCache(1)
    prefix = list(range(1, 51))
    one = planner_of(rows_of([*prefix, 60]), in_flight_gate=under_way, plan_lasts_s=99.0)
    other = Planner(in_flight_gate=under_way, plan_lasts_s=99.0)
    for name, key in (("sibling", [*prefix, 61]), ("stranger", [*prefix[::-1], 62])):
        other.add(PendingRequest(name, key, 9.0))
    assert other.lazy_plan(cache, NOW).at(0) == "sibling"
    one.remove("r0")
    plan = other.lazy_plan(cache, NOW)
    assert list(plan) == ["stranger", "sibling"]
    assert other.request("sibling").coming_len == len(prefix)
    one.prefilled("unknown")
    assert other.lazy_plan(cache, NOW) is plan
    one.prefilled("r0")
    assert other.lazy_plan(cache, NOW).at(0) == "sibling"
    assert other.request("sibling").coming_len == 0


def test_time_ends_it() -> None:
    planner, policy, cache = standing(lasts_s=2.0)
    first = planner.plan(cache, NOW)
    assert planner.plan(cache, NOW + 2.0) is not first
    assert policy.asked == 2


def test_another_cache_ends_it() -> None:
    planner, policy, cache = standing()
    planner.plan(cache, NOW)
    planner.plan(RadixCache(1), NOW)
    assert policy.asked == 2


def test_a_cache_that_tells_no_version_is_looked_at_each_time() -> None:
    class Silent:
        unit_tokens = block_symbols = 1

        def root(self, namespace: str) -> object:
            return None

        def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
            return 0, None

        def node_id(self, cursor: object) -> int:
            return 1

    planner, policy, _ = standing()
    view = Silent()
    planner.plan(view, NOW)
    planner.plan(view, NOW)
    assert policy.asked == 2


def test_a_plan_is_a_list_with_a_reason() -> None:
    planner, _, cache = standing()
    plan = planner.plan(cache, NOW)
    assert isinstance(plan, list)
    assert (len(plan), plan[0], plan.index("r0"), "r1" in plan, plan[:2]) == (3, "r2", 2, True, ["r2", "r1"])
    assert (plan.reordered, plan.stood_aside, plan.reason) == (True, False, "ordered by the policy")


def test_whether_the_order_matters_is_told_without_a_look() -> None:
    planner = planner_of(rows_of([1, 2], [3, 4]), PeekConfig(options={"unshared": "arrival"}))
    cache = RadixCache(1)
    assert planner.order_matters(cache), "it may hit"
    assert planner_of(rows_of([1, 2], [3, 4])).order_matters(Lonely(2)), "short prompts go first"
    assert not planner_of(rows_of([1, 2], [3, 4]), PeekConfig("clpm")).order_matters(Lonely(2))
    assert not planner.order_matters(Lonely(2))
    assert not planner.order_matters(Lonely(np.int64(2))), "a whole number as others"
    assert planner.order_matters(Lonely(1))
    assert planner_of(rows_of([1, 2], [1, 4])).order_matters(Lonely(2)), "they share"
    assert planner_of(rows_of([1, 2], [3, 4]), PeekConfig.from_label("fcfs+pe")).order_matters(Lonely(2))


class Lonely:
    """A view that knows how many of those who wait can neither hit nor share."""

    unit_tokens = block_symbols = 1

    def __init__(self, lone_requests: int) -> None:
        self.lone_requests = lone_requests

    def root(self, namespace: str) -> object:
        raise AssertionError("nobody has to look")

    advance = node_id = root


def test_nobody_looks_where_all_are_known_to_be_alone() -> None:
    planner = planner_of(rows_of([1, 2], [3, 4]), PeekConfig(options={"unshared": "arrival"}))
    plan = planner.plan(Lonely(2), NOW)
    assert (plan, plan.stood_aside, planner.stats.cache_calls) == (["r0", "r1"], True, 0)


# -- policies of one's own, in plain Python, on either build -------------------------------------------


class Longest(AdmissionPolicy):
    """Longest prompt first, ties in arrival order."""

    def __init__(self) -> None:
        super().__init__(reads_cache=False, reads_tree=False)
        self.seen: list[Cycle] = []

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.seen.append(cycle)
        return sorted(queue, key=lambda request: -request.num_tokens)


class BigClusters(AdmissionPolicy):
    def __init__(self) -> None:
        super().__init__(needs_sharing=True, theta=1)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return sorted(queue, key=lambda request: (-request.cluster_size, -request.cached_len, -request.score))


def test_a_policy_in_plain_python() -> None:
    policy = Longest()
    planner = planner_of(rows_of([1], [2] * 3, [3] * 2), PeekConfig("fcfs"), policy=policy)
    assert planner.plan(EMPTY, NOW) == ["r1", "r2", "r0"]
    (cycle,) = policy.seen
    assert (cycle.now, cycle.unit_tokens, cycle.work_done, cycle.defers_siblings) == (NOW, 1, 0, False)
    assert cycle.tree is planner.tree
    assert planner.stats.cache_calls == 0


def test_a_policy_in_plain_python_sees_the_signals() -> None:
    planner = planner_of(rows_of([1], [2, 3], [2, 4], [2, 4]), PeekConfig(), policy=BigClusters())
    assert planner.plan(cache_of([("", (2, 3))]), NOW) == ["r1", "r2", "r3", "r0"]
    requests = planner.tree.requests()
    assert [r.cluster_size for r in requests] == [1, 3, 2, 2]
    assert [r.cached_len for r in requests] == [0, 2, 1, 1]
    assert ids(requests) == ["r0", "r1", "r2", "r3"]


TAILED = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 5))


@given(st.lists(TAILED, min_size=1, max_size=6))
def test_a_tail_scores_as_symbols_that_no_other_request_has(rows: list[tuple[list[int], int]]) -> None:
    planner, twin = Planner(policy=BigClusters()), Planner(policy=BigClusters())
    for place, (key, tail) in enumerate(rows):
        planner.add(PendingRequest(f"r{place}", key, 0.0, tail=tail))
        twin.add(PendingRequest(f"r{place}", [*key, *range(100 + 5 * place, 100 + 5 * place + tail)], 0.0))
    planner.plan(EMPTY, NOW)
    for request in planner.requests():
        score = twin.tree.score(request.request_id)
        assert planner.tree.score(request.request_id) == score
        assert request.score == score or not planner.has_sharing  # the planner stood aside


FORGETFUL = """
from peek import AdmissionPolicy, EvictionPolicy, Planner, PendingRequest, PendingTree, PolicyFault
from peek.trie.tree_view import TreeView

class Forgetful({base}):
    def oder(self, queue, cycle):
        return queue

try:
    {call}
except (PolicyFault, NotImplementedError):
    print("refused")
"""


@pytest.mark.parametrize(
    ("base", "call"),
    [
        ("AdmissionPolicy", "Planner(policy=Forgetful(), strict=True).plan(TreeView(PendingTree()), 0.0)"),
        ("EvictionPolicy", "Forgetful().score(1, 1, 0.0)"),
    ],
)
def test_a_policy_without_its_method_is_an_error(base: str, call: str) -> None:
    script = FORGETFUL.format(base=base, call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


class Failing(AdmissionPolicy):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        raise self.error


def test_a_fault_has_a_cause_and_is_never_its_own() -> None:
    """Code that follows `__cause__` until there is none has to come to an end."""
    unlucky, refused = KeyError("r0"), PolicyFault("it has no order")
    for error, cause in ((unlucky, unlucky), (refused, None)):
        planner = planner_of(rows_of([1]), policy=Failing(error), strict=True)
        with pytest.raises(PolicyFault) as caught:
            planner.plan(EMPTY, NOW)
        assert caught.value.__cause__ is cause
