"""The metrics of an adapter: their names and meanings, and how they are kept current."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from peek._version import __version__
from peek.adapters import export
from peek.adapters.activation import Settings
from peek.adapters.engine_adapter import EngineAdapter, EngineInfo
from peek.adapters.observed import Observations, Tally


@dataclass(frozen=True)
class Metric:
    """One metric by its Prometheus name; a counter's series end in `_total`.

    `labels`: those besides `LABELS`.
    """

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()


EVERY_S: Final = 0.25
"""Seconds between two writes of the series while requests wait."""

LABELS: Final = ("engine", "model_name", "dp_rank", "tp_rank")
"""Labels of every series; `engine` is `vllm` or `sglang`."""

METRICS: Final = (
    Metric("peek_cycles", "counter", "Plans made"),
    Metric("peek_stood_aside_cycles", "counter", "Plans that kept arrival order, with nothing to gain"),
    Metric("peek_reordered_cycles", "counter", "Cycles that changed the order of the queue"),
    Metric("peek_shadow_reordered_cycles", "counter", "In shadow: plans that would have changed the order"),
    Metric("peek_shadow_prompt_tokens", "counter", "In shadow: prompt tokens of requests seen through"),
    Metric("peek_shadow_hit_tokens", "counter", "Of these, tokens cached if the order were that of peek"),
    Metric("peek_shadow_stock_hit_tokens", "counter", "Of these, tokens that the engine found in its cache"),
    Metric("peek_planned_requests", "counter", "Requests ordered, summed over plans"),
    Metric("peek_policy_faults", "counter", "Times that a policy failed and arrival order stood"),
    Metric("peek_admitted_requests", "counter", "Requests that were planned and admitted"),
    Metric("peek_withdrawn_requests", "counter", "Requests that left the queue otherwise"),
    Metric("peek_fair_lane_admissions", "counter", "Requests admitted through the fair lane, or overdue"),
    Metric("peek_prompt_tokens", "counter", "Prompt tokens of admitted requests"),
    Metric("peek_cached_tokens_predicted", "counter", "Of these, tokens that were expected in the cache"),
    Metric("peek_cached_tokens_real", "counter", "Of these, tokens that the engine found in its cache"),
    Metric("peek_protected_evictions", "counter", "Evictions passed over for a waiting request"),
    Metric("peek_quarantined_requests", "counter", "Requests that could not be translated, kept apart"),
    Metric("peek_fallbacks", "counter", "Internal errors that left the engine in its own order"),
    Metric("peek_retries", "counter", "New attempts after an internal error"),
    Metric("peek_recoveries", "counter", "New attempts that have worked since"),
    Metric("peek_plan_seconds", "counter", "Seconds spent planning"),
    Metric("peek_plan_duration_seconds", "histogram", "Seconds of each plan"),
    Metric("peek_position_gain", "histogram", "Earlier arrivals overtaken by each admission"),
    Metric(
        "peek_cached_tokens_surprise", "histogram", "Cached tokens of each admission, real less predicted"
    ),
    Metric("peek_active", "gauge", "1 while the queue is in the order of peek, else 0"),
    Metric("peek_state", "gauge", "1 for the reason why peek is active or not now", ("reason",)),
    Metric("peek_info", "gauge", "Always 1; what is in force", ("version", "policy", "eviction", "cache")),
    Metric("peek_waiting_requests", "gauge", "Requests waiting that are planned"),
    Metric("peek_quarantined_waiting_requests", "gauge", "Requests waiting that are kept apart"),
    Metric("peek_tree_nodes", "gauge", "Nodes of the tree of waiting prompts"),
)

_TALLIES: Final = {
    "peek_plan_duration_seconds": "plan_s",
    "peek_position_gain": "gains",
    "peek_cached_tokens_surprise": "surprises",
}
_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def snapshot(adapter: EngineAdapter) -> dict[str, float]:
    """Return all counters of an adapter by name, since it was made."""
    totals = adapter.planner.totals()
    return {
        "peek_cycles": totals["plans"],
        "peek_stood_aside_cycles": totals["stood_aside"],
        "peek_reordered_cycles": adapter.reordered,
        "peek_planned_requests": totals["planned"],
        "peek_policy_faults": totals["policy_faults"],
        "peek_admitted_requests": totals["admitted"],
        "peek_withdrawn_requests": totals["withdrawn"],
        "peek_fair_lane_admissions": totals["fair_admitted"],
        "peek_prompt_tokens": totals["prompt_tokens"],
        "peek_cached_tokens_predicted": totals["cached_expected"],
        "peek_cached_tokens_real": adapter.cached_real,
        "peek_protected_evictions": adapter.protected_evictions,
        "peek_quarantined_requests": adapter.quarantine.total,
        "peek_plan_seconds": totals["plan_s"],
    }


def _mark(adapter: EngineAdapter | None) -> tuple[int, ...]:
    """Return how many requests wait in the planner and in quarantine, and how many have come to each."""
    if adapter is None:
        return (0, 0)
    planner, apart = adapter.planner, adapter.quarantine
    return (len(planner), len(apart), planner.arrivals, apart.total)


class EngineMetrics:
    """Keeps the series of one attachment current, in `files`; these are None if nothing reads them."""

    def __init__(
        self,
        about: EngineInfo,
        settings: Settings,
        seen: Observations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._next = 0.0
        """When to write next."""
        self._mark: tuple[int, ...] = ()
        self._seen = seen
        self._adapter: EngineAdapter | None = None
        self._before: dict[str, float] = {}
        """Sums of the counters of earlier adapters."""
        self._counters = {metric.name: 0.0 for metric in METRICS if metric.kind == "counter"}
        self._buckets: dict[str, list[int]] = {}
        """Counts of the buckets, by histogram."""
        self._state = ""
        self.files: export.SeriesFiles | None = None
        path = export.folder()
        if path is None or not about.speaks:
            return
        values = (about.engine, about.model, str(about.dp_rank), str(about.tp_rank))
        self.files = export.SeriesFiles(path, dict(zip(LABELS, values, strict=True)))
        config = settings.config
        force = {"policy": str(config), "eviction": config.eviction, "cache": about.cache}
        self._write("peek_info", 1, version=__version__, **force)

    def due(self, adapter: EngineAdapter | None) -> bool:
        """Whether `EVERY_S` are over, or no request waits any more, as an engine may then rest.  O(1)."""
        mark = _mark(adapter)
        return self._clock() >= self._next or (mark[:2] == (0, 0) and mark != self._mark)

    def update(self, adapter: EngineAdapter | None, state: str, active: bool, more: dict[str, float]) -> None:
        """Write all changed values; called when it is due, and when the state changes.  O(metrics).

        `state` says why `peek` is active or not; `more` has the counters of the attachment.
        """
        self._next, self._mark = self._clock() + EVERY_S, _mark(adapter)
        if adapter is not self._adapter:
            self._adapter, self._before = adapter, dict(self._counters)
        waiting = nodes = apart = 0
        if adapter is not None:
            for name, value in snapshot(adapter).items():
                self._counters[name] = self._before[name] + value
            totals = adapter.planner.totals()
            waiting, nodes, apart = totals["waiting"], totals["tree_nodes"], len(adapter.quarantine)
        self._counters.update(more)
        for name, value in self._counters.items():
            self._write(name, value)
        for name, attribute in _TALLIES.items():
            self._write_tally(name, getattr(self._seen, attribute))
        self._write("peek_waiting_requests", waiting)
        self._write("peek_tree_nodes", nodes)
        self._write("peek_quarantined_waiting_requests", apart)
        self._write("peek_active", active)
        if self._state not in ("", state):
            self._write("peek_state", 0, reason=self._state)
        self._write("peek_state", 1, reason=state)
        self._state = state

    def _write(self, name: str, value: float, ending: str = "", **labels: str) -> None:
        metric = _BY_NAME[name]
        assert self.files is not None
        ending = "_total" if metric.kind == "counter" else ending
        self.files.write(metric.kind, name, metric.text, name + ending, value, **labels)

    def _write_tally(self, name: str, tally: Tally) -> None:
        before = self._buckets.get(name, [-1] * len(tally.counts))
        self._buckets[name] = list(tally.counts)
        for bound, number, shown in zip((*tally.bounds, inf), tally.counts, before, strict=True):
            if number != shown:
                self._write(name, number, "_bucket", le=repr(float(bound)).replace("inf", "+Inf"))
        self._write(name, tally.sum, "_sum")
