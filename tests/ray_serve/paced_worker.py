"""A worker of vLLM's whose steps take a fixed time for each token, as a large model's would.

The small model computes, too: what it takes is a part of that time.  PACED_TOKEN_S sets it.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from vllm.v1.worker.cpu_worker import CPUWorker

STEP_S: Final = 0.02
TOKEN_S: Final = float(os.environ.get("PACED_TOKEN_S", "0.2e-3"))


class PacedWorker(CPUWorker):
    """vLLM's worker for CPUs, slower."""

    def execute_model(self, scheduler_output: Any) -> Any:
        started = time.perf_counter()
        made = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            time.sleep(max(0.0, STEP_S + tokens * TOKEN_S - (time.perf_counter() - started)))
        return made
