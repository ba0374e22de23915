"""vLLM's real scheduler and block pool in virtual time, with the CPU time of `schedule()`.

The engine itself is `RealScheduler` of tests/vllm, which must be on Python's path; here it may have longer
prompts and is timed.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

import simulated_worker
import vllm_lab

from bench.evaluation.cpu_time import timed
from bench.evaluation.policies import VARIANTS, base_of, planner_for
from bench.evaluation.streams import longest
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

CONTEXT_TOKENS = 16384


class RealVllm(simulated_worker.RealScheduler):
    """`RealScheduler` that measures the CPU time of each `schedule()`."""

    def __init__(self, workload: Workload, label: str, cost: CostModel, **options: Any) -> None:
        context = max(CONTEXT_TOKENS, longest(workload.requests))
        vllm_lab.TINY_LLAMA["max_position_embeddings"] = context
        simulated_worker.MAX_MODEL_LEN = context
        super().__init__(workload, base_of(label), cost, **options)
        if label in VARIANTS:
            self.scheduler.peek.adapter.planner = planner_for(label, blocks=True)
        self.schedule_s: list[float] = []
        self.scheduler.schedule = timed(self.scheduler.schedule, self.schedule_s)
