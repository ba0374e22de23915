"""Demand-aware eviction where SGLang's cache takes a strategy object.

A strategy ranks evictable leaves; the lowest goes first.  `DemandStrategy` ranks by what waiting requests
need, then by the engine's own strategy, so a cache without demand evicts exactly as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DemandStrategy:
    """An `EvictionStrategy` in front of another.

    Args:
        inner: the strategy that SGLang was configured with.
        demand: the need for a cached node by its id; 0.0 if nobody waits for it.  O(levels).
    """

    def __init__(self, inner: Any, demand: Callable[[int], float]) -> None:
        self.inner = inner
        self._demand = demand

    def get_priority(self, node: Any) -> tuple[float, Any]:
        """What SGLang asks for every leaf when it evicts."""
        return self._demand(node.id), self.inner.get_priority(node)
