"""How SGLang loads `peek`: by `register` if it has plug-ins (0.5.11), else by `run_scheduler_process`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, Final

from peek.adapters.activation import MODES, Settings, requested_settings
from peek.adapters.containment import require
from peek.adapters.engine_adapter import EngineInfo, version_of
from peek.adapters.lifecycle import Attachment
from peek.adapters.sglang.adapter import OF_POLICY, SglangAdapter, schedule_policy
from peek.adapters.sglang.caches import why_not_understood
from peek.adapters.sglang.requests import Served
from peek.adapters.sglang.shadow import SglangShadow, setting_of, why_no_shadow
from peek.errors import InvalidConfig, PeekError

logger = logging.getLogger("peek")

REPLACED: Final = ("fcfs", "lpm")
"""Values of `--schedule-policy` that `peek` always replaces."""

REPLACE_ANY: Final = "PEEK_REPLACE_SCHEDULE_POLICY"
"""The variable that makes `peek` replace any other value, too."""


def why_stand_aside(policy: Any, scheduler: Any) -> str | None:
    """Return why SGLang's own order stays with this `SchedulePolicy`; None if there is no reason.

    `EngineMismatch` if it lacks a member that is needed.
    """
    require(policy, OF_POLICY, "SGLang")
    if setting_of(scheduler, "disaggregation_mode") == "decode":
        return "a decode worker's requests wait with their KV, and have no prefill to order by"
    chosen = schedule_policy(policy)
    if chosen in REPLACED or asks_to_replace():
        return why_not_understood(policy.tree_cache)
    own = f"peek takes the place of {' and '.join(REPLACED)} only"
    return f"--schedule-policy {chosen} was asked for, and {own} ({REPLACE_ANY}=1 replaces it)"


def sglang_info(policy: Any, scheduler: Any) -> EngineInfo:
    cache, rank = getattr(policy, "tree_cache", None), partial(_rank, scheduler)
    kind, core = type(cache).__name__, type(getattr(cache, "tree_core", cache)).__name__
    return EngineInfo(
        "sglang",
        version_of("sglang"),
        str(setting_of(scheduler, "served_model_name") or setting_of(scheduler, "model_path") or ""),
        f"{kind}{'' if core == kind else f' ({core})'} in pages of {getattr(cache, 'page_size', '?')}",
        rank("dp_rank") or rank("attn_dp_rank"),
        rank("tp_rank"),
        speaks=not any(map(rank, ("attn_tp_rank", "attn_cp_rank", "pp_rank"))),
        ranks=ranks_of_one_queue(getattr(scheduler, "server_args", None)),
        agree=mode_agreement(scheduler),
    )


def _rank(scheduler: Any, name: str) -> int:
    """Return a rank of this process; 0 if none is found."""
    # It is in the scheduler (0.5.9), in its `ps` (0.5.17), or in a record of the process (0.5.23).
    places = [scheduler, getattr(scheduler, "ps", None)]
    with suppress(ImportError):
        from sglang.srt.runtime_context import get_parallel

        places.append(get_parallel())
    for place in places:
        with suppress(Exception):  # a record that has not been filled in yet may raise anything
            value = getattr(place, name, None)
            if isinstance(value, int):
                return value
    return 0


def ranks_of_one_queue(arguments: Any) -> int:
    """Return how many schedulers these `ServerArgs` start for each queue; 0 if there are no `ServerArgs`."""
    if arguments is None:
        return 0
    tp, pp, dp = (int(getattr(arguments, f"{kind}_size", 1) or 1) for kind in ("tp", "pp", "dp"))
    return tp * pp // dp if getattr(arguments, "enable_dp_attention", False) else tp * pp


def mode_agreement(scheduler: Any) -> Callable[[str], str] | None:
    """Return a function that each rank calls with its own mode, and that returns the first rank's to all.

    It is a broadcast on the CPU over SGLang's group of tensor-parallel ranks, which all order the queue
    equally often.  None with one rank, and with pipeline or context-parallel ranks, which do not.
    """
    group = getattr(scheduler, "attn_tp_cpu_group", None)
    ranks = ranks_of_one_queue(getattr(scheduler, "server_args", None))
    if group is None or ranks == 1:
        return None
    import torch
    from torch import distributed

    if distributed.get_world_size(group) != ranks:
        return None
    first = distributed.get_global_rank(group, 0)

    def agree(mode: str) -> str:
        word = torch.tensor([MODES.index(mode)], device="cpu")
        distributed.broadcast(word, first, group)
        return MODES[int(word)]

    return agree


def attach(policy: Any, settings: Settings, scheduler: Any) -> Attachment[SglangAdapter]:
    """Return the attachment of `policy`, the `SchedulePolicy` of `scheduler`."""
    return Attachment(
        settings,
        lambda: why_stand_aside(policy, scheduler),
        lambda shield: SglangAdapter(policy, settings, shield, scheduler),
        lambda: sglang_info(policy, scheduler),
        lambda adapter: why_no_shadow(policy, scheduler) or SglangShadow(adapter, settings),
    )


# -- the hooks ----------------------------------------------------------------------------------------


def after_policy(settings: Settings, _found: Any, scheduler: Any, /, *_args: Any, **_kwargs: Any) -> None:
    """Hook after `Scheduler.init_schedule_policy`: attach, so that the log says what is replaced."""
    scheduler.policy.peek = attach(scheduler.policy, settings, scheduler)


def around_order(stock: Any, policy: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Hook around `calc_priority(waiting_queue, ...)`; SGLang's argument names must not clash with ours."""
    attachment, ordered = getattr(policy, "peek", None), False
    if attachment is not None:
        queue = args[0] if args else kwargs["waiting_queue"]
        adapter = attachment.working
        record(attachment, "saw", queue)
        if adapter is not None:
            attachment.foretold.tell("looked_at", queue)
            ordered = attachment.call(adapter.order, queue)
            attachment.count()
    if not ordered:
        return stock(policy, *args, **kwargs)
    touch = getattr(policy, "_touch_waiting_prefixes", None)
    if touch is not None:
        touch(None, queue)  # a cache-aware policy would have matched all prompts and so kept them recent
    return False  # for 0.5.9: no prefixes were matched; later versions return nothing


