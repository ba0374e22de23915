"""One run of one policy over one stream on one engine, as a flat record.

Four engines, one cost model: `sglang` and `vllm` are the real schedulers and caches, `simulated-radix` and
`simulated-blocks` their fast twins.  An engine that is not installed raises `EngineMissing`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

import peek
from bench.evaluation.bounds import belady_hit
from bench.evaluation.cpu_time import Readings
from bench.evaluation.paper import FIT
from bench.evaluation.plans import FAMILY, SIMULATED, WAIT_SHARES, WAIT_STREAM
from bench.evaluation.policies import config_of, planner_for
from bench.evaluation.streams import as_tokens
from peek.simulation.block_engine import BlockEngine
from peek.simulation.cost import CostModel, cost_model_for
from peek.simulation.engine import Job, SimEngine
from peek.simulation.radix_engine import RadixEngine
from peek.simulation.simulate import TOUCHING, figures
from peek.simulation.workload import Workload


class EngineMissing(Exception):
    """The engine's package is not in this environment, or lacks the policy."""


def cost_for(workload: Workload, engine: str, mfu: float | None = None) -> CostModel:
    """Step times: the cell's hardware and model, with the engine's fitted `mfu` unless one is given."""
    model = cost_model_for(workload.name)
    if mfu is None and FIT.exists():
        mfu = json.loads(FIT.read_text())[FAMILY[engine]]["mfu"]
    return model if mfu is None else CostModel(replace(model.hardware, mfu=mfu), model.model)


def play(engine: str, workload: Workload, label: str, cost: CostModel) -> tuple[SimEngine, list[float]]:
    """An engine that has run, and the CPU seconds of each scheduling decision."""
    if engine not in SIMULATED:
        real = _real_engine(engine, label)(as_tokens(workload), label, cost)
        real.run()
        return real, real.schedule_s
    readings = Readings()
    planner = planner_for(label, blocks=engine == "simulated-blocks", timer=readings)
    simulated: SimEngine
    if engine == "simulated-blocks":
        simulated = BlockEngine(workload, planner, cost)
    else:
        touch = TOUCHING.get(config_of(label).admission, 0)
        simulated = RadixEngine(workload, planner, cost, touch_limit=touch)
    simulated.run()
    return simulated, readings.spans()


def _real_engine(engine: str, label: str) -> Any:
    """The class that plays the engine's own scheduler; it needs the engine and its lab in tests/."""
    try:
        if engine == "vllm":
            return import_module("bench.evaluation.vllm_engine").RealVllm
        module = import_module("bench.evaluation.sglang_engine")
    except ImportError as error:
        raise EngineMissing(f"{engine} cannot be imported: {error}") from None
    if label in module.STOCK and module.STOCK[label][0] not in module.KNOWN:
        raise EngineMissing(f"this SGLang has no policy {module.STOCK[label][0]}")
    return module.RealSglang


def version_of(engine: str) -> str:
    """Of the engine's package, or of this library where it is simulated."""
    return peek.__version__ if engine in SIMULATED else str(import_module(f"{engine}.version").__version__)


def record(
    engine: str, stream: str, workloads: Sequence[Workload], label: str, mfu: float | None = None
) -> dict[str, Any]:
    """Play every replica; the figures of all requests together."""
    jobs: list[Job] = []
    spent_s: list[float] = []
    steps = 0
    for workload in workloads:
        played, decisions_s = play(engine, workload, label, cost_for(workload, engine, mfu))
        jobs += played.jobs.values()
        spent_s += decisions_s
        steps += played.steps
    whole = _together(workloads)
    cpu_us = np.array(spent_s or [0.0]) * 1e6
    flat = {
        **_flat(figures(whole, jobs)),
        "steps": steps,
        "plans": len(spent_s),
        "cpu_us": float(cpu_us.mean()),
        "cpu_us_p99": float(np.percentile(cpu_us, 99)),
    }
    if label in ("fcfs+lru", "peek") and whole.name.startswith(("w1", "w2")):
        flat["belady"] = belady_hit(whole, jobs)
    head = {"engine": engine, "version": version_of(engine), "stream": stream, "policy": label}
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in flat.items()}
    waits = {"waits": _waits(whole, jobs)} if stream == WAIT_STREAM else {}
    return {**head, "seed": whole.seed, **rounded, **waits}


def _together(workloads: Sequence[Workload]) -> Workload:
    """The replicas' requests in one workload, in order of their numbers."""
    parts = [request for workload in workloads for request in workload.requests]
    if len(workloads) > 1:
        parts.sort(key=lambda request: int(request.request_id.rpartition("-")[2]))
    warmup = sum(workload.warmup for workload in workloads)
    return replace(workloads[0], requests=tuple(parts), warmup=warmup)


def _flat(found: dict[str, Any]) -> dict[str, Any]:
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


def _waits(workload: Workload, jobs: Sequence[Job]) -> list[float]:
    """Seconds until first admission at the shares `WAIT_SHARES`."""
    measured = {request.request_id for request in workload.requests[workload.warmup :]}
    spans = [job.admitted_s - job.arrival_s for job in jobs if job.request_id in measured]
    return [round(float(value), 3) for value in np.percentile(spans, WAIT_SHARES)]
