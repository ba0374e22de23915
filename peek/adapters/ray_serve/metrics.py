"""The queue's state as metrics of Ray's, which stand on its `/metrics` under `ray_peek_fleet_*`."""

from __future__ import annotations

from typing import Any, Final

GAUGES: Final = {
    "working": "1 while the queue decides, 0 while Ray Serve's own rule does after an error",
    "routers": "routers of deployment handles that share the queue",
    "waiting": "requests that wait in the queue",
    "imbalance": "the longest backlog of a replica by the mean one",
}

REPLICA_GAUGES: Final = {
    "under_way": "requests at a replica",
    "backlog": "tokens that a replica has to compute and decode",
}

COUNTERS: Final = {
    "added": "requests that came in",
    "refused": "requests that found the queue full",
    "sticky": "requests that went where half of their prompt was or was expected",
    "dispatched": "requests that were sent to a replica",
    "finished": "requests that ended",
    "cancelled": "requests that were given up",
    "steals": "times an idle replica took over requests that waited for another",
    "stolen": "requests that were taken over",
    "tells": "calls of routers",
    "telling_s": "seconds spent on these, decisions included",
}


class QueueMetrics:
    """Exports what `FleetQueue.status` tells; made in the actor."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge

        self._gauges = {name: Gauge(f"peek_fleet_{name}", text) for name, text in GAUGES.items()}
        self._of_replicas = {
            name: Gauge(f"peek_fleet_{name}", text, ("replica",)) for name, text in REPLICA_GAUGES.items()
        }
        self._counters = {name: Counter(f"peek_fleet_{name}", text) for name, text in COUNTERS.items()}
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
