"""Queues, caches and planners for the tests of everything above the pending tree.

A `peek.testing.Scene` holds the waiting requests and the cached prompts.  All times are whole seconds, and
the oldest request has waited 64 of them.  So powers and sums of waits are exact, and an oracle that computes
in fractions must give exactly the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from peek import PeekConfig, Planner
from peek.testing.scenes import NOW, Arrival, Scene, cache_of, ids
from peek.testing.strategies import NAMESPACES as NAMES
from peek.testing.strategies import PIECES, caches, prompts, queues, scenes
from peek.testing.twins import NaivePendingTree, Place, longest, prefixes

__all__ = [
    "NAMESPACES", "NOW", "PIECES", "PROMPTS", "TAU", "THETA", "Arrival", "Blocks", "Fact", "Scene",
    "cache_of", "caches", "facts_of", "ids", "longest", "naive_tree", "planner_of", "queues", "rows_of",
    "scenes",
]  # fmt: skip

THETA = 32
TAU = 32

NAMESPACES = st.sampled_from(NAMES)
PROMPTS = prompts()


@dataclass(frozen=True)
class Fact:
    """The signals of one request, from their definitions; lengths in tokens unless said otherwise."""

    row: Arrival
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
        """Depth of the cluster, in symbols."""
        return 0 if self.cluster is None else len(self.cluster[1])

    @property
    def uncached(self) -> int:
        return self.num_tokens - self.cached_len


def naive_tree(rows: Iterable[Arrival]) -> NaivePendingTree:
    tree = NaivePendingTree()
    for row in rows:
        tree.insert(row.request_id, row.symbols, row.namespace)
    return tree


def facts_of(scene: Scene, theta: int = THETA) -> list[Fact]:
    """The facts of all requests of a scene, in arrival order; `theta` are the tokens of the head."""
    tree = naive_tree(scene.rows)
    scores, clusters = tree.scores(), tree.clusters()
    heads = tree.heads(-(-theta // scene.unit))
    found = []
    for rank, row in enumerate(scene.rows):
        name, cluster = row.request_id, clusters[row.request_id]
        cached, coming = (
            longest(places, row.place) * scene.unit for places in (scene.cached, scene.in_flight)
        )
        size = 1 if cluster is None else tree.pending_count(cluster[1], cluster[0])
        tokens = row.tokens(scene.unit)
        found.append(Fact(row, rank, tokens, cached, coming, scores[name], cluster, size, heads[name]))
    return found


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


def planner_of(rows: Iterable[Arrival], config: PeekConfig | None = None, **options: object) -> Planner:
    planner = Planner(config, **options)
    for row in rows:
        planner.add(row.request())
    return planner


def rows_of(*keys: Sequence[int], step: float = 1.0) -> tuple[Arrival, ...]:
    """Requests `r0`, `r1`, ... with these keys, one every `step` seconds."""
    return tuple(Arrival(f"r{i}", tuple(key), i * step) for i, key in enumerate(keys))
