"""vLLM's real scheduler and block pool in virtual time, with the CPU time of `schedule()`.

The engine itself is `RealScheduler` of tests/vllm; here it may have longer prompts and is timed.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

import simulated_worker
import vllm_lab
from policies import VARIANTS, planner_for
from streams import longest

from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

CONTEXT_TOKENS = 16384
VERSION: str = vllm_lab.vllm.__version__


class RealVllm(simulated_worker.RealScheduler):
    """`RealScheduler` that measures the CPU time of each `schedule()`."""

    def __init__(self, workload: Workload, label: str, cost: CostModel) -> None:
        context = max(CONTEXT_TOKENS, longest(workload))
        vllm_lab.TINY_LLAMA["max_position_embeddings"] = context
        simulated_worker.MAX_MODEL_LEN = context
        variant = VARIANTS.get(label)
        super().__init__(workload, str(variant["policy"]) if variant else label, cost)
        if variant:
            self.scheduler.peek.planner = planner_for(label, blocks=True)
        self.schedule_s: list[float] = []
        inner = self.scheduler.schedule

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            result = inner(*args, **kwargs)
            self.schedule_s.append(time.process_time() - started)
            return result

        self.scheduler.schedule = timed
