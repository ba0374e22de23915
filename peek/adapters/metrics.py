"""Counters of an adapter, for Prometheus where `prometheus_client` is installed.

They go to the default registry, next to the engine's own.  With the engine in a process of its own that
registry is the engine's; the counters are on the adapter in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from peek.adapters.shield import Shield
    from peek.planner import Planner


class Counted(Protocol):
    """An engine's adapter, as far as `Attachment` and the metrics know it."""

    planner: Planner
    reordered: int
    """Cycles that changed the order of the engine's queue."""
    cached_real: int
    """Prompt tokens of admitted requests that the engine found in its cache."""
    protected_evictions: int
    """Candidates for eviction that were passed over because a waiting request needs them."""

    def detach(self) -> None:
        """Give the engine its own objects back; may be called again."""
        ...


_COUNTERS = {
    "peek_cycles": "Planning cycles",
    "peek_reordered_cycles": "Cycles that changed the order of the queue",
    "peek_planned_requests": "Requests ordered, summed over cycles",
    "peek_policy_faults": "Cycles in which somebody's policy failed and arrival order stood",
    "peek_cached_tokens_predicted": "Prompt tokens of admitted requests expected in the cache",
    "peek_cached_tokens_real": "Prompt tokens of admitted requests found in the cache",
    "peek_fair_lane_admissions": "Requests admitted through the fair lane",
    "peek_protected_evictions": "Cached blocks or nodes passed over because a waiting request needs them",
    "peek_fallbacks": "Internal errors that left the engine in stock order",
    "peek_plan_seconds": "Time spent planning",
}

_registered: dict[str, Any] = {}
"""Prometheus allows each name once a process; schedulers share the metrics, apart by their label."""


def snapshot(adapter: Counted, shield: Shield) -> dict[str, float]:
    """All counters by name."""
    totals = adapter.planner.totals()
    return {
        "peek_cycles": totals["plans"],
        "peek_reordered_cycles": adapter.reordered,
        "peek_planned_requests": totals["planned"],
        "peek_policy_faults": totals["policy_faults"],
        "peek_cached_tokens_predicted": totals["cached_expected"],
        "peek_cached_tokens_real": adapter.cached_real,
        "peek_fair_lane_admissions": totals["fair_admitted"],
        "peek_protected_evictions": adapter.protected_evictions,
        "peek_fallbacks": shield.fallbacks,
        "peek_plan_seconds": totals["plan_s"],
    }


class EngineMetrics:
    """Passes the growth of the counters on to Prometheus; does nothing where it is not installed.

    Args:
        engine: the label that tells schedulers of one process apart.
    """

    def __init__(self, engine: str) -> None:
        self._last: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._counters = {name: counter.labels(engine=engine) for name, counter in _register().items()}

    def update(self, adapter: Counted, shield: Shield) -> None:
        """Called once a step; O(counters)."""
        if not self._counters:
            return
        last = self._last
        for name, value in snapshot(adapter, shield).items():
            if value > last[name]:
                self._counters[name].inc(value - last[name])
                last[name] = value


def _register() -> dict[str, Any]:
    try:
        from prometheus_client import Counter
    except ImportError:
        return {}
    for name, text in _COUNTERS.items():
        if name not in _registered:
            _registered[name] = Counter(name, text, ["engine"])
    return _registered
