"""Cluster response ratio against its definition, in exact arithmetic, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import (
    NOW,
    TAU,
    Arrival,
    Fact,
    Scene,
    cache_of,
    caches,
    longest,
    planner_of,
    queues,
    rows_of,
    scenes,
)

from peek import ClusterResponseRatio, PeekConfig, PendingRequest
from peek.policy.sections import PIONEER, SIBLING, WARM
from peek.testing.twins import Place, common_length, prefixes

EXPONENTS = st.sampled_from([1, 2, 3, 6])
ALONE = PeekConfig(lanes="none")
"""The default policy without its lanes."""


@dataclass
class Definition:
    """ratio(v) = sum over requests below v of wait ** exponent / uncached tokens below v."""

    scene: Scene
    exponent: int

    def __post_init__(self) -> None:
        self.facts = self.scene.facts()
        self.nodes = self.scene.naive_tree().nodes()

    def below(self, top: Place) -> list[Fact]:
        namespace, head = top
        return [f for f in self.facts if f.row.namespace == namespace and f.row.symbols[: len(head)] == head]

    def children(self, top: Place) -> list[Place]:
        """Tree nodes whose closest node above is `top`."""
        found = []
        for node in self.nodes:
            above = [prefix for prefix in prefixes(node)[:-1] if prefix in self.nodes]
            if (above[-1] if above else (node[0], ())) == top:
                found.append(node)
        return found

    def ratio(self, top: Place) -> Fraction:
        """Every uncached symbol of the subtree and of the edge to it is paid once."""
        below = self.below(top)
        edge_start = max((len(p[1]) for p in prefixes(top)[:-1] if p in self.nodes), default=0)
        symbols = {p for f in below for p in prefixes(f.row.place) if len(p[1]) > edge_start}
        uncached = sum(longest(self.scene.cached, p) < len(p[1]) for p in symbols) * self.scene.unit
        ends = sum(max(1, f.num_tokens - len(f.row.symbols) * self.scene.unit) for f in below)
        benefit = sum(Fraction(int(self.scene.now - f.row.arrival_time)) ** self.exponent for f in below)
        return benefit / (uncached + ends)

    def depth_first(self, top: Place) -> list[Fact]:
        own = [fact for fact in self.facts if fact.row.place == top]
        return own + self.in_turn(self.children(top))

    def in_turn(self, tops: list[Place]) -> list[Fact]:
        """By falling ratio; ties to whose oldest request came first."""
        tops.sort(key=lambda top: (-self.ratio(top), self.below(top)[0].rank))
        return [fact for top in tops for fact in self.depth_first(top)]

    def order(self, defers: bool) -> tuple[list[str], dict[str, int]]:
        roots = [(namespace, ()) for namespace in {row.namespace for row in self.scene.rows}]
        sections: dict[str, int] = {}
        claimed: list[Fact] = []
        for fact in self.in_turn(roots):
            known = fact.cached_len + TAU
            if defers and max(fact.coming_len, self.shared(fact, claimed)) > known:
                sections[fact.request_id] = SIBLING
                continue
            claimed.append(fact)
            sections[fact.request_id] = WARM if 2 * fact.cached_len >= fact.num_tokens else PIONEER
        saved = {fact.request_id: fact.cached_len for fact in self.facts}
        turn = {name: (place, -saved[name] if place == WARM else 0) for name, place in sections.items()}
        return sorted(sections, key=lambda name: turn[name]), sections

    def shared(self, fact: Fact, others: list[Fact]) -> int:
        """Tokens of its prompt that the best of `others` computes or has computed."""
        same = [other.row.symbols for other in others if other.row.namespace == fact.row.namespace]
        return max((common_length(fact.row.symbols, s) for s in same), default=0) * self.scene.unit


@given(scene=scenes(max_size=7, under_way=True), exponent=EXPONENTS, defers=st.booleans())
def test_the_order_is_that_of_the_definition(scene: Scene, exponent: int, defers: bool) -> None:
    prepared = scene.prepare(defers_siblings=defers)
    order = prepared.order(ClusterResponseRatio(float(exponent)))
    expected, sections = Definition(scene, exponent).order(defers)
    assert order == expected
    assert prepared.sections() == sections


@given(scene=scenes(min_size=3, max_size=7), data=st.data())
def test_what_an_earlier_plan_found_cached_is_forgotten(scene: Scene, data: st.DataObject) -> None:
    planner = planner_of(scene.rows, ALONE)
    earlier = data.draw(caches(scene.rows), label="cached earlier")
    planner.plan(cache_of(earlier, scene.unit), scene.now)
    order = planner.plan(scene.cache(), scene.now)
    assert order == planner_of(scene.rows, ALONE).plan(scene.cache(), scene.now)


def test_an_emptied_cache_helps_nobody() -> None:
    """Below a branch that this walk left, an edge that matched in the walk before is not cached."""
    head, side = (1,) * 10, (2,) * 10
    rows = rows_of(head + side + (3,) * 40, head + side + (4,) * 40, head + (5,) * 200)
    planner = planner_of(rows, ALONE)
    planner.plan(cache_of([rows[1].place]), NOW)
    assert planner.plan(cache_of([]), NOW) == ["r0", "r1", "r2"]


# -- what follows from the definition -----------------------------------------------------------------


@given(scene=scenes(min_size=3))
def test_everybody_below_a_node_goes_together_but_for_the_warm(scene: Scene) -> None:
    prepared = scene.prepare()
    order = prepared.order(ClusterResponseRatio())
    sections = prepared.sections()
    definition = Definition(scene, 1)
    for node, count in definition.nodes.items():
        below = [f.request_id for f in definition.below(node)]
        assert len(below) == count
        places = [order.index(name) for name in below if sections[name] == PIONEER]
        assert not places or max(places) - min(places) == len(places) - 1, node


@given(rows=queues(max_size=6), alone=st.integers(1, 200), exponent=st.sampled_from([0.5, 1.0, 6.0, 20.0]))
def test_a_singleton_moves_ahead_as_its_wait_grows(
    rows: tuple[Arrival, ...], alone: int, exponent: float
) -> None:
    ranks = []
    for wait in (64, 80, 200, 1000, 10**6, 10**9):
        single = Arrival("single", (99,) * alone, NOW - wait)
        order = Scene((single, *rows)).prepare().order(ClusterResponseRatio(exponent))
        ranks.append(order.index("single"))
    assert ranks == sorted(ranks, reverse=True)
    together = rows_of([1] * 9, [1] * 9, [1] * 9)
    ahead = Arrival("single", (99,) * alone, -1e9)
    assert Scene((ahead, *together)).prepare().order(ClusterResponseRatio(exponent))[0] == "single"


def test_a_larger_exponent_favours_who_waits_longest() -> None:
    """Two old tokens' worth of work against ten young ones of the same cluster."""
    rows = (Arrival("old", (9,) * 100, 0.0), *(Arrival(f"y{i}", (1,) * 100 + (i,), 44.0) for i in range(10)))
    first = {k: Scene(rows).prepare().order(ClusterResponseRatio(k))[0] for k in (1.0, 2.0, 6.0)}
    assert first == {1.0: "y0", 2.0: "old", 6.0: "old"}  # 64**k / 100 against 10 * 20**k / 110


