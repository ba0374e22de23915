"""Queues, caches and planners for the tests of everything above the pending tree.

A `Scene` is one moment: who waits (`Row`s in arrival order), what is cached, what is being prefilled.
It builds the library's objects, and it computes every signal again from the definitions (`facts`).
All times are whole seconds and the oldest request has waited 64 of them, so that powers and sums of
waits are exact and an oracle in fractions must give the very same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from peek import AdmissionPolicy, Cycle, DualWalk, PeekConfig, PendingRequest, PendingTree, Planner
from peek.trie.tree_view import TreeView
from support.twins import NaivePendingTree, Place, common_length, prefixes

NOW = 64.0
THETA = 32
TAU = 32


@dataclass(frozen=True)
class Row:
    """One waiting request."""

    request_id: str
    symbols: tuple[int, ...]
    arrival_time: float = 0.0
    namespace: str = ""
    num_tokens: int = 0
    arrival_work: int = 0

    @property
    def place(self) -> Place:
        return self.namespace, self.symbols

    def request(self) -> PendingRequest:
        key = list(self.symbols)
        return PendingRequest(self.request_id, key, self.arrival_time, self.namespace, self.num_tokens)


@dataclass(frozen=True)
class Fact:
    """The signals of one request, from their definitions; lengths in tokens unless said otherwise."""

    row: Row
    rank: int
    num_tokens: int
    cached_len: int
    coming_len: int
    score: int
    cluster: Place | None
    cluster_size: int
    head: Place | None

    @property
    def request_id(self) -> str:
        return self.row.request_id

    @property
    def cluster_depth(self) -> int:
        """In symbols."""
        return 0 if self.cluster is None else len(self.cluster[1])

    @property
    def uncached(self) -> int:
        return self.num_tokens - self.cached_len


@dataclass(frozen=True)
class Prepared:
    """What a policy is called with."""

    queue: list[PendingRequest]
    cycle: Cycle

    def order(self, policy: AdmissionPolicy) -> list[str]:
        return ids(policy.order(self.queue, self.cycle))

    def sections(self) -> dict[str, int]:
        return {request.request_id: request.section for request in self.queue}


@dataclass(frozen=True)
class Scene:
    rows: tuple[Row, ...]
    cached: tuple[Place, ...] = ()
    in_flight: tuple[Place, ...] = ()
    unit: int = 1
    now: float = NOW

    def cache(self) -> TreeView:
        return cache_of(self.cached, self.unit)

    def planner(self, label: str) -> Planner:
        """A planner that knows the whole queue and has planned nothing yet."""
        return planner_of(self.rows, PeekConfig.from_label(label))

    def plan(self, label: str) -> list[str]:
        return self.planner(label).plan(self.cache(), self.now)

    def prepare(self, theta: int = THETA, work_done: int = 0, defers_siblings: bool = False) -> Prepared:
        tree = PendingTree()
        queue = [row.request() for row in self.rows]
        for row, request in zip(self.rows, queue, strict=True):
            tree.add(request)
            request.num_tokens = row.num_tokens or len(row.symbols) * self.unit
            request.arrival_work = row.arrival_work
            request.coming_len = longest(self.in_flight, row.place) * self.unit
        DualWalk(tree).walk(self.cache())
        tree.refresh(-(-theta // self.unit))
        return Prepared(queue, Cycle(tree, self.now, self.unit, work_done, defers_siblings))

    def naive_tree(self) -> NaivePendingTree:
        tree = NaivePendingTree()
        for row in self.rows:
            tree.insert(row.request_id, row.symbols, row.namespace)
        return tree

    def facts(self, theta: int = THETA) -> list[Fact]:
        """In arrival order."""
        tree = self.naive_tree()
        scores, clusters = tree.scores(), tree.clusters()
        heads = tree.heads(-(-theta // self.unit))
        found = []
        for rank, row in enumerate(self.rows):
            cluster = clusters[row.request_id]
            fact = Fact(
                row=row,
                rank=rank,
                num_tokens=row.num_tokens or len(row.symbols) * self.unit,
                cached_len=longest(self.cached, row.place) * self.unit,
                coming_len=longest(self.in_flight, row.place) * self.unit,
                score=scores[row.request_id],
                cluster=cluster,
                cluster_size=1 if cluster is None else tree.pending_count(cluster[1], cluster[0]),
                head=heads[row.request_id],
            )
            found.append(fact)
        return found


def ids(requests: Iterable[PendingRequest]) -> list[str]:
    return [request.request_id for request in requests]


def longest(places: Iterable[Place], place: Place) -> int:
    """Symbols of `place` that the best of `places` starts with."""
    namespace, symbols = place
    return max((common_length(other, symbols) for ns, other in places if ns == namespace), default=0)


def cache_of(places: Iterable[Place], unit: int = 1) -> TreeView:
    """A cache that holds these sequences and their prefixes."""
    tree = PendingTree()
    for i, (namespace, symbols) in enumerate(places):
        if symbols:
            tree.insert(f"cached-{i}", list(symbols), namespace)
    return TreeView(tree, unit)


class Blocks:
    """A cache with one symbol an entry, so that an entry stands for exactly one prefix; a `CacheTree`."""

    def __init__(self, places: Iterable[Place], unit_tokens: int = 1) -> None:
        self.unit_tokens = unit_tokens
        self.held = sorted({prefix for place in places for prefix in prefixes(place)})
        self.node_ids = {place: number for number, place in enumerate(self.held, start=1)}

    def root(self, namespace: str) -> Place:
        return namespace, ()

    def advance(self, cursor: Place, segment: memoryview, offset: int) -> tuple[int, Place]:
        namespace, symbols = cursor
        assert offset == len(symbols)
        end = offset
        path = (*symbols, *segment)
        while end < len(path) and (namespace, path[: end + 1]) in self.node_ids:
            end += 1
        return end - offset, (namespace, path[:end])

    def node_id(self, cursor: Place) -> int:
        return self.node_ids[cursor]

    def parent_id(self, node_id: int) -> int:
        namespace, symbols = self.held[node_id - 1]
        return self.node_ids.get((namespace, symbols[:-1]), 0)


def planner_of(rows: Iterable[Row], config: PeekConfig | None = None, **options: object) -> Planner:
    planner = Planner(config, **options)
    for row in rows:
        planner.add(row.request())
    return planner


def rows_of(*keys: Sequence[int], step: float = 1.0) -> tuple[Row, ...]:
    """Requests `r0`, `r1`, ... with these keys, one every `step` seconds."""
    return tuple(Row(f"r{i}", tuple(key), i * step) for i, key in enumerate(keys))


# -- strategies ---------------------------------------------------------------------------------------

PIECES = ((1,), (2, 2), (3,) * 31, (3,) * 32, (3,) * 31 + (4,), (5,) * 40, (6,) * 33)
"""What prompts are put together from: lengths around theta and tau, heads that part late."""

PROMPTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(lambda parts: sum(parts, ()))
NAMESPACES = st.sampled_from(["", "", "", "lora"])
GAPS = st.sampled_from([0, 0, 1, 2, 7])


@st.composite
def row_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 8, unit: int = 1) -> tuple[Row, ...]:
    """Queues in arrival order; some requests arrive together, the first at 0."""
    assert max_size * 7 < NOW
    rows: list[Row] = []
    arrival = work = 0
    for i in range(draw(st.integers(min_size, max_size))):
        symbols = draw(PROMPTS)
        tail = draw(st.sampled_from([None, 0, unit - 1, 50]))  # tokens that the key leaves out
        tokens = 0 if tail is None else len(symbols) * unit + tail
        rows.append(Row(f"r{i}", symbols, float(arrival), draw(NAMESPACES), tokens, work))
        arrival += draw(GAPS)
        work += draw(st.sampled_from([0, 10, 100]))
    return tuple(rows)


@st.composite
def cuts(draw: st.DrawFn, rows: Sequence[Row], max_size: int = 4) -> tuple[Place, ...]:
    """Prefixes of some keys."""
    found = []
    for row in draw(st.lists(st.sampled_from(rows), max_size=max_size)):
        end = draw(st.sampled_from([1, 31, 32, 33, 34, 63, 64, 65, len(row.symbols)]))
        found.append((row.namespace, row.symbols[:end]))
    return tuple(found)


@st.composite
def scenes(
    draw: st.DrawFn,
    min_size: int = 1,
    max_size: int = 8,
    under_way: bool = False,
    one_namespace: bool = False,
) -> Scene:
    """Any moment: prompts of one to three pieces, part of them cached, pages of 1 or 16 tokens."""
    unit = draw(st.sampled_from([1, 16]))
    rows = draw(row_lists(min_size, max_size, unit))
    if one_namespace:
        rows = tuple(
            Row(r.request_id, r.symbols, r.arrival_time, "", r.num_tokens, r.arrival_work) for r in rows
        )
    return Scene(rows, draw(cuts(rows)), draw(cuts(rows, 2)) if under_way else (), unit)
