"""The priority index against its definition, symbol by symbol, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from random import Random

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
    facts_of,
    longest,
    planner_of,
    rows_of,
    scenes,
)

from peek import InvalidConfig, PeekConfig, PeekPolicy
from peek.planner.plan import ORDERED
from peek.policy.default import PeekOptions
from peek.policy.default.frontier import (
    MIN_WAIT_S,
    MOST_LEVERAGE,
    PATIENCE,
    Ages,
    index,
    sharing_of,
    size,
)
from peek.policy.sections import PIONEER, SIBLING
from peek.testing.twins import Place, common_length, prefixes

BIASES = st.sampled_from([0.0, 0.3, 1.0])
INDEX = PeekConfig.from_label("peek")


@dataclass
class Definition:
    """The pieces of a trie with one symbol to a node, and one greedy choice after another.

    `learned` has, by request, the ratio of the answer that is expected.
    """

    scene: Scene
    policy: PeekPolicy
    learned: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = facts_of(self.scene)
        self.paid: set[Place] = set()
        for fact in self.facts:
            self.paid.update(p for p in prefixes(fact.row.place) if self.cached(p))
        ages_s: dict[str, list[float]] = {}
        for _, members, _ in self.competing(list(self.facts)):
            ages_s.setdefault(members[0].row.namespace, []).append(self.age_s(members))
        self.mean_s = {namespace: sum(each) / len(each) for namespace, each in ages_s.items()}

    def age_s(self, members: list[Fact]) -> float:
        return max(MIN_WAIT_S, self.scene.now - members[0].row.arrival_time)

    def cached(self, place: Place) -> bool:
        return longest(self.scene.cached, place) == len(place[1])

    def below(self, top: Place) -> list[Fact]:
        namespace, head = top
        return [f for f in self.facts if f.row.namespace == namespace and f.row.symbols[: len(head)] == head]

    def index(self, top: Place, members: list[Fact], work: float) -> tuple[float, int]:
        """Smallest first; rounded, because sums go another way here than in the library."""
        n = len(members)
        at_risk = n * sum(
            self.scene.unit / len(self.below(p)) for p in prefixes(top) if p in self.paid or self.cached(p)
        )
        tokens = float(sum(fact.num_tokens for fact in members))
        lasting = sum(fact.num_tokens * self.expects(fact) for fact in members)
        age_s = self.age_s(members)
        plain = size(tokens / n, float(len(top[1]) * self.scene.unit), work / n)
        oldest_s = max(
            self.scene.now - fact.row.arrival_time for fact in self.facts if fact.row.namespace == top[0]
        )
        sharing = sharing_of(tokens / n, plain, work / n) if n > 1 else 1.0
        ages = Ages()
        ages.oldest_s, ages.mean_s = max(MIN_WAIT_S, oldest_s), self.mean_s[top[0]]
        lightness = (plain * lasting / tokens) ** -0.4
        key = index(at_risk / work, lightness, sharing, age_s, ages, self.policy.power)
        return -float(f"{key:.10g}"), members[0].rank

    def expects(self, fact: Fact) -> float:
        return self.learned.get(fact.request_id, 1.0)

    def own(self, fact: Fact) -> int:
        """Tokens behind the key."""
        return max(1, fact.num_tokens - len(fact.row.symbols) * self.scene.unit)

    def competing(self, waiting: list[Fact]) -> list[tuple[Place, list[Fact], int]]:
        """Every request whose path is paid, and every highest node that is not: where, members and work."""
        found = []
        tops: dict[Place, list[Fact]] = {}
        for fact in waiting:
            unpaid = [p for p in prefixes(fact.row.place) if p not in self.paid]
            if unpaid:
                tops.setdefault(unpaid[0], []).append(fact)
            else:
                found.append((fact.row.place, [fact], self.own(fact)))
        for top, members in tops.items():
            start = len(top[1]) - 1
            symbols = {p for f in members for p in prefixes(f.row.place) if len(p[1]) > start}
            work = len(symbols) * self.scene.unit + sum(map(self.own, members))
            found.append(((top[0], top[1][:start]), members, work))
        return found

    def pieces(self, waiting: list[Fact]) -> list[tuple[tuple[float, int], list[Fact]]]:
        return [(self.index(top, members, work), members) for top, members, work in self.competing(waiting)]

    def greedy(self) -> list[Fact]:
        """The best piece goes; who pays for a prefix is the best of those below it, prefix by prefix."""
        order: list[Fact] = []
        left = list(self.facts)
        while left:
            members = min(self.pieces(left))[1]
            while len(members) > 1 or members[0].row.place not in self.paid | {
                (members[0].row.namespace, ())
            }:
                top = next(p for p in prefixes(members[0].row.place) if p not in self.paid)
                self.paid.add(top)
                members = min(self.pieces(members))[1]
            order.append(members[0])
            left.remove(members[0])
        return order

    def order(self, defers: bool) -> tuple[list[str], dict[str, int]]:
        sections: dict[str, int] = {}
        claimed: list[Fact] = []
        for fact in self.greedy():
            same = [c.row.symbols for c in claimed if c.row.namespace == fact.row.namespace]
            shared = max((common_length(fact.row.symbols, s) for s in same), default=0) * self.scene.unit
            waits = defers and max(fact.coming_len, shared) > fact.cached_len + TAU
            sections[fact.request_id] = SIBLING if waits else PIONEER
            if not waits:
                claimed.append(fact)
        return sorted(sections, key=lambda name: sections[name] == SIBLING), sections


@given(scene=scenes(max_size=7, under_way=True), bias=BIASES, defers=st.booleans())
def test_the_order_is_that_of_the_definition(scene: Scene, bias: float, defers: bool) -> None:
    policy = PeekPolicy(PeekOptions(mean_bias=bias))
    prepared = scene.prepare(defers_siblings=defers)
    expected, sections = Definition(scene, policy).order(defers)
    assert prepared.order(policy) == expected
    assert prepared.sections() == sections or not defers  # sections serve engines that defer siblings


@given(ours=scenes(max_size=5), others=scenes(max_size=5), gate=st.booleans())
def test_no_other_namespace_changes_who_goes_first_among_us(ours: Scene, others: Scene, gate: bool) -> None:
    """Neither by what its prompts share nor by what of them is cached."""

    def moved(scene: Scene, space: str) -> Scene:
        rows = tuple(
            replace(r, request_id=space + r.request_id, namespace=space + r.namespace) for r in scene.rows
        )
        return replace(scene, rows=rows, cached=tuple((space + n, s) for n, s in scene.cached), now=NOW)

    a, b = moved(ours, "a"), replace(moved(others, "b"), unit=ours.unit)
    rows = tuple(sorted((*a.rows, *b.rows), key=lambda row: row.arrival_time))
    both = Scene(rows, (*a.cached, *b.cached), unit=ours.unit)
    alone, together = (planner_of(s.rows, INDEX, in_flight_gate=gate).plan(s.cache(), NOW) for s in (a, both))
    assert [name for name in together if name.startswith("a")] == alone


@pytest.mark.parametrize("waiting", [5, 500])
def test_where_nothing_is_shared_it_is_a_power_of_the_age_over_one_of_the_length(waiting: int) -> None:
    rnd = Random(waiting)
    ages = sorted((rnd.uniform(1.0, 60.0) for _ in range(waiting)), reverse=True)
    rows = tuple(Arrival(f"r{i}", (i,) * rnd.randint(1, 4000), NOW - age) for i, age in enumerate(ages))
    sizes = {row.request_id: size(len(row.symbols), 0.0, len(row.symbols) + 1.0) for row in rows}
    mean = sum(ages) / waiting
    expected = sorted(
        rows, key=lambda r: -((1 + (NOW - r.arrival_time) / (8 * mean)) ** 8) / sizes[r.request_id] ** 2.4
    )
    assert planner_of(rows, INDEX).plan(cache_of([]), NOW) == [row.request_id for row in expected]


def test_arrival_order_where_nothing_is_shared_is_to_be_had() -> None:
    config = PeekConfig(options={"unshared": "arrival"})
    plan = planner_of(rows_of([1] * 90, [2] * 5, [3] * 50), config).plan(cache_of([]), NOW)
    assert plan == ["r0", "r1", "r2"]
    assert plan.stood_aside


def test_what_everybody_waits_for_is_at_no_risk() -> None:
    """A cached system prompt counts less for each of a thousand than a session's own history."""
    rows = [Arrival(f"r{i}", (*(1,) * 64, i, i), 1.0) for i in range(1000)]
    rows.append(Arrival("session", (*(2,) * 64, 0, 0), 60.0))  # waits a sixteenth of the others' time
    cached = [("", (1,) * 64), ("", (2,) * 64)]
    assert planner_of(rows, INDEX).plan(cache_of(cached), NOW)[0] == "session"
    assert planner_of(rows, INDEX).plan(cache_of(cached[:1]), NOW)[-1] == "session"


