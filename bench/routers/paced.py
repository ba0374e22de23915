"""A worker of vLLM on a CPU whose steps last as long as a larger model's would.

This file alone of the package is put on the servers' path.  The servers of a fleet share the cores of one
machine.  Because a step waits instead of computing, each server keeps its own speed, as on a device of its
own.  Scheduler, blocks, prefix cache and tokens are vLLM's.
"""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

STEP_S = float(os.environ.get("PACED_STEP_S", "0"))
TOKEN_S = float(os.environ.get("PACED_TOKEN_S", "0"))


class Worker(CPUWorker):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Each step lasts at least `PACED_STEP_S`, and `PACED_TOKEN_S` more for each token that it computes."""

    def execute_model(self, scheduler_output: Any) -> Any:
        begin = time.monotonic()
        result = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            left_s = STEP_S + TOKEN_S * tokens - (time.monotonic() - begin)
            time.sleep(max(0.0, left_s))
        return result
