"""How SGLang finds `peek`: an entry point where it has plug-ins, a scheduler process before that.

`register` is named in the entry-point group `sglang.srt.plugins` (0.5.11 and later), which SGLang calls in
each of its processes.  It does nothing unless `peek` is configured.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from peek.adapters.activation import requested_config
from peek.adapters.metrics import EngineMetrics
from peek.adapters.sglang.adapter import SglangAdapter
from peek.adapters.sglang.seams import why_stand_aside
from peek.adapters.shield import Shield
from peek.config import PeekConfig

logger = logging.getLogger("peek")

TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"


class Seat:
    """What stands beside one `SchedulePolicy`: its adapter (None: stock), shield and metrics."""

    def __init__(self, policy: Any, config: PeekConfig) -> None:
        self.shield = Shield(config.strict)
        self.adapter: SglangAdapter | None = None
        self.metrics: EngineMetrics | None = None
        reason = self.shield.call(why_stand_aside, policy)
        if reason is not None:
            logger.warning("peek: stands aside, stock order: %s", reason)
            return
        self.adapter = self.shield.call(SglangAdapter, policy, config, self.shield)
        if self.adapter is not None:
            logger.info("peek: active, %s", config)
            self.metrics = self.shield.call(EngineMetrics, str(os.getpid()))

    def calc_priority(self, stock: Callable[[], Any], queue: list[Any]) -> Any:
        """One call of `SchedulePolicy.calc_priority`; `stock` is SGLang's own."""
        adapter = self.adapter
        if adapter is None:
            return stock()
        if not self.shield.active:
            self.shield.undo(adapter.detach)
            return stock()
        ordered = self.shield.call(adapter.order, queue)
        if self.metrics is not None:
            self.shield.call(self.metrics.update, adapter, self.shield)
        if not ordered:
            return stock()
        touch = getattr(adapter.policy, "_touch_waiting_prefixes", None)
        if touch is not None:
            touch(adapter.policy.policy, queue)
        return False  # 0.5.9: no prefixes were matched; later versions return nothing


def around(config: PeekConfig) -> Callable[..., Any]:
    """The hook around `calc_priority(self, waiting_queue, ...)`; a seat is made on a policy's first call."""

    def calc_priority(stock: Any, policy: Any, queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        seat = getattr(policy, "peek", None)
        if seat is None:
            seat = policy.peek = Seat(policy, config)
        return seat.calc_priority(lambda: stock(policy, queue, *args, **kwargs), queue)

    return calc_priority


def configured() -> PeekConfig | None:
    """The configuration of the environment, None where nothing is asked for."""
    config = requested_config(None)
    if config.is_stock:
        logger.info("peek: not configured (set PEEK_POLICY); stock order")
        return None
    return config


def register() -> None:
    """Entry point of `sglang.srt.plugins`: hook `calc_priority` in this process, once."""
    config = configured()
    if config is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, around(config), HookType.AROUND)