def test_the_prefix_once_paid_its_siblings_follow() -> None:
    rows = rows_of([1] * 50 + [2], [8] * 60, [1] * 50 + [3], [9] * 60, [1] * 50 + [4], step=1.0)
    assert planner_of(rows, INDEX).plan(cache_of([]), NOW) == ["r0", "r2", "r4", "r1", "r3"]


def template(name: str, symbol: int, sharers: int, age_s: float, namespace: str = "") -> list[Arrival]:
    """So many requests for one cold prompt of 400 tokens, each with 10 of its own."""
    return [
        Arrival(f"{name}{i}", (*(symbol,) * 400, *(symbol + 100 * (i + 1),) * 10), NOW - age_s, namespace)
        for i in range(sharers)
    ]


@pytest.mark.parametrize(
    ("age_s", "first"),
    [(30.0, "many"), (29.0, "many"), (27.0, "few")],
    ids=["at once", "nearly at once", "younger"],
)
def test_among_those_that_came_together_the_most_shared_goes_first(age_s: float, first: str) -> None:
    """40 sharers are worth more than 20 to a burst; to one of nine tenths of the age, not enough."""
    rows = [*template("few", 1, 20, 30.0), *template("many", 2, 40, age_s)]
    assert planner_of(rows, INDEX).plan(cache_of([]), NOW)[0].startswith(first)


