"""vLLM adapter: `--scheduler-cls peek.adapters.vllm.Scheduler`.

The classes are made on first use, so that importing this package does not import vLLM.  They do nothing
unless `peek` is configured: by `PEEK_POLICY=peek` in the environment, or `--additional-config '{"peek":
{"policy": "peek"}}'`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PeekAsyncScheduler", "PeekScheduler", "Scheduler"]


class Scheduler:
    """Constructs `PeekAsyncScheduler` if the engine schedules asynchronously, else `PeekScheduler`."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        asynchronous = vllm_config.scheduler_config.async_scheduling
        made = __getattr__("PeekAsyncScheduler" if asynchronous else "PeekScheduler")
        return made(vllm_config, *args, **kwargs)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler as SyncScheduler

    from peek.adapters.vllm.scheduler import scheduler_class

    return scheduler_class(name, SyncScheduler if name == "PeekScheduler" else AsyncScheduler)
