"""One run of one policy over one stream on one engine, as a flat record.

Four engines with one cost model: `sglang` and `vllm` are the real schedulers and caches, `simulated-radix`
and `simulated-blocks` their fast twins.  An engine that is not installed raises `EngineMissing`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import peek
from bench.evaluation.bounds import belady_hit
from bench.evaluation.plans import SIMULATED, parts_of
from bench.evaluation.policies import REORDERED, EngineMissing, planner_for
from bench.evaluation.results import fit_of
from bench.evaluation.streams import as_tokens, reordered
from bench.evaluation.traffic import TRAFFIC
from peek.simulation.cost import CostModel, cost_model_for
from peek.simulation.engines import BlockEngine, Job, RadixEngine, SimEngine
from peek.simulation.simulate import figures
from peek.simulation.workload import Workload

BESIDE = ("cli", "fleet", "offline", "testing", "__main__.py")
"""Parts of the library that no run uses."""


class Readings(list[float]):
    """CPU seconds at the beginning and the end of each scheduling decision; serves as a planner's timer."""

    def __call__(self) -> float:
        self.append(time.process_time())
        return self[-1]


def time_calls(owner: Any, name: str) -> Readings:
    """Replace a method of `owner` by one that is timed; return its readings, one pair for each call."""
    decide, readings = getattr(owner, name), Readings()

    def measured(*args: Any, **kwargs: Any) -> Any:
        readings()
        result = decide(*args, **kwargs)
        readings()
        return result

    setattr(owner, name, measured)
    return readings


def play(engine: str, workload: Workload, label: str, cost: CostModel) -> tuple[SimEngine, Readings]:
    """Return an engine that has run, and when its scheduling decisions began and ended."""
    played: SimEngine
    if engine not in SIMULATED:
        played = real = real_engine(engine)(as_tokens(workload), label, cost)
        readings = time_calls(*real.decision)
    else:
        readings, blocks = Readings(), engine == "simulated-blocks"
        planner = planner_for(label, blocks=blocks, timer=readings)
        if blocks:
            played = BlockEngine(workload, planner, cost)
        else:
            played = RadixEngine(workload, planner, cost)
    played.run()
    return played, readings


def real_engine(engine: str) -> Any:
    """Return the class that plays the engine's own scheduler; needs the engine and its lab in tests/."""
    try:
        return import_module(f"bench.evaluation.{engine}_engine").RealEngine
    except ImportError as error:
        raise EngineMissing(f"{engine} cannot be imported: {error}") from None


def version_of(engine: str) -> str:
    """Return the version of the engine's package, or of this library for a simulated one."""
    return peek.__version__ if engine in SIMULATED else str(import_module(f"{engine}.version").__version__)


@cache
def library() -> str:
    """Return this library's version and a digest of the sources that decide a run, as `0.1.0+1a2b3c4d`."""
    home = Path(peek.__file__).parent
    sources = sorted(path for path in home.rglob("*.py") if path.relative_to(home).parts[0] not in BESIDE)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    return f"{peek.__version__}+{digest.hexdigest()[:8]}"


def record(engine: str, stream: str, workloads: Sequence[Workload], label: str) -> dict[str, Any]:
    """Play every replica; return the figures of all requests together."""
    if label.endswith(REORDERED):
        workloads = [reordered(workload, engine) for workload in workloads]
    jobs: list[Job] = []
    spent_us: list[float] = []
    for workload in workloads:
        played, readings = play(engine, workload, label, cost_model_for(workload.name))
        jobs += played.jobs.values()
        spent_us.extend(1e6 * np.diff(readings)[::2])
    whole = _together(workloads)
    entry = {"engine": engine, "stream": stream, "seed": whole.seed, "policy": label}
    entry |= {"version": version_of(engine), "peek": library(), "fit": fit_of(engine)}
    entry |= _flat(figures(whole, jobs)) | _measured(whole, jobs, parts_of(stream)[0])
    if spent_us:
        entry["cpu_us"], entry["cpu_us_p99"] = np.mean(spent_us), np.percentile(spent_us, 99)
    if label in ("fcfs+lru", "peek") and whole.name.startswith(("w1", "w2")):
        entry["belady"] = belady_hit(whole, jobs)
    return {name: float(it) if isinstance(it, float) else it for name, it in entry.items()}


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    """Return a run's `figures` under the report's names."""
    return {
        "hit": found["cache_hit"],
        "ideal": found["ideal_hit"],
        "rps": found["throughput_rps"],
        "ttft": found["ttft_s"]["mean"],
        "ttft_p50": found["ttft_s"]["p50"],
        "ttft_p99": found["ttft_s"]["p99"],
        "e2e": found["e2e_s"]["mean"],
        "e2e_p99": found["e2e_s"]["p99"],
        "tpot_ms": found["tpot_ms"]["mean"],
        "wait_max": found["queue_wait_s"]["max"],
        "preemptions": found["preemptions"],
        "unfinished": found["requests"] - found["finished"],
        "in_time": found["goodput"][0]["share"],
    }


def _measured(workload: Workload, jobs: Sequence[Job], kind: str) -> dict[str, float]:
    """Return times between two tokens, of whole sessions and of watched requests, after the warm-up."""
    behind = {request.request_id for request in workload.requests[workload.warmup :]}
    answers = [job for job in jobs if job.request_id in behind and job.generated > 1]
    gaps = sum(job.generated - 1 for job in answers)
    decoding_s = sum(job.finished_s - job.first_token_s for job in answers)
    found = {"itl_ms": 1e3 * decoding_s / gaps} if gaps else {}
    spans = _sessions([job for job in jobs if job.request_id in behind])
    if spans:
        found["job"] = float(np.mean(spans))
    if kind in TRAFFIC and TRAFFIC[kind].watched:
        own = [job for job in jobs if job.request_id.startswith(f"{TRAFFIC[kind].watched}-")]
        ttft = [job.first_token_s - job.arrival_s for job in own if job.request_id in behind]
        found |= {"watched": float(np.mean(ttft)), "watched_p99": float(np.percentile(ttft, 99))}
    return found


def _sessions(jobs: Sequence[Job]) -> list[float]:
    """Return seconds from the first arrival to the last end of each session of several turns."""
    spans: dict[str, tuple[float, float]] = {}
    root_of: dict[str, str] = {}
    several: set[str] = set()
    for job in sorted(jobs, key=lambda job: job.arrival_s):
        before = job.request.after
        root = job.request_id if before is None else root_of.get(before, before)
        root_of[job.request_id] = root
        if before is not None:
            several.add(root)
        began, ended = spans.get(root, (job.arrival_s, job.finished_s))
        spans[root] = began, max(ended, job.finished_s)
    return [ended - began for root, (began, ended) in spans.items() if root in several]


def _together(workloads: Sequence[Workload]) -> Workload:
    """Return the replicas' requests in one workload, in order of their numbers."""
    parts = [request for workload in workloads for request in workload.requests]
    if len(workloads) > 1:
        parts.sort(key=lambda request: int(request.request_id.rpartition("-")[2]))
    warmup = sum(workload.warmup for workload in workloads)
    return replace(workloads[0], requests=tuple(parts), warmup=warmup)
