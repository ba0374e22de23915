"""The scheduler classes to hand to vLLM's `--scheduler-cls`, made from vLLM's own.

`scheduler_class(base)` derives from the stock class and adds two lines to `schedule()`.  The base is a
parameter because vLLM has two, for synchronous and asynchronous scheduling, and because it is imported
only when an engine asks for it.
"""

from __future__ import annotations

import logging
from typing import Any

from peek.adapters.activation import requested_config
from peek.adapters.metrics import EngineMetrics
from peek.adapters.shield import Shield
from peek.adapters.vllm.adapter import VllmAdapter
from peek.adapters.vllm.seams import why_stand_aside

logger = logging.getLogger("peek")


def attach(scheduler: Any, vllm_config: Any) -> tuple[VllmAdapter | None, Shield]:
    """The adapter for a scheduler, None where the engine's own order stays.

    Raises `InvalidConfig` for a mistake in the settings: that is the user's to mend before the engine
    serves.  Anything else that goes wrong leaves the engine stock.
    """
    additional = getattr(vllm_config, "additional_config", None)
    options = additional.get("peek") if isinstance(additional, dict) else None
    config = requested_config(options)
    shield = Shield(config.strict)
    if config.is_stock:
        logger.info("peek: not configured (set PEEK_POLICY or additional_config); stock order")
        return None, shield
    reason = shield.call(why_stand_aside, scheduler)
    if reason is not None:
        logger.warning("peek: stands aside, stock order: %s", reason)
        return None, shield
    adapter = shield.call(VllmAdapter, scheduler, config, shield)
    if adapter is not None:
        logger.info("peek: active, %s", config)
    return adapter, shield


def scheduler_class(name: str, base: Any) -> Any:
    """A subclass of `base` (vLLM's Scheduler or AsyncScheduler) that plans before it schedules."""

    class PlannedScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; `peek` is the adapter (None: stock) and `peek_shield` its shield."""

        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(vllm_config, *args, **kwargs)
            self.peek, self.peek_shield = attach(self, vllm_config)
            self.peek_metrics = None
            if self.peek is not None:
                rank = getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0
                self.peek_metrics = self.peek_shield.call(EngineMetrics, str(rank))

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            if self.peek is None or not self.peek_shield.active:
                if self.peek is not None:
                    self.peek_shield.undo(self.peek.detach)
                return super().schedule(*args, **kwargs)
            self.peek_shield.call(self.peek.before_schedule)
            output = super().schedule(*args, **kwargs)
            self.peek_shield.call(self.peek.after_schedule, output)
            if self.peek_metrics is not None:
                self.peek_shield.call(self.peek_metrics.update, self.peek, self.peek_shield)
            return output

    PlannedScheduler.__name__ = PlannedScheduler.__qualname__ = name
    PlannedScheduler.__module__ = "peek.adapters.vllm"
    return PlannedScheduler
