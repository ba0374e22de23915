"""The runs of `peek simulate`."""

from __future__ import annotations

import time
from typing import Any

from peek import backend
from peek.cli.per_request import PerRequest
from peek.cli.progress import ProgressBar
from peek.cli.report import Batch
from peek.simulation.cost import CostModel
from peek.simulation.engines import Job
from peek.simulation.fleet import FleetShape, simulate_fleet
from peek.simulation.simulate import simulate
from peek.simulation.workload import Workload


def run_all(
    workloads: list[Workload],
    policies: list[str],
    shapes: list[FleetShape],
    cache: str,
    cost: CostModel,
    per_request: PerRequest | None,
) -> list[Batch]:
    """A run for each workload, policy and fleet (`shapes`; none for a single engine)."""
    batches = []
    fleets: list[FleetShape | None] = [*shapes] or [None]
    requests = sum(len(workload.requests) for workload in workloads) * len(policies) * len(fleets)
    with ProgressBar(requests) as progress:
        for workload in workloads:
            runs = []
            for label in policies:
                for shape in fleets:
                    name = label if shape is None else f"{shape.router}, {label}"
                    progress.next_part(f"{name}, seed {workload.seed}" if len(workloads) > 1 else name)
                    runs.append(_run(workload, label, shape, cache, cost, progress, per_request))
            batches.append(Batch(workload, cache, cost, runs))
    return batches


def _run(
    workload: Workload,
    label: str,
    shape: FleetShape | None,
    cache: str,
    cost: CostModel,
    progress: ProgressBar,
    per_request: PerRequest | None,
) -> dict[str, Any]:
    """The figures of the contract, and what they hold for."""

    def watch(jobs: list[Job]) -> None:
        if per_request is not None:
            per_request.add(jobs, label, workload.seed)

    timer = time.perf_counter
    if shape is None:
        figures = simulate(workload, label, cache, timer, cost, progress.show, watch)
    else:
        figures = simulate_fleet(workload, label, shape, cache, timer, cost, progress.show)
    found = {
        **figures,
        "warmup": workload.warmup,
        "arena_tokens": workload.arena_tokens,
        "cache": cache,
        "hardware": cost.hardware.name,
        "model": cost.model.name,
        "backend": backend(),
    }
    return {**found, "rate_scale": workload.rate_scale} if workload.load == "trace" else found
