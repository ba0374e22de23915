"""The metrics of a fleet, and a collector for a process that serves `/metrics`.

`FleetMetrics` is a collector of `prometheus_client`, read at each scrape::

    metrics = FleetMetrics(fleet)
    REGISTRY.register(metrics)
    with metrics.deciding():
        fleet.add(request)
        sent = fleet.dispatch(now)

Scrapes run in threads of their own, so every use of the fleet must be inside `deciding` or `changing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from typing import Any, Final

from peek.adapters.metrics import Metric
from peek.adapters.observed import Tally
from peek.fleet import FleetPlanner, ReplicaStatus
from peek.settings import require_whole

DECISION_SECONDS: Final = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 1.0)


def _counter(name: str, text: str) -> Metric:
    return Metric(f"peek_fleet_{name}", "counter", text)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"peek_fleet_{name}", "gauge", text, labels)


COUNTERS: Final = {
    "added": _counter("requests", "Requests that came in and were not refused"),
    "refused": _counter("refused_requests", "Requests that found the queue full"),
    "sticky": _counter("sticky_requests", "Requests that went where half of their prompt was expected"),
    "dispatched": _counter("dispatched_requests", "Times a request was sent to a replica"),
    "finished": _counter("finished_requests", "Requests that ended"),
    "cancelled": _counter("cancelled_requests", "Requests that were given up"),
    "requeued": _counter("requeued_requests", "Requests that came back from a replica that was lost"),
    "moved": _counter("moved_requests", "Waiting requests whose home left or was lost"),
    "sessions_moved": _counter("moved_sessions", "Turns that went elsewhere than the turn before"),
    "steals": _counter("steals", "Times an idle replica took over others' requests"),
    "stolen": _counter("stolen_requests", "Requests taken over"),
}
"""By field of `FleetStats`."""

FALLBACKS: Final = _counter(
    "fallbacks", "Internal errors (peek-epp: requests) for which the host's own rule decided"
)
DECISIONS: Final = Metric("peek_fleet_decision_seconds", "histogram", "Seconds of each decision")
WAITING: Final = _gauge("waiting_requests", "Requests that wait in the fleet")
IMBALANCE: Final = _gauge("imbalance", "The longest backlog of a replica over the mean")
WINDOW: Final = _gauge("window_requests", "How many may queue at a replica before others are held back")
ACTIVE: Final = _gauge("active", "1 while the fleet decides, 0 after a fallback")

REPLICA: Final = {
    "waiting": _gauge("home_requests", "Requests that wait for a replica, their home", "replica"),
    "queued": _gauge("queued_requests", "Requests at a replica without a first token", "replica"),
    "under_way": _gauge("under_way_requests", "Requests at a replica", "replica"),
    "backlog": _gauge("backlog_tokens", "Tokens that a replica has to compute and decode", "replica"),
    "accepting": _gauge("accepting", "1 if a replica is sent requests", "replica"),
}
"""By field of `ReplicaStatus`."""

METRICS: Final = (
    *COUNTERS.values(),
    FALLBACKS,
    DECISIONS,
    WAITING,
    IMBALANCE,
    WINDOW,
    ACTIVE,
    *REPLICA.values(),
)


class FleetMetrics:
    """A `prometheus_client` collector of one fleet, which is used only inside `deciding` and `changing`.

    Attributes:
        fallbacks: internal errors, counted by the fleet's driver.
        active: whether the fleet decides.
    """

    def __init__(self, fleet: FleetPlanner, timer: Callable[[], float] = time.perf_counter) -> None:
        self.fallbacks = 0
        self.active = True
        self.changing = Lock()
        """Lock that is held while the fleet is changed or read."""
        self._fleet = fleet
        self._is_told = True
        self._timer = timer
        self._decisions = Tally(DECISION_SECONDS)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Wrap and time one decision: arrivals or news, and what is sent because of them.  Adds 1-2 us."""
        with self.changing:
            started = self._timer()
            try:
                yield
            finally:
                self._decisions.note(self._timer() - started)

    def fell_back(self) -> None:
        """Note that the host's own rule decides from now on; the fleet hears of no load any more."""
        self.fallbacks += 1
        self.active = self._is_told = False

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; called at each scrape, from any thread.  O(replicas)."""
        from prometheus_client.core import HistogramMetricFamily

        with self.changing:
            stats = self._fleet.stats.as_dict()
            replicas, waiting = (self._fleet.status(), len(self._fleet)) if self._is_told else ([], 0)
            counts, seconds = list(self._decisions.counts), self._decisions.sum
        for field, metric in COUNTERS.items():
            yield _family(metric, {(): stats[field]})
        yield _family(FALLBACKS, {(): self.fallbacks})
        buckets = list(zip([*map(str, DECISION_SECONDS), "+Inf"], accumulate(counts), strict=True))
        yield HistogramMetricFamily(DECISIONS.name, DECISIONS.text, buckets=buckets, sum_value=seconds)
        yield _family(WAITING, {(): waiting})
        yield _family(IMBALANCE, {(): imbalance(replicas)})
        yield _family(WINDOW, {(): self._fleet.config.window_requests})
        yield _family(ACTIVE, {(): float(self.active)})
        for field, metric in REPLICA.items():
            yield _family(metric, {(each.name,): float(getattr(each, field)) for each in replicas})


def serve_metrics(collector: Any, port: int) -> None:
    """Serve `/metrics` of this process on a port; 0: do not.  `InvalidConfig`.  Needs `prometheus_client`."""
    require_whole("metrics_port", port, 0, 65535)
    if port:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        start_http_server(port, registry=registry)


def imbalance(replicas: list[ReplicaStatus]) -> float:
    """Return the longest backlog divided by the mean; 1 if all are equal, or there is nothing to do."""
    backlogs = [each.backlog for each in replicas]
    return max(backlogs) * len(backlogs) / sum(backlogs) if sum(backlogs) > 0 else 1.0


def _family(metric: Metric, values: dict[tuple[str, ...], float]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(metric.name, metric.text, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
