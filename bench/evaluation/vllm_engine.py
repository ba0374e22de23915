"""vLLM's real scheduler and block pool in virtual time, for longer prompts than the tests have.

The engine itself is `RealScheduler` of tests/vllm, which must be on Python's path.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

import simulated_worker
import vllm_lab

from bench.evaluation.policies import base_of, planner_for
from bench.evaluation.streams import context_tokens
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload


class RealEngine(simulated_worker.RealScheduler):
    """`RealScheduler` for every label of the evaluation."""

    def __init__(self, workload: Workload, label: str, cost: CostModel, **options: Any) -> None:
        context = context_tokens(workload)
        vllm_lab.TINY_LLAMA["max_position_embeddings"] = simulated_worker.MAX_MODEL_LEN = context
        super().__init__(workload, base_of(label), cost, **options)
        if base_of(label) != label:
            self.scheduler.peek.adapter.planner = planner_for(label, blocks=True)
        self.decision = self.scheduler, "schedule"
