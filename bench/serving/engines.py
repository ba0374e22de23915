"""One run of one policy over one stream on one engine, as a flat record.

Four engines, one cost model: `sglang` and `vllm` are the real schedulers and caches, `simulated-radix` and
`simulated-blocks` their fast twins.  An engine that is not installed raises `EngineMissing`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from policies import VARIANTS, config_of, planner_for
from streams import as_tokens

import peek
from peek.simulation.block_engine import BlockEngine
from peek.simulation.cost import CostModel, cost_model_for
from peek.simulation.engine import SimEngine
from peek.simulation.radix_engine import RadixEngine
from peek.simulation.simulate import TOUCHING, PlanMeter, figures
from peek.simulation.workload import Workload

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
FIT = HERE / "fit.json"

WAIT_STREAMS = ("w1c:heavy",)
WAIT_SHARES = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100)
"""Per cent of the requests that were admitted sooner."""

FAMILY = {"simulated-radix": "sglang", "sglang": "sglang", "simulated-blocks": "vllm", "vllm": "vllm"}
"""Engine -> whose rates, caps, and fitted constant."""


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
    if engine == "sglang":
        return _real(_sglang_class(label), workload, label, cost)
    if engine == "vllm":
        return _real(_vllm_class(), workload, label, cost)
    blocks = engine == "simulated-blocks"
    meter = PlanMeter(time.process_time)
    planner = planner_for(label, blocks=blocks, timer=meter)
    simulated: SimEngine
    if blocks:
        simulated = BlockEngine(workload, planner, cost)
    else:
        touch = TOUCHING.get(config_of(label).admission, 0)
        simulated = RadixEngine(workload, planner, cost, touch_limit=touch)
    simulated.run()
    readings = meter._readings
    return simulated, [b - a for a, b in zip(readings[::2], readings[1::2], strict=False)]


def _real(cls: Any, workload: Workload, label: str, cost: CostModel) -> tuple[SimEngine, list[float]]:
    engine = cls(as_tokens(workload), label, cost)
    engine.run()
    return engine, engine.schedule_s


def _sglang_class(label: str) -> Any:
    sys.path[:0] = [str(TESTS / "sglang"), str(HERE)]
    try:
        from sglang_engine import KNOWN, STOCK, RealSglang
    except ImportError as error:
        raise EngineMissing(f"SGLang cannot be imported: {error}") from None
    if label in STOCK and STOCK[label][0] not in KNOWN:
        raise EngineMissing(f"this SGLang has no policy {STOCK[label][0]}")
    return RealSglang


def _vllm_class() -> Any:
    sys.path[:0] = [str(TESTS / "vllm"), str(HERE)]
    try:
        from vllm_engine import RealVllm
    except ImportError as error:
        raise EngineMissing(f"vLLM cannot be imported: {error}") from None
    return RealVllm


def version_of(engine: str) -> str:
    """Of the engine's package, or of this library where it is simulated."""
    if engine.startswith("simulated"):
        return peek.__version__
    return str(import_module(f"{engine}.version").__version__)


def record(
    engine: str, stream: str, workloads: list[Workload], label: str, mfu: float | None = None
) -> dict[str, Any]:
    """Play every replica; the figures of all requests together."""
    jobs, spent, steps = [], [], 0
    for workload in workloads:
        played, cpu = play(engine, workload, label, cost_for(workload, engine, mfu))
        jobs += list(played.jobs.values())
        spent += cpu
        steps += played.steps
    whole = workloads[0]
    if len(workloads) > 1:
        parts = [request for workload in workloads for request in workload.requests]
        parts.sort(key=lambda request: int(request.request_id.rpartition("-")[2]))
        warmup = sum(workload.warmup for workload in workloads)
        whole = replace(whole, requests=tuple(parts), warmup=warmup)
    found = figures(whole, jobs)
    cpu_us = np.array(spent or [0.0]) * 1e6
    flat = {
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
        "steps": steps,
        "plans": len(spent),
        "cpu_us": float(cpu_us.mean()),
        "cpu_us_p99": float(np.percentile(cpu_us, 99)),
    }
    head = {"engine": engine, "version": version_of(engine), "stream": stream, "policy": label}
    figures_ = {name: round(value, 6) if isinstance(value, float) else value for name, value in flat.items()}
    return {
        **head,
        "seed": whole.seed,
        **figures_,
        **_waits(stream, whole, jobs),
        **_order_bound(whole, jobs, label),
    }


def _waits(stream: str, workload: Workload, jobs: list[Any]) -> dict[str, list[float]]:
    """Seconds until first admission at the shares `WAIT_SHARES`, of the streams whose waits are drawn."""
    if stream not in WAIT_STREAMS:
        return {}
    measured = {request.request_id for request in workload.requests[workload.warmup :]}
    spans = [job.admitted_s - job.arrival_s for job in jobs if job.request_id in measured]
    return {"waits": [round(float(value), 3) for value in np.percentile(spans, WAIT_SHARES)]}


def _order_bound(workload: Workload, jobs: list[Any], label: str) -> dict[str, float]:
    if label not in ("fcfs+lru", "peek") or not workload.name.startswith(("w1", "w2")):
        return {}
    from bounds import belady_hit

    return {"belady": round(belady_hit(workload, jobs), 6)}


__all__ = ["FAMILY", "VARIANTS", "EngineMissing", "record"]
