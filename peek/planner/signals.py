"""What a plan knows of cache and queue: the waiting requests' signals, written at most once a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.planner.in_flight import PrefillsInFlight
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

    __slots__ = ("_in_flight", "_refreshed", "_tree", "_walk", "_walked", "cache")

    def __init__(self, tree: PendingTree, in_flight: PrefillsInFlight | None) -> None:
        self.cache: CacheView | None = None
        """The cache of the last plan."""
        self._tree = tree
        self._in_flight = in_flight
        self._walk = DualWalk(tree)
        self._walked = False
        self._refreshed: i64 = -1

    def look_at(self, cache: CacheView) -> None:
        """A plan begins: nothing is known of this cache's present state.  O(1)."""
        self.cache = cache
        self._walked = False

    def match_cache(self) -> int:
        """Write `cached_len` and `coming_len`, unless this plan has; returns the calls into the cache.

        Cost of `DualWalk.walk`.
        """
        cache = self.cache
        if self._walked or cache is None:
            return 0
        if self._in_flight is not None:
            self._in_flight.note_coming(self._tree, cache.unit_tokens)
        self._walk.walk(cache)
        self._walked = True
        return self._walk.advances

    def match_queue(self, theta_tokens: i64, unit_tokens: i64) -> None:
        """Write score, cluster and head, unless the tree stands as it did.  O(n + nodes)."""
        if self._refreshed != self._tree.version:
            self._tree.refresh((theta_tokens + unit_tokens - 1) // unit_tokens)
            self._refreshed = self._tree.version

    def walk_epoch(self) -> int:
        """The number of a walk of the last plan's cache whose marks are in the tree; walks if need be."""
        if not self._walked or self._walk.epoch != self._tree.epoch:
            self._walked = False
            self.match_cache()
        return self._walk.epoch
