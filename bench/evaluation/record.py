"""One run of one policy over one stream on one engine, as a flat record.

Four engines, one cost model: `sglang` and `vllm` are the real schedulers and caches, `simulated-radix` and
`simulated-blocks` their fast twins.  An engine that is not installed raises `EngineMissing`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import peek
from bench.evaluation.bounds import belady_hit
from bench.evaluation.plans import FAMILY, SIMULATED, WAIT_SHARES, WAIT_STREAM
from bench.evaluation.policies import EngineMissing, config_of, planner_for
from bench.evaluation.results import FIT
from bench.evaluation.streams import as_tokens
from peek.simulation.block_engine import BlockEngine
from peek.simulation.cost import CostModel, cost_model_for
from peek.simulation.engine import Job, SimEngine
from peek.simulation.simulate import figures, radix_kind
from peek.simulation.workload import Workload


class Readings(list[float]):
    """CPU seconds at the beginning and the end of each scheduling decision; a planner's timer."""

    def __call__(self) -> float:
        self.append(time.process_time())
        return self[-1]


def time_calls(owner: Any, name: str) -> Readings:
    """From now on, of each call of this method of `owner`."""
    decide, readings = getattr(owner, name), Readings()

    def measured(*args: Any, **kwargs: Any) -> Any:
        readings()
        result = decide(*args, **kwargs)
        readings()
        return result

    setattr(owner, name, measured)
    return readings


def cost_for(workload: Workload, engine: str, mfu: float | None = None) -> CostModel:
    """Step times: the cell's hardware and model, with the engine's fitted `mfu` unless one is given."""
    model = cost_model_for(workload.name)
    if mfu is None:
        mfu = json.loads(FIT.read_text())[FAMILY[engine]]["mfu"]
    return CostModel(replace(model.hardware, mfu=mfu), model.model)


def play(engine: str, workload: Workload, label: str, cost: CostModel) -> tuple[SimEngine, Readings]:
    """An engine that has run, and when its scheduling decisions began and ended."""
    played: SimEngine
    if engine not in SIMULATED:
        played = real = _real_engine(engine)(as_tokens(workload), label, cost)
        readings = time_calls(*real.decision)
    else:
        readings, blocks = Readings(), engine == "simulated-blocks"
        planner = planner_for(label, blocks=blocks, timer=readings)
        kind, touch_limit = radix_kind(config_of(label).admission)
        radix = partial(kind, touch_limit=touch_limit)
        played = (BlockEngine if blocks else radix)(workload, planner, cost)
    played.run()
    return played, readings


def _real_engine(engine: str) -> Any:
    """The class that plays the engine's own scheduler; it needs the engine and its lab in tests/."""
    try:
        return import_module(f"bench.evaluation.{engine}_engine").RealEngine
    except ImportError as error:
        raise EngineMissing(f"{engine} cannot be imported: {error}") from None


def version_of(engine: str) -> str:
    """Of the engine's package, or of this library where it is simulated."""
    return peek.__version__ if engine in SIMULATED else str(import_module(f"{engine}.version").__version__)


def record(
    engine: str, stream: str, workloads: Sequence[Workload], label: str, mfu: float | None = None
) -> dict[str, Any]:
    """Play every replica; the figures of all requests together."""
    jobs: list[Job] = []
    spent_us: list[float] = []
    steps = 0
    for workload in workloads:
        played, readings = play(engine, workload, label, cost_for(workload, engine, mfu))
        jobs += played.jobs.values()
        steps += played.steps
        spent_us.extend(1e6 * np.diff(readings)[::2])
    whole = _together(workloads)
    head = {"engine": engine, "version": version_of(engine), "stream": stream, "policy": label}
    entry = {**head, "seed": whole.seed, **_flat(figures(whole, jobs)), "steps": steps}
    entry["plans"] = len(spent_us)
    entry["cpu_us"], entry["cpu_us_p99"] = np.mean(spent_us or 0.0), np.percentile(spent_us or 0.0, 99)
    if label in ("fcfs+lru", "peek") and whole.name.startswith(("w1", "w2")):
        entry["belady"] = belady_hit(whole, jobs)
    if stream == WAIT_STREAM:
        entry["waits"] = _waits(whole, jobs)
    return {name: round(float(it), 6) if isinstance(it, float) else it for name, it in entry.items()}


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    """A run's `figures`, by the names that the report uses."""
    return {
        "hit": found["cache_hit"],
        "ideal": found["ideal_hit"],
        "rps": found["throughput_rps"],
        "ttft": found["ttft_s"]["mean"],
        "ttft_p50": found["ttft_s"]["p50"],
        "ttft_p99": found["ttft_s"]["p99"],
        "e2e": found["e2e_s"]["mean"],
        "tpot_ms": found["tpot_ms"]["mean"],
        "wait_p99": found["queue_wait_s"]["p99"],
        "wait_max": found["queue_wait_s"]["max"],
        "prefill_tokens": found["prefill_tokens"],
        "preemptions": found["preemptions"],
        "unfinished": found["requests"] - found["finished"],
    }


def _together(workloads: Sequence[Workload]) -> Workload:
    """The replicas' requests in one workload, in order of their numbers."""
    parts = [request for workload in workloads for request in workload.requests]
    if len(workloads) > 1:
        parts.sort(key=lambda request: int(request.request_id.rpartition("-")[2]))
    warmup = sum(workload.warmup for workload in workloads)
    return replace(workloads[0], requests=tuple(parts), warmup=warmup)


def _waits(workload: Workload, jobs: Sequence[Job]) -> list[float]:
    """Seconds until first admission at the shares `WAIT_SHARES`."""
    measured = {request.request_id for request in workload.requests[workload.warmup :]}
    spans = [job.admitted_s - job.arrival_s for job in jobs if job.request_id in measured]
    return [round(float(value), 3) for value in np.percentile(spans, WAIT_SHARES)]