def test_the_oldest_of_another_namespace_is_not_ones_own() -> None:
    rows = [*template("few", 1, 20, 30.0), *template("many", 2, 40, 30.0)]
    old = Arrival("old", (7,) * 50, NOW - 3000.0, "other")
    config = PeekConfig(options={"grace_tokens": inf})
    plan = planner_of([old, *rows], config).plan(cache_of([]), NOW)
    assert next(name for name in plan if name != "old").startswith("many")


@given(scene=scenes(max_size=6), alone=st.integers(1, 200), bias=BIASES)
def test_a_request_moves_ahead_as_its_wait_grows(scene: Scene, alone: int, bias: float) -> None:
    """In a namespace of its own.  In the others' it would make all of them younger than the mean."""
    ranks = []
    policy = PeekPolicy(PeekOptions(mean_bias=bias))
    for wait in (64, 200, 1000, 10**6, 10**24):
        single = Arrival("single", (99,) * alone, NOW - wait, "apart")
        order = replace(scene, rows=(single, *scene.rows)).prepare().order(policy)
        ranks.append(order.index("single"))
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1] == 0


@given(old=st.integers(1, 40), new=st.integers(2, 40), hit=st.floats(0.0, 1.0), bias=st.floats(0.0, 0.5))
def test_no_request_is_passed_by_one_that_has_waited_less_than_the_bound(
    old: int, new: int, hit: float, bias: float
) -> None:
    """Whatever of the newer one is cached: leverage and a root of the sizes against ages and the mean age."""
    policy = PeekPolicy(PeekOptions(mean_bias=bias))
    sizes = size(old, 0.0, old + 1.0) / size(new, int(hit * new), 1.0)
    bound = (MOST_LEVERAGE * sizes**0.4) ** (policy.power / PATIENCE)
    young = 8 * (int(bound) + 1)  # so many are one second old that the old one does not make the mean
    share = PATIENCE / (young + 1)
    age_s = max(1.0, 1.001 * (bound * (share * young + 1) - share * young) / (1 - share * (bound - 1)))
    rows = [Arrival("old", (1,) * old, NOW - age_s), Arrival("new", (2,) * new, NOW - 1.0)]
    rows += [Arrival(f"r{number}", (number,), NOW - 1.0) for number in range(3, young + 2)]
    cached = cache_of([("", (2,) * int(hit * new))])
    config = PeekConfig(options={"mean_bias": bias, "grace_tokens": inf})
    plan = planner_of(tuple(rows), config).plan(cached, NOW)
    assert plan.index("old") < plan.index("new")


def test_the_work_below_a_prefix_is_summed_beyond_64_bits() -> None:
    rows = [Arrival(f"big{i}", (1, 2, 9 + i), num_tokens=2**53) for i in range(1025)]
    rows += [Arrival(f"half{i}", (7, 2, 9 + i), num_tokens=2**52) for i in range(100)]
    assert planner_of(rows).plan(cache_of([]), NOW)[0] == "half0"


@pytest.mark.parametrize("arrival_time", [-1.5e308, -1e300, 0.0, 1.5e308])
@pytest.mark.parametrize("now", [-1.5e308, 1.0, 1.5e308])
def test_ages_beyond_all_clocks_are_compared_like_others(arrival_time: float, now: float) -> None:
    rows = [Arrival(f"r{i}", (1, 2, 9 + i), (arrival_time, 0.0)[i % 2]) for i in range(6)]
    assert len(planner_of(rows, strict=True).plan(cache_of([]), now)) == len(rows)


@given(scene=scenes(min_size=2))
def test_the_planner_says_that_it_ordered(scene: Scene) -> None:
    plan = planner_of(scene.rows, INDEX).plan(scene.cache(), scene.now)
    assert plan.reason == ORDERED
    assert plan.reordered == (plan != [row.request_id for row in scene.rows])


@pytest.mark.parametrize("bias", [-0.1, 1.1, "x", True, float("nan")])
def test_a_dial_out_of_range_is_refused(bias: object) -> None:
    with pytest.raises(InvalidConfig, match=r"mean_bias is .*; need a number from 0 to 1"):
        PeekConfig(options={"mean_bias": bias})
    if type(bias) is float:
        with pytest.raises(InvalidConfig, match="mean_bias is"):
            PeekPolicy(PeekOptions(mean_bias=bias))


def test_another_word_for_unshared_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unshared is 'fcfs'; valid: index, arrival"):
        PeekOptions(unshared="fcfs")