def test_a_shared_prefix_is_paid_once() -> None:
    """Three requests of 101 tokens that share 100 cost 103 together: more a token than one of 50."""
    rows = rows_of([9] * 50, [1] * 100 + [2], [1] * 100 + [3], [1] * 100 + [4], step=0.0)
    assert Scene(rows).prepare().order(ClusterResponseRatio()) == ["r1", "r2", "r3", "r0"]
    assert Scene(rows[:3]).prepare().order(ClusterResponseRatio()) == ["r0", "r1", "r2"]


def test_everybody_costs_a_token_at_least() -> None:
    """Ten equal prompts of 10 tokens cost 20: 10 x 10 s / 20 loses against 63 s / 11."""
    rows = (Arrival("single", (9,) * 10, 1.0), *(Arrival(f"r{i}", (1,) * 10, 54.0) for i in range(10)))
    assert Scene(rows).prepare().order(ClusterResponseRatio(1.0))[0] == "single"


@pytest.mark.parametrize(("cached", "first"), [(50, "warm"), (49, "r0")])
def test_the_mostly_cached_go_first(cached: int, first: str) -> None:
    """Half of its tokens in the cache, however large the ratios of the others are."""
    rows = (*rows_of([1] * 4, [1] * 4, [1] * 4), Arrival("warm", (7,) * 100, 60.0))
    scene = Scene(rows, (("", (7,) * cached),))
    assert scene.prepare().order(ClusterResponseRatio())[0] == first


