"""SGLang's seams: whether its policy may be replaced, and what a request tells.

Checked against 0.5.9, 0.5.17 and 0.5.23.  Nothing here changes a class of SGLang.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Final

from peek.adapters.guard import require
from peek.adapters.sglang.caches import require_cache, why_not_understood
from peek.adapters.sglang.namespaces import ALONE, namespace_of
from peek.adapters.tenants import first_text

REPLACED = ("fcfs", "lpm")
"""Values of `--schedule-policy` that `peek` takes the place of without being told to."""

REPLACE_ANY = "PEEK_REPLACE_SCHEDULE_POLICY"
"""The variable that tells it to take the place of any other, too."""

_NEEDED = ("policy", "tree_cache.page_size", "enable_priority_scheduling", "priority_sign")


def require_seams(policy: Any, evicts: bool) -> None:
    """`EngineMismatch` naming the first attribute that this version of SGLang does not have."""
    require(policy, _NEEDED, "SGLang")
    require_cache(policy.tree_cache, evicts)


def schedule_policy(policy: Any) -> str:
    """The `--schedule-policy` in force; SGLang itself falls back to fcfs without a prefix cache."""
    return str(getattr(policy.policy, "value", policy.policy))


def setting_of(scheduler: Any, name: str) -> Any:
    """A server argument, None where the scheduler or this version does not have it."""
    return getattr(getattr(scheduler, "server_args", None), name, None)


def why_stand_aside(policy: Any, replaces_any: bool = False, scheduler: Any = None) -> str | None:
    """Why SGLang's own order stays, None if there is no reason.

    Args:
        policy: a `SchedulePolicy`.
        replaces_any: whether an order that is not first come, first served or longest prefix may go, too.
        scheduler: the `Scheduler` that the policy is of, None if that is not known.
    """
    if setting_of(scheduler, "disaggregation_mode") == "decode":
        return "a decode worker's requests wait with their KV, and have no prefill to order by"
    chosen = schedule_policy(policy)
    if chosen not in REPLACED and not replaces_any:
        return (
            f"--schedule-policy {chosen} was asked for, and peek takes the place of {' and '.join(REPLACED)}"
            f" only ({REPLACE_ANY}=1 replaces it)"
        )
    return why_not_understood(policy.tree_cache)


# -- requests -----------------------------------------------------------------------------------------


def prompt_of(request: Any) -> tuple[Any, int]:
    """A request's tokens (with what it generated before a retraction), and how many may be matched."""
    tokens = request.origin_input_ids + request.output_ids
    limit = len(tokens) - 1  # the last one is always computed
    compute = getattr(request, "_compute_max_prefix_len", None)
    if compute is not None:
        limit = compute(len(tokens))
    elif request.return_logprob and request.logprob_start_len >= 0:
        limit = min(limit, request.logprob_start_len)
    return tokens, max(limit, 0)


def request_namespace(request: Any) -> str:
    """What keeps a request's tokens apart from the same tokens of others."""
    if getattr(request, "positional_embed_overrides", None) is not None:
        return ALONE + str(request.rid)
    return namespace_of(request.extra_key, getattr(request, "cache_salt", None))


def outputs_of(request: Any) -> Sized:
    """Tokens generated so far; grows in place."""
    generated: Sized = request.output_ids
    return generated


_NAMES: Final = {"none": (), "named": ("routing_key",), "namespace": ("extra_key", "cache_salt")}


def tenant_of(request: Any, tenants: str) -> str:
    """Whom a request is accounted to, by the option `tenants`: nobody, its routing key, or its namespace."""
    return first_text(getattr(request, name, None) for name in _NAMES[tenants])


def is_turn(request: Any) -> bool:
    """Whether a request is a turn of a streaming session, whose KV stays with the session."""
    session = getattr(request, "session", None)
    return session is not None and bool(getattr(session, "streaming", False))


def was_admitted(request: Any, outputs_before: int) -> bool:
    """Whether a request that left the waiting queue went into a batch; False if it was aborted."""
    if is_turn(request):  # one that waits may have been lent its session's row
        return request.already_computed > 0 or len(request.output_ids) > outputs_before
    row = getattr(request, "req_pool_idx", None)
    if row is None:
        row = getattr(getattr(request, "kv", None), "req_pool_idx", None)
    return row is not None or len(request.output_ids) > outputs_before


def prefill_ended(request: Any, outputs_before: int) -> bool:
    """Whether an admitted request's prefix is in the cache now, or the request is gone."""
    return len(request.output_ids) > outputs_before or request.finished() or request.is_retracted


def entry_time(request: Any) -> float:
    """When the request entered the waiting queue, on the engine's clock; it breaks ties inside a priority."""
    return float(request.time_stats.wait_queue_entry_time)
