"""Run one workload under one policy on one simulated engine, and compute the figures of that run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from peek.config import PeekConfig
from peek.errors import WorkloadError
from peek.planner import Planner
from peek.simulation.caches import SymbolTable
from peek.simulation.cost import CostModel, StepTimes, cost_model_for
from peek.simulation.engines import BlockEngine, Job, RadixEngine, SimEngine
from peek.simulation.workload import Progress, Workload, ideal_hit

CACHES: Final[dict[str, type[RadixEngine | BlockEngine]]] = {"radix": RadixEngine, "blocks": BlockEngine}


class Target(NamedTuple):
    """Target of a request: seconds until its first token, and milliseconds for each token after it."""

    ttft_s: float
    tpot_ms: float = 100.0


TARGETS: Final = (Target(2.0), Target(10.0))
"""Default targets: 2 s for a waiting person, 10 s for a job; 100 ms per token is faster than anyone reads."""


def simulate(
    workload: Workload,
    label: str,
    cache: str = "radix",
    timer: Callable[[], float] | None = None,
    cost: CostModel | None = None,
    progress: Progress = None,
    watch: Callable[[list[Job]], None] | None = None,
    targets: Sequence[Target] = TARGETS,
) -> dict[str, Any]:
    """Run `workload` under the policy `label`; return the figures of `peek simulate --json`.

    `cache` is "radix" (SGLang-like engine) or "blocks" (vLLM-like), `cost` None the paper's for this cell.
    `timer` returns seconds of real time, for `plan_us`.  `watch` is called once with all jobs, in order of
    arrival.  `targets` are those of `goodput`.  `WorkloadError` if all requests warm up.
    """
    config = PeekConfig.from_label(label)
    meter = PlanMeter(timer)
    model = cost_model_for(workload.name) if cost is None else cost
    jobs = make_engine(config, cache, workload, model, meter, progress).run()
    if watch is not None:
        watch(jobs)
    return {
        "workload": workload.name,
        "load": workload.load,
        "policy": label,
        "seed": workload.seed,
        **figures(workload, jobs, targets),
        "plan_us": meter.figures(),
    }


def make_engine(
    config: PeekConfig, cache: str, workload: Workload, cost: StepTimes, meter: PlanMeter,
    progress: Progress = None, symbols: SymbolTable | None = None,
) -> SimEngine:  # fmt: skip
    """Make an empty engine of a kind, see `simulate`; `symbols` may be those of other engines."""
    planner = None if config.is_stock else make_planner(config, cache, meter)
    if cache == "blocks":
        return BlockEngine(workload, planner, cost, progress, symbols=symbols)
    return RadixEngine(workload, planner, cost, progress)


def make_planner(config: PeekConfig, cache: str, timer: Callable[[], float] | None) -> Planner:
    """Make a planner that knows when this kind of engine shows a computed prefix to other requests."""
    gate = cache == "radix" and config.sees_prefills
    return Planner(config, chained=cache == "blocks", timer=timer, in_flight_gate=gate, strict=True)


class PlanMeter:
    """A timer that records how long each planning cycle took.  The planner reads it twice a cycle."""

    def __init__(self, timer: Callable[[], float] | None) -> None:
        self._timer = timer
        self._readings: list[float] = []

    def __call__(self) -> float:
        reading = 0.0 if self._timer is None else self._timer()
        self._readings.append(reading)
        return reading

    def figures(self) -> dict[str, float]:
        """Return mean and p99 of the recorded cycles, in microseconds."""
        readings = np.array(self._readings)
        spans = (readings[1::2] - readings[::2]) * 1e6
        if not len(spans):
            return {"mean": 0.0, "p99": 0.0}
        return {"mean": float(spans.mean()), "p99": float(np.percentile(spans, 99))}


def figures(workload: Workload, jobs: list[Job], targets: Sequence[Target] = TARGETS) -> dict[str, Any]:
    """Compute the metrics of a run over all jobs that arrived after the warm-up.

    `slowdown` is a request's time in the system divided by that time without the wait in the queue.  `job_s`
    is given if requests have sessions.  `WorkloadError` if times are so large that rounding hides a step.
    """
    rank = {request.request_id: index for index, request in enumerate(workload.requests)}
    measured = [job for job in jobs if rank[job.request_id] >= workload.warmup]
    if not measured:
        raise WorkloadError(f"nothing to measure: {len(jobs)} requests, the first {workload.warmup} warm up")
    ttft = [job.first_token_s - job.arrival_s for job in measured]
    e2e = [job.finished_s - job.arrival_s for job in measured]
    wait = [job.admitted_s - job.arrival_s for job in measured]
    decoded = [job for job in measured if job.generated > 1]
    served = [whole - waited for whole, waited in zip(e2e, wait, strict=True)]
    if min(served) <= 0.0:
        latest_s = max(job.finished_s for job in measured)
        raise WorkloadError(f"times grow to {latest_s:.3g} s, where rounding hides a step")
    tpot = [(job.finished_s - job.first_token_s) / (job.generated - 1) for job in decoded]
    prompt = sum(job.prompt_tokens for job in measured)
    span = max(job.finished_s for job in measured) - min(job.arrival_s for job in measured)
    sessions = _sessions(measured)
    return {
        "requests": len(workload.requests),
        "finished": sum(1 for job in jobs if job.finished_s >= 0.0),
        "cache_hit": sum(job.cached_at_admission for job in measured) / prompt,
        "ideal_hit": ideal_hit(workload),
        "throughput_rps": len(measured) / span,
        "ttft_s": _summary(ttft),
        "e2e_s": _summary(e2e),
        "tpot_ms": {"mean": float(np.mean(tpot)) * 1e3 if tpot else 0.0},
        "queue_wait_s": {"p99": float(np.percentile(wait, 99)), "max": max(wait)},
        "goodput": [{**target._asdict(), "share": _goodput(measured, target)} for target in targets],
        "slowdown": _summary([whole / alone for whole, alone in zip(e2e, served, strict=True)]),
        **({"job_s": _summary(sessions)} if sessions else {}),
        "prefill_tokens": sum(job.prefill_tokens for job in measured),
        "preemptions": sum(job.preemptions for job in measured),
    }


def _sessions(jobs: list[Job]) -> list[float]:
    """Return the job time of each session in seconds, from its first arrival to its last end."""
    spans: dict[str, tuple[float, float]] = {}
    for job in jobs:
        session = job.request.session
        if session:
            began, ended = spans.get(session, (job.arrival_s, job.finished_s))
            spans[session] = min(began, job.arrival_s), max(ended, job.finished_s)
    return [ended - began for began, ended in spans.values()]


def _goodput(jobs: list[Job], target: Target) -> float:
    """Return the share of jobs that met both parts of a target: first token, and mean of later tokens."""
    met = 0
    for job in jobs:
        decode_s = target.tpot_ms * 1e-3 * (job.generated - 1)
        in_time = job.first_token_s - job.arrival_s <= target.ttft_s
        met += in_time and job.finished_s - job.first_token_s <= decode_s
    return met / len(jobs)


def _summary(values: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p99": float(p99)}