def record(attachment: Any, event: str, queue: Any) -> None:
    """Report the waiting queue to a method of `Served`, which exists while a trace is written."""
    recording = attachment.recording
    recording.served = (recording.served or Served(recording.statements)) if recording else None
    recording.tell(lambda recorder: getattr(recording.served, event)(queue, recorder))


def after_prefill(found: Any, scheduler: Any, /, *_args: Any, **_kwargs: Any) -> None:
    """Hook after `get_new_batch_prefill`: report what was admitted; an idle scheduler asks for no order."""
    attachment: Attachment[SglangAdapter] | None = getattr(scheduler.policy, "peek", None)
    if attachment is None:
        return
    record(attachment, "turned", getattr(scheduler, "waiting_queue", ()))
    batch = getattr(found, "batch_to_run", found)  # wrapped in later versions
    attachment.foretold.tell("turned", scheduler, batch, getattr(found, "running_batch", None))
    adapter = attachment.adapter  # not `working`, which counts calls: this belongs to the same call
    if adapter is not None:
        attachment.call(adapter.turned, [] if batch is None else batch.reqs, scheduler.waiting_queue)
        attachment.count()  # also without a batch: after an abort no request may wait any more


def around_insert(stock: Any, cache: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Hook around `insert(params)` of a prefix cache: report the inserted key to `Insertions`."""
    insertions: Any = getattr(cache, "peek", None)
    began = None if insertions is None else insertions.begin(*args, **kwargs)
    try:
        return stock(cache, *args, **kwargs)
    finally:
        if began is not None:
            insertions.note(*began)


INSERTS: Final = (
    "sglang.srt.mem_cache.radix_cache.RadixCache.insert",
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.insert",
)


def hooks(settings: Settings) -> list[tuple[str, str, Callable[..., Any]]]:
    """Return all hooks in SGLang's own methods: method, position ("after" or "around"), and hook."""
    policy = partial(after_policy, settings)
    return [
        ("sglang.srt.managers.scheduler.Scheduler.init_schedule_policy", "after", policy),
        ("sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority", "around", around_order),
        ("sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill", "after", after_prefill),
        *((each, "around", around_insert) for each in INSERTS if find_spec(each.rsplit(".", 2)[0])),
    ]


# -- how it is started --------------------------------------------------------------------------------


def asks_to_replace() -> bool:
    """Whether the environment asks to replace any `--schedule-policy`.  `InvalidConfig`."""
    value = os.environ.get(REPLACE_ANY, "")
    if value not in ("", "0", "1"):
        raise InvalidConfig(f"{REPLACE_ANY} is {value!r}; valid: 0, 1")
    return value == "1"


def configured_or_exit() -> Settings | None:
    """Return the settings of the environment; None if it asks for nothing.  A mistake ends the process."""
    try:
        asks_to_replace()
        settings = requested_settings(None)
    except PeekError as error:
        logger.critical("peek: %s", error)
        raise SystemExit(f"peek: {error}") from error  # SGLang would only log any other error
    if settings.config.is_stock and not settings.trace_file:
        logger.info("peek: not configured (set PEEK_POLICY); stock order")
        return None
    return settings


def register() -> None:
    """Entry point of `sglang.srt.plugins`, called in each process: put the hooks into it, if configured."""
    settings = configured_or_exit()
    if settings is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, where, hook in hooks(settings):
        HookRegistry.register(target, hook, HookType(where))


# -- without plug-ins (0.5.9) -------------------------------------------------------------------------


def stand(target: str, where: str, hook: Callable[..., Any]) -> None:
    """Put a hook into a method of a class, as SGLang's own registry does."""
    stock = resolve_name(target)

    @wraps(stock)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if where == "around":
            return hook(stock, *args, **kwargs)
        found = stock(*args, **kwargs)
        hook(found, *args, **kwargs)
        return found

    path, name = target.rsplit(".", 1)
    setattr(resolve_name(path), name, hooked)


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """Run SGLang's own `run_scheduler_process` with the hooks in its process."""
    from sglang.srt.managers import scheduler

    settings = configured_or_exit()
    if settings is not None:
        for target, where, hook in hooks(settings):
            stand(target, where, hook)
    return scheduler.run_scheduler_process(*args, **kwargs)
