"""vLLM adapter: `--scheduler-cls peek.adapters.vllm.PeekScheduler` (or `PeekAsyncScheduler`).

The classes are made on first use, so that importing this package does not import vLLM.  They do nothing
until asked to: by `PEEK_POLICY=peek` in the environment, or `--additional-config
'{"peek": {"policy": "peek"}}'`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PeekAsyncScheduler", "PeekScheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from peek.adapters.vllm.scheduler import scheduler_class

    made = scheduler_class(name, Scheduler if name == "PeekScheduler" else AsyncScheduler)
    globals()[name] = made
    return made
