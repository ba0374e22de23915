"""How SGLang finds `peek`: an entry point where it has plug-ins, a scheduler process before that.

`register` is named in the entry-point group `sglang.srt.plugins` (0.5.11 and later), which SGLang calls in
each of its processes.  It does nothing unless `peek` is configured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from peek.adapters.activation import Settings, requested_settings
from peek.adapters.attachment import Attachment
from peek.adapters.engine_info import sglang_info
from peek.adapters.sglang.adapter import SglangAdapter
from peek.adapters.sglang.seams import why_stand_aside

logger = logging.getLogger("peek")

TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"


def attach(policy: Any, settings: Settings) -> Attachment[SglangAdapter]:
    """What stands beside one `SchedulePolicy`."""
    return Attachment(
        settings,
        lambda: why_stand_aside(policy),
        lambda shield: SglangAdapter(policy, settings, shield),
        lambda: sglang_info(policy),
    )


def planned_priority(
    attachment: Attachment[SglangAdapter], stock: Callable[[], Any], queue: list[Any]
) -> Any:
    """One call of `SchedulePolicy.calc_priority`; `stock` is SGLang's own."""
    adapter = attachment.working
    if adapter is None:
        return stock()
    ordered = attachment.call(adapter.order, queue)
    attachment.count()
    if not ordered:
        return stock()
    touch = getattr(adapter.policy, "_touch_waiting_prefixes", None)
    if touch is not None:
        touch(adapter.policy.policy, queue)
    return False  # 0.5.9: no prefixes were matched; later versions return nothing


def around(settings: Settings) -> Callable[..., Any]:
    """The hook around `calc_priority(self, waiting_queue, ...)`; attaches on a policy's first call."""

    def calc_priority(stock: Any, policy: Any, queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        attachment = getattr(policy, "peek", None)
        if attachment is None:
            attachment = policy.peek = attach(policy, settings)
        return planned_priority(attachment, lambda: stock(policy, queue, *args, **kwargs), queue)

    return calc_priority


def configured() -> Settings | None:
    """What the environment asks for, None where it asks for nothing."""
    settings = requested_settings(None)
    if settings.config.is_stock:
        logger.info("peek: not configured (set PEEK_POLICY); stock order")
        return None
    return settings


def register() -> None:
    """Entry point of `sglang.srt.plugins`: hook `calc_priority` in this process, once."""
    settings = configured()
    if settings is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, around(settings), HookType.AROUND)
