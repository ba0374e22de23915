"""How SGLang finds `peek`: an entry point where it has plug-ins, a scheduler process before that.

`register` is named in the entry-point group `sglang.srt.plugins` (0.5.11 and later), which SGLang calls in
each of its processes.  It does nothing unless `peek` is configured.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from peek.adapters.activation import Settings, requested_settings
from peek.adapters.attachment import Attachment
from peek.adapters.engine_info import EngineInfo, sglang_info
from peek.adapters.sglang.adapter import NOMINAL_TOKEN_S, SglangAdapter
from peek.adapters.sglang.ranks import agreement, ranks_of_one_queue
from peek.adapters.sglang.seams import REPLACE_ANY, why_stand_aside
from peek.adapters.sglang.shadow import SglangShadow, why_no_shadow
from peek.errors import InvalidConfig, PeekError

logger = logging.getLogger("peek")

TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
MADE_TARGET = "sglang.srt.managers.scheduler.Scheduler.init_schedule_policy"
AFTER_TARGET = "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill"


def attach(
    policy: Any, settings: Settings, replaces_any: bool = False, scheduler: Any = None
) -> Attachment[SglangAdapter]:
    """What stands beside one `SchedulePolicy`.

    Args:
        policy: it.
        settings: what was asked for.
        replaces_any: whatever `--schedule-policy` says.
        scheduler: the `Scheduler` that the policy is of, for the log, the labels and the other ranks.
    """

    def about() -> EngineInfo:
        ranks = ranks_of_one_queue(getattr(scheduler, "server_args", None))
        return replace(sglang_info(policy, scheduler), ranks=ranks, agree=agreement(scheduler))

    return Attachment(
        settings,
        lambda: why_stand_aside(policy, replaces_any, scheduler),
        lambda shield: SglangAdapter(policy, settings, shield),
        about,
        lambda _adapter: why_no_shadow(policy, scheduler) or SglangShadow(policy, settings, NOMINAL_TOKEN_S),
    )


def planned_priority(
    attachment: Attachment[SglangAdapter], stock: Callable[[], Any], queue: list[Any]
) -> Any:
    """One call of `SchedulePolicy.calc_priority`; `stock` is SGLang's own."""
    adapter = attachment.working
    if adapter is None:
        return stock()
    attachment.observe("looked_at", queue)
    ordered = attachment.call(adapter.order, queue)
    attachment.count()
    if not ordered:
        return stock()
    touch = getattr(adapter.policy, "_touch_waiting_prefixes", None)
    if touch is not None:
        touch(adapter.policy.policy, queue)
    return False  # 0.5.9: no prefixes were matched; later versions return nothing


def around(settings: Settings, replaces_any: bool = False) -> Callable[..., Any]:
    """The hook around `calc_priority(self, waiting_queue, ...)`; attaches on a policy's first call.

    Arguments go on as they came: SGLang's own names must not meet ours.
    """

    def calc_priority(stock: Any, policy: Any, /, *args: Any, **kwargs: Any) -> Any:
        attachment = getattr(policy, "peek", None)
        if attachment is None:
            attachment = policy.peek = attach(policy, settings, replaces_any)
        queue = args[0] if args else kwargs["waiting_queue"]
        return planned_priority(attachment, lambda: stock(policy, *args, **kwargs), queue)

    return calc_priority


def after_policy(settings: Settings, replaces_any: bool = False) -> Callable[..., None]:
    """The hook after `Scheduler.init_schedule_policy`: attaches, so that the log says what is replaced."""

    def made(_found: Any, scheduler: Any, /, *_args: Any, **_kwargs: Any) -> None:
        scheduler.policy.peek = attach(scheduler.policy, settings, replaces_any, scheduler)

    return made


def after_prefill(found: Any, scheduler: Any, /, *_args: Any, **_kwargs: Any) -> None:
    """The hook after `Scheduler.get_new_batch_prefill`: who was admitted is told at once.

    An idle scheduler does not ask for an order; counters would stand still and differ between ranks.
    """
    attachment: Attachment[SglangAdapter] | None = getattr(scheduler.policy, "peek", None)
    if attachment is None:
        return
    batch = getattr(found, "batch_to_run", found)  # wrapped in later versions
    attachment.observe("turned", scheduler, batch, getattr(found, "running_batch", None))
    if batch is None:
        return
    adapter = attachment.adapter  # `working` counts the calls, and this belongs to the same one
    if adapter is not None:
        attachment.call(adapter.admitted, batch.reqs)
        attachment.count()


def configured() -> Settings | None:
    """What the environment asks for, None where it asks for nothing.  `InvalidConfig`."""
    asks_to_replace()
    settings = requested_settings(None)
    if settings.config.is_stock:
        logger.info("peek: not configured (set PEEK_POLICY); stock order")
        return None
    return settings


def asks_to_replace() -> bool:
    """Whether the environment wants any `--schedule-policy` replaced.  `InvalidConfig`."""
    value = os.environ.get(REPLACE_ANY, "")
    if value not in ("", "0", "1"):
        raise InvalidConfig(f"{REPLACE_ANY} is {value!r}; valid: 0, 1")
    return value == "1"


def configured_or_exit() -> Settings | None:
    """`configured`, where a mistake must stop the process.

    SGLang logs what a plug-in raises and serves on, in its own order; it lets `SystemExit` pass.
    """
    try:
        return configured()
    except PeekError as error:
        logger.critical("peek: %s", error)
        raise SystemExit(f"peek: {error}") from error


def register() -> None:
    """Entry point of `sglang.srt.plugins`: hook `calc_priority` in this process, once.

    SGLang calls it in the process that starts the others first, so a mistake in a setting ends the server
    before a model is loaded.
    """
    settings = configured_or_exit()
    if settings is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    replaces_any = asks_to_replace()
    HookRegistry.register(MADE_TARGET, after_policy(settings, replaces_any), HookType.AFTER)
    HookRegistry.register(TARGET, around(settings, replaces_any), HookType.AROUND)
    HookRegistry.register(AFTER_TARGET, after_prefill, HookType.AFTER)
