"""Options of the queue and of the routers, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from peek.config import PeekConfig
from peek.errors import InvalidConfig
from peek.fleet import FleetConfig
from peek.fleet.prompt_keys import BLOCK_TOKENS
from peek.settings import require_within

QUEUE_OPTIONS: Final[dict[str, Any]] = {
    "policy": "peek",
    "window": 0,
    "max_ongoing_requests": 64,
    "cache_tokens": 200_000,
    "stickiness": 4.0,
    "max_waiting": 10_000,
    "max_request_s": 3600.0,
}
"""What the queue may be told, and what holds where it is not."""

ROUTER_OPTIONS: Final[dict[str, Any]] = {
    "decode_tokens": 128,
    "retry_after_s": 1.0,
    "max_waiting": QUEUE_OPTIONS["max_waiting"],
}
"""What the routers may be told, likewise."""


def divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the queue and those of the routers, all of them; `InvalidConfig`."""
    unknown = sorted(set(options) - set(QUEUE_OPTIONS) - set(ROUTER_OPTIONS))
    if unknown:
        valid = ", ".join(sorted({**QUEUE_OPTIONS, **ROUTER_OPTIONS}))
        raise InvalidConfig(f"option {unknown[0]!r} is unknown; valid: {valid}")
    queue = {name: options.get(name, default) for name, default in QUEUE_OPTIONS.items()}
    router = {name: options.get(name, default) for name, default in ROUTER_OPTIONS.items()}
    require_within("max_ongoing_requests", queue["max_ongoing_requests"], 1, 2**31)
    require_within("window", queue["window"], 0, queue["max_ongoing_requests"])
    fleet_config(queue)
    require_within("cache_tokens", queue["cache_tokens"], 0, 2**60)
    require_within("max_request_s", queue["max_request_s"], 1.0, 1e9)
    require_within("decode_tokens", router["decode_tokens"], 0, 2**40)
    require_within("retry_after_s", router["retry_after_s"], 0.0, 1e6)
    return queue, router


def fleet_config(queue: Mapping[str, Any]) -> FleetConfig:
    """The fleet that a queue's options ask for.

    Nobody tells of first tokens: what is at a replica counts as queued there until it ends.
    """
    return FleetConfig(
        order=PeekConfig.from_label(queue["policy"]),
        unit_tokens=BLOCK_TOKENS,
        stickiness=queue["stickiness"],
        window_requests=queue["window"] or (queue["max_ongoing_requests"] + 1) // 2,
        window_tokens=0,
        warm_requests=queue["max_ongoing_requests"],
        max_waiting=queue["max_waiting"],
    )
