"""What a plan knows of cache and queue, each found at most once a plan.

`Signals` writes what the waiting requests have cached and share; `Demand` turns the marks of the same walk
into what the queue needs of the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.eviction.base import EvictionPolicy
from peek.eviction.index import DemandIndex, MarkIndex, SymbolIndex, peak_demand, shared_levels
from peek.planner.in_flight import PrefillsInFlight
from peek.trie.cache_answers import unit_tokens_of
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class Signals:
    """Brings `cached_len`, `coming_len` and the tree's signals up to date when somebody asks for them.

    Args:
        tree: the waiting requests.
        in_flight: the prefills under way, None where the engine shows a prefix at once.
    """

    __slots__ = ("_in_flight", "_refreshed", "_theta", "_tree", "_walk", "_walked", "cache")

    def __init__(self, tree: PendingTree, in_flight: PrefillsInFlight | None) -> None:
        self.cache: CacheView | None = None
        """The cache of the last plan."""
        self._tree = tree
        self._in_flight = in_flight
        self._walk = DualWalk(tree)
        self._walked = False
        self._refreshed: i64 = -1
        self._theta: i64 = -1

    def look_at(self, cache: CacheView) -> None:
        """A plan begins: nothing is known of this cache's present state.  O(1)."""
        self.cache = cache
        self._walked = False

    def match_cache(self) -> int:
        """Write `cached_len` and `coming_len`, unless this plan has; returns the calls into the cache.

        The caller holds the tree.  Cost and errors of `DualWalk.walk`.
        """
        cache = self.cache
        if self._walked or cache is None:
            return 0
        if self._in_flight is not None:
            self._in_flight.note_coming(self._tree, unit_tokens_of(cache))
        self._walk.walk_held(cache)
        self._walked = True
        return self._walk.advances

    def match_cache_now(self, caller: str) -> int:
        """`match_cache` for a call of the planner, named `caller`, that does not hold the tree."""
        self._tree.enter(caller)
        try:
            return self.match_cache()
        finally:
            self._tree.leave()

    def match_queue(self, theta_tokens: i64, unit_tokens: i64) -> None:
        """Write score, cluster and head, unless the tree stands as it did.  O(n + nodes).

        The caller holds the tree.
        """
        theta = (theta_tokens + unit_tokens - 1) // unit_tokens
        if self._refreshed != self._tree.version or self._theta != theta:
            self._tree.refresh_held(theta)
            self._refreshed = self._tree.version
            self._theta = theta

    def walk_epoch(self) -> int:
        """The number of a walk of the last plan's cache whose marks are in the tree; walks if need be."""
        if not self._walked or self._walk.epoch != self._tree.epoch:
            self._walked = False
            self.match_cache_now("Planner.eviction_score")
        return self._walk.epoch


@final
class Demand:
    """Scores of cached nodes or blocks; see `Planner.eviction_score`."""

    __slots__ = ("_index", "_policy", "_signals", "_tree")

    def __init__(self, tree: PendingTree, signals: Signals, policy: EvictionPolicy) -> None:
        self._tree = tree
        self._signals = signals
        self._policy = policy
        self._index: DemandIndex = SymbolIndex(tree) if tree.chained else MarkIndex(tree)

    def score(self, node_id: int, idle_s: float) -> float:
        """0.0 for what no waiting request needs."""
        if len(self._tree) == 0:
            return 0.0
        if not self._tree.chained:
            cache = self._signals.cache
            if cache is None:
                return 0.0
            self._index.refresh(cache, self._signals.walk_epoch())
        node = self._index.find(node_id)
        if node is None:
            return 0.0
        return self._policy.score(peak_demand(node), shared_levels(node), idle_s)
