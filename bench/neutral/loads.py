"""Loads for simulators that are not ours, and what our simulated engines make of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from bench.arena.kinds import at_load, build
from peek.simulation.cells import cell
from peek.simulation.engines import Job
from peek.simulation.simulate import simulate
from peek.simulation.workload import Workload

SEED: Final = 901
ENGINE_OF: Final = {"blocks": "vllm", "radix": "sglang"}


class Served(NamedTuple):
    """Hit as a share of prompt tokens; TTFTs and time until the last answer ends, in seconds."""

    hit: float
    mean_s: float
    p99_s: float
    makespan_s: float


def load(name: str, seed: int, cache: str = "blocks") -> Workload:
    """Make the workload of a cell or kind, without later turns of sessions."""
    kind = name.removeprefix("kind:")
    whole = kind == name
    base = cell(name, "heavy", seed, ENGINE_OF[cache]) if whole else at_load(build(kind, seed), 1.1, cache)
    return replace(base, requests=[each for each in base.requests if each.after is None], warmup=0)


def at_once(workload: Workload) -> Workload:
    """Return the same requests with all arrivals at 0."""
    return replace(workload, requests=[replace(each, arrival_s=0.0) for each in workload.requests])


def ours(workload: Workload, policy: str, cache: str = "blocks") -> tuple[Served, list[str]]:
    """Serve a workload on our simulated engine; return its figures, and ids in the order of admission."""
    jobs: list[Job] = []
    run = simulate(workload, policy, cache, watch=jobs.extend)
    order = [job.request_id for job in sorted(jobs, key=lambda job: (job.admitted_s, job.first_token_s))]
    ttft = run["ttft_s"]
    return Served(run["cache_hit"], ttft["mean"], ttft["p99"], max(job.finished_s for job in jobs)), order
