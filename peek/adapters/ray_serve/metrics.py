"""The queue's state as metrics of Ray's: the series of any fleet, and some of the queue's own.

Ray puts `ray_` before their names.
"""

from __future__ import annotations

from typing import Any, Final

from peek.adapters import fleet_metrics
from peek.adapters.fleet_metrics import ACTIVE, IMBALANCE, REPLICA, WAITING
from peek.adapters.metrics import Metric

GAUGES: Final = {
    "working": ACTIVE,
    "waiting": WAITING,
    "imbalance": IMBALANCE,
    "routers": Metric("peek_fleet_routers", "gauge", "Routers of deployment handles that share the queue"),
}
"""By the name of the field of `FleetQueue.status`."""

COUNTERS: Final = {
    **fleet_metrics.COUNTERS,
    "tells": Metric("peek_fleet_tells", "counter", "Calls of routers"),
    "telling_s": Metric(
        "peek_fleet_telling_seconds", "counter", "Seconds spent on these, decisions included"
    ),
}
"""Likewise."""


class QueueMetrics:
    """Exports what `FleetQueue.status` tells; made in the actor."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge

        self._gauges = {field: Gauge(each.name, each.text) for field, each in GAUGES.items()}
        self._of_replicas = {
            field: Gauge(each.name, each.text, each.labels) for field, each in REPLICA.items()
        }
        self._counters = {field: Counter(each.name, each.text) for field, each in COUNTERS.items()}
        self._told: dict[str, float] = {}
        self._replicas: set[str] = set()

    def tell(self, status: dict[str, Any]) -> None:
        """Exports a status; counters by what they have grown."""
        for name, gauge in self._gauges.items():
            gauge.set(float(status[name]))
        for replica in self._replicas - set(status["replicas"]):
            for gauge in self._of_replicas.values():
                gauge.set(0.0, {"replica": replica})
        self._replicas = set(status["replicas"])
        for replica, load in status["replicas"].items():
            for name, gauge in self._of_replicas.items():
                gauge.set(float(load[name]), {"replica": replica})
        for name, counter in self._counters.items():
            grown = status.get(name, 0) - self._told.get(name, 0)
            self._told[name] = status.get(name, 0)
            if grown > 0:
                counter.inc(grown)
