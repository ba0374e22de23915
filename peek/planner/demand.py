"""How much the queue needs what is cached: an eviction policy, and the index it is asked through."""

from __future__ import annotations

from typing import final

from peek.eviction.base import EvictionPolicy
from peek.eviction.index import DemandIndex, MarkIndex, SymbolIndex, peak_demand, shared_levels
from peek.planner.signals import Signals
from peek.trie.pending_tree import PendingTree


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
