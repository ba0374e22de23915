"""The last plan, for as long as it still stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.planner.plan import LazyPlan, Plan
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class StandingPlan:
    """Keeps a plan until the queue, the cache or too much time has moved on.

    Only caches with a `version` can tell that they have not changed; with any other no plan stands.

    Args:
        lasts_s: how long, on the clock of `Planner.plan`, an order stands that was made from what had been
            waited; 0.0: not at all.
    """

    __slots__ = ("_cache", "_cache_version", "_lasts_s", "_plan", "_planned_at", "_tree_version")

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s: float = lasts_s
        self._plan: Plan | LazyPlan | None = None
        self._planned_at: float = 0.0
        self._tree_version: i64 = -1
        self._cache: object = None
        self._cache_version: object = None

    def find(self, tree: PendingTree, cache: CacheView, now: float) -> Plan | LazyPlan | None:
        """The plan that still stands, None if there is none.  O(1)."""
        if self._plan is None or self._tree_version != tree.version or self._cache is not cache:
            return None
        if not now - self._planned_at < self._lasts_s or self._cache_version != getattr(
            cache, "version", None
        ):
            return None
        return self._plan

    def keep(self, plan: Plan | LazyPlan, tree: PendingTree, cache: CacheView, now: float) -> None:
        """Remember a plan with what it was made from."""
        version: object = getattr(cache, "version", None)
        self._plan = None if version is None else plan
        self._planned_at = now
        self._tree_version = tree.version
        self._cache = cache
        self._cache_version = version

    def drop(self) -> None:
        """Something else than queue and cache has changed."""
        self._plan = None
