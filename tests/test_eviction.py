"""Demand eviction: the four formulas, who is a victim, and Equation 2 behind `Planner.eviction_score`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NAMESPACES, NOW, Arrival, Blocks, cache_of, planner_of, rows_of

from peek import DemandEviction, EvictionPolicy, InvalidConfig, PeekConfig, PendingRequest, Planner
from peek.eviction.demand import MODES, victims
from peek.testing.twins import NaivePendingTree, Pages, Place, prefixes
from peek.trie.keys import pack

PEAKS = st.integers(0, 2**50)
IDLE = st.one_of(st.floats(0.0, 1e12), st.just(-1.0))

# -- modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "levels", "idle_s", "expected"),
    [
        ("plain", 0, 0.0, 120.0),
        ("plain", 3, 9.0, 120.0),
        ("cluster", 0, 0.0, 120.0),
        ("cluster", 1, 9.0, 240.0),
        ("cluster", 3, 0.0, 480.0),
        ("recency", 3, 0.0, 240.0),
        ("recency", 0, 1.0, 180.0),
        ("recency", 0, 3.0, 150.0),
        ("recency", 0, -5.0, 240.0),
        ("decay", 3, 0.0, 120.0),
        ("decay", 0, 30.0, 60.0),
        ("decay", 0, 90.0, 15.0),
        ("decay", 0, -30.0, 120.0),
    ],
)
def test_formulas(mode: str, levels: int, idle_s: float, expected: float) -> None:
    assert DemandEviction(mode).score(120, levels, idle_s) == pytest.approx(expected)


def test_the_half_life_is_a_setting() -> None:
    assert DemandEviction("decay", half_life_s=5.0).score(80, 0, 15.0) == pytest.approx(10.0)


def test_the_default_is_the_paper_choice() -> None:
    assert DemandEviction().mode == "cluster"


@pytest.mark.parametrize("mode", MODES)
@given(peak=PEAKS, levels=st.integers(0, 1000), idle_s=IDLE)
def test_no_demand_is_zero_and_demand_is_above(mode: str, peak: int, levels: int, idle_s: float) -> None:
    score = DemandEviction(mode).score(peak, levels, idle_s)
    assert isfinite(score)
    assert (score > 0.0) == (peak > 0)
    assert (score == 0.0) == (peak == 0)


@pytest.mark.parametrize("mode", MODES)
@given(peak=st.integers(1, 2**40), more=st.integers(1, 2**40), levels=st.integers(0, 9), idle_s=IDLE)
def test_more_demand_scores_higher(mode: str, peak: int, more: int, levels: int, idle_s: float) -> None:
    policy = DemandEviction(mode)
    assert policy.score(peak + more, levels, idle_s) >= policy.score(peak, levels, idle_s)
    assert policy.score(2 * peak, levels, idle_s) > policy.score(peak, levels, idle_s)


@pytest.mark.parametrize("mode", ["", "lru", "Plain", "plain "])
def test_an_unknown_mode_is_told_the_known_ones(mode: str) -> None:
    with pytest.raises(InvalidConfig, match="plain, cluster, recency, decay") as caught:
        DemandEviction(mode)
    assert repr(mode) in str(caught.value)


@pytest.mark.parametrize("half_life_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_absurd_half_life(half_life_s: float) -> None:
    with pytest.raises(InvalidConfig, match=f"half_life_s is {half_life_s}"):
        DemandEviction("decay", half_life_s)


# -- victims ------------------------------------------------------------------------------------------

SCORES = st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 7.0]), max_size=12)


@given(scores=SCORES, scan_limit=st.integers(1, 14))
def test_victims_are_every_candidate_once_in_the_stated_order(scores: list[float], scan_limit: int) -> None:
    order = list(victims(range(len(scores)), scores.__getitem__, scan_limit))
    demanded = [i for i, score in enumerate(scores) if score > 0.0]
    looked = demanded[scan_limit - 1] + 1 if len(demanded) >= scan_limit else len(scores)
    free = [i for i in range(looked) if scores[i] == 0.0]
    needed = sorted((i for i in range(looked) if scores[i] > 0.0), key=lambda i: (scores[i], i))
    assert order == free + needed + list(range(looked, len(scores)))


@given(scores=SCORES, scan_limit=st.integers(1, 14), taken=st.integers(0, 12))
def test_nobody_needed_goes_while_one_without_demand_is_within_reach(
    scores: list[float], scan_limit: int, taken: int
) -> None:
    looked: list[int] = []

    def score(candidate: int) -> float:
        looked.append(candidate)
        return scores[candidate]

    chosen = [
        candidate
        for candidate, _ in zip(victims(range(len(scores)), score, scan_limit), range(taken), strict=False)
    ]
    assert len(looked) == len(set(looked)), "a candidate costs one look"
    assert sum(scores[candidate] > 0.0 for candidate in looked) <= scan_limit
    if any(scores[candidate] > 0.0 for candidate in chosen):
        assert {i for i in looked if scores[i] == 0.0} <= set(chosen)


def test_the_usual_victim_costs_one_look() -> None:
    looked: list[int] = []
    found = victims(range(10**6), lambda candidate: float(looked.append(candidate) or 0.0), 4)
    assert next(found) == 0
    assert looked == [0]


# -- Equation 2 through the planner -------------------------------------------------------------------

KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
PLACES = st.tuples(NAMESPACES, KEYS)


@dataclass
class Equation2:
    """Demand of a prefix among waiting keys: the nodes above it and the one whose edge it ends in."""

    waiting: dict[str, Place]

    def above(self, place: Place) -> dict[Place, int]:
        tree = NaivePendingTree()
        tree.waiting = self.waiting
        nodes = tree.nodes()
        covering = [node for node in nodes if place in prefixes(node)]
        holder = min(covering, key=lambda node: len(node[1]), default=None)
        return {node: nodes[node] for node in prefixes(holder) if node in nodes} if holder else {}

    def peak(self, place: Place) -> int:
        return max((count * len(node[1]) for node, count in self.above(place).items()), default=0)

    def levels(self, place: Place) -> int:
        return sum(count >= 2 for count in self.above(place).values())

    def score(self, mode: str, place: Place, idle_s: float) -> float:
        return DemandEviction(mode).score(self.peak(place), self.levels(place), idle_s)


def waiting_rows(places: list[Place]) -> tuple[Arrival, ...]:
    return tuple(Arrival(f"r{i}", key, float(i), namespace) for i, (namespace, key) in enumerate(places))


def assert_scores(planner: Planner, cache: Blocks, waiting: dict[str, Place], idle_s: float = 0.0) -> None:
    naive = Equation2(waiting)
    for place, node_id in cache.node_ids.items():
        expected = naive.score(planner.config.eviction, place, idle_s)
        assert planner.eviction_score(node_id, idle_s) == pytest.approx(expected), place


@pytest.mark.parametrize("admission", ["fcfs", "lpm", "clpm+gm", "peek"])
@given(
    places=st.lists(PLACES, min_size=1, max_size=7),
    cached=st.lists(PLACES, max_size=5),
    mode=st.sampled_from(MODES),
    idle_s=st.sampled_from([0.0, 1.0, 30.0]),
    data=st.data(),
)
def test_the_score_is_that_of_equation_2(
    admission: str, places: list[Place], cached: list[Place], mode: str, idle_s: float, data: st.DataObject
) -> None:
    rows = waiting_rows(places)
    planner = planner_of(rows, PeekConfig(admission, eviction=mode))
    cache = Blocks([*cached, *places[:2]])
    waiting = {row.request_id: row.place for row in rows}
    planner.plan(cache, NOW)
    if data.draw(st.booleans(), label="asked at once"):
        assert_scores(planner, cache, waiting, idle_s)
    for name in data.draw(st.lists(st.sampled_from(list(waiting)), unique=True), label="leave"):
        planner.remove(name, admitted=False)
        del waiting[name]
        assert_scores(planner, cache, waiting, idle_s)
    planner.add(PendingRequest("late", [0, 0, 1], NOW))
    waiting["late"] = ("", (0, 0, 1))
    planner.plan(cache, NOW)
    assert_scores(planner, cache, waiting, idle_s)


@given(
    places=st.lists(PLACES, min_size=1, max_size=7),
    cached=st.lists(PLACES, max_size=5),
    mode=st.sampled_from(MODES),
)
def test_the_score_of_chained_blocks_follows_the_queue(
    places: list[Place], cached: list[Place], mode: str
) -> None:
    pages = Pages(1, chained=True)
    planner = Planner(PeekConfig("fcfs", eviction=mode), chained=True)
    keys = {place: (place[0], tuple(pages.key(place[1], place[0]))) for place in [*places, *cached]}
    blocks = {prefix[1][-1]: prefix for key in keys.values() for prefix in prefixes(key)}
    waiting: dict[str, Place] = {}
    planner.plan(cache_of(keys.values()), NOW)
    for i, place in enumerate(places):
        planner.add(PendingRequest(f"r{i}", list(keys[place][1]), float(i), place[0]))
        waiting[f"r{i}"] = keys[place]
    for leaves in list(waiting):
        naive = Equation2(waiting)
        for symbol, prefix in blocks.items():
            assert planner.eviction_score(symbol, 2.0) == pytest.approx(naive.score(mode, prefix, 2.0))
        planner.remove(leaves)
        del waiting[leaves]
    assert {planner.eviction_score(symbol) for symbol in blocks} == {0.0}


@pytest.mark.parametrize("chained", [False, True])
def test_scores_come_with_the_demand_and_go_with_the_last_request(chained: bool) -> None:
    """Nodes of a tree are known by a walk, so from the first plan on; chained symbols at once."""
    planner = planner_of(rows_of([7, 8]), PeekConfig(eviction="plain"), chained=chained)
    cache = Blocks([("", (7, 8))])
    node_id = 8 if chained else cache.node_ids["", (7, 8)]
    assert planner.evicts
    assert planner.eviction_score(node_id) == (2.0 if chained else 0.0)
    planner.plan(cache, NOW)
    assert planner.eviction_score(node_id) == 2.0
    assert planner.eviction_score(np.int64(node_id)) == 2.0  # as a view may name it
    assert planner.eviction_score(999) == 0.0
    planner.remove("r0")
    assert planner.eviction_score(node_id) == 0.0


@pytest.mark.parametrize("chained", [False, True])
def test_scores_are_zero_when_eviction_is_the_engines(chained: bool) -> None:
    planner = planner_of(rows_of([7, 8], [7, 9]), PeekConfig("clpm"), chained=chained)
    cache = Blocks([("", (7, 8))])
    planner.plan(cache, NOW)
    assert not planner.evicts
    assert [planner.eviction_score(node_id) for node_id in (1, 2, 7, 8)] == [0.0] * 4


@pytest.mark.parametrize("label", ["fcfs+pe", "lpm+lru", "peek"])
def test_demand_is_known_whether_or_not_the_order_asked_the_cache(label: str) -> None:
    """Three wait for the 100 symbols of a node; arrival order has asked nobody what is cached."""
    config = replace(PeekConfig.from_label(label), eviction="plain")
    planner = planner_of(rows_of(*([*[1] * 100, tail] for tail in (5, 6, 7))), config)
    cache = cache_of([("", (1,) * 100)])
    planner.plan(cache, NOW)
    _, cursor = cache.advance(cache.root(""), memoryview(pack([1] * 100)).cast("i"), 0)
    assert planner.eviction_score(cache.node_id(cursor)) == 300.0
    assert planner.stats.cache_calls > 0, "whoever asked"


def test_the_maximum_may_lie_above() -> None:
    """Three need the head of 10, one the 12 behind it: 3 x 10 beats 1 x 22."""
    head = [1] * 10
    planner = planner_of(rows_of([*head, *[2] * 12], [*head, 3], [*head, 4]), PeekConfig(eviction="plain"))
    cache = Blocks([("", (*head, *[2] * 12)), ("", (*head, 3))])
    planner.plan(cache, NOW)
    scores = {
        len(place[1]): planner.eviction_score(n) for place, n in cache.node_ids.items() if 3 not in place[1]
    }
    assert scores == dict.fromkeys(range(1, 23), 30.0)
    planner.remove("r2")
    assert planner.eviction_score(cache.node_ids["", tuple(head)]) == 20.0
    assert planner.eviction_score(cache.node_ids["", (*head, *[2] * 12)]) == 22.0


class Upside(EvictionPolicy):
    """A policy in plain Python."""

    def score(self, peak: int, levels: int, idle_s: float) -> float:
        return 1000.0 - peak if peak else 0.0


def test_a_policy_of_ones_own() -> None:
    """It scores in place of the configured one, also where that leaves eviction to the engine."""
    for config in (PeekConfig(), PeekConfig(eviction="plain")):
        planner = Planner(config, eviction=Upside())
        for name, key in (("a", [1] * 5), ("b", [1] * 5), ("c", [2] * 3)):
            planner.add(PendingRequest(name, key, 0.0))
        cache = Blocks([("", (1,) * 5), ("", (2,) * 3), ("", (3,))])
        planner.plan(cache, NOW)
        assert planner.evicts
        scores = [planner.eviction_score(cache.node_ids["", key]) for key in ((1,) * 5, (2,) * 3, (3,))]
        assert scores == [990.0, 997.0, 0.0]