def test_among_the_mostly_cached_the_most_cached_go_first() -> None:
    """However old the others are; equals by ratio."""
    rows = (
        Arrival("short", (1,) * 20, 0.0),
        Arrival("cold", (4,) * 100, 0.0),
        Arrival("long", (2,) * 100, 59.0),
        Arrival("its twin", (2,) * 100, 60.0),
        Arrival("longer", (3,) * 101, 61.0),
    )
    cached = (("", (1,) * 20), ("", (2,) * 90), ("", (3,) * 90))
    order = Scene(rows, cached).prepare().order(ClusterResponseRatio())
    assert order == ["long", "its twin", "longer", "short", "cold"]


# -- engines that show a prefix when its prefill ends -------------------------------------------------


@given(scene=scenes(under_way=True))
def test_nobody_is_deferred_on_engines_that_share_at_once(scene: Scene) -> None:
    prepared = scene.prepare(defers_siblings=False)
    prepared.order(ClusterResponseRatio())
    assert SIBLING not in prepared.sections().values()


def test_siblings_of_a_cold_prefix_wait_for_its_pioneer() -> None:
    rows = rows_of([1] * 50 + [2], [1] * 50 + [3], [1] * 50 + [4], [8] * 60)
    prepared = Scene(rows).prepare(defers_siblings=True)
    assert prepared.order(ClusterResponseRatio()) == ["r0", "r3", "r1", "r2"]
    assert prepared.sections() == {"r0": PIONEER, "r1": SIBLING, "r2": SIBLING, "r3": PIONEER}


@pytest.mark.parametrize(("shared", "second"), [(32, PIONEER), (33, SIBLING)])
def test_up_to_tau_tokens_may_be_computed_twice(shared: int, second: int) -> None:
    rows = rows_of([1] * shared + [2], [1] * shared + [3])
    prepared = Scene(rows).prepare(defers_siblings=True)
    prepared.order(ClusterResponseRatio())
    assert list(prepared.sections().values()) == [PIONEER, second]


@pytest.mark.parametrize(("coming", "section"), [(32, PIONEER), (33, SIBLING)])
def test_a_prefill_under_way_makes_a_sibling(coming: int, section: int) -> None:
    scene = Scene(rows_of([1] * 90, [2] * 900, [2] * 900), in_flight=(("", (1,) * coming),))
    prepared = scene.prepare(defers_siblings=True)
    order = prepared.order(ClusterResponseRatio())
    assert prepared.sections() == {"r0": section, "r1": PIONEER, "r2": SIBLING}
    assert order.index("r0") == (0 if section == PIONEER else 1)


# -- requests that came back --------------------------------------------------------------------------


def test_equal_prompts_go_by_arrival_time() -> None:
    """Who came back after a preemption stands where it stood."""
    planner = planner_of(rows_of([1] * 50, [1] * 50, [1] * 50), ALONE)
    planner.remove("r0", admitted=False)
    planner.add(PendingRequest("r0", [1] * 50, 0.0))
    assert planner.plan(cache_of([]), NOW) == ["r0", "r1", "r2"]


def test_equal_ratios_go_by_arrival_time() -> None:
    """The oldest below each branch decides, not who was added first."""
    rows = tuple(Arrival(f"r{i}", key, NOW) for i, key in enumerate([(1, 1), (1, 2), (1, 3)]))  # wait: 1 ms
    rows = tuple(replace(row, arrival_time=NOW - 1e-4 * (3 - i)) for i, row in enumerate(rows))
    planner = planner_of(rows, ALONE)
    planner.remove("r0", admitted=False)
    planner.add(rows[0].request())
    assert planner.plan(cache_of([]), NOW) == ["r0", "r1", "r2"]
