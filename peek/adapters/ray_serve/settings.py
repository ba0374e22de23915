"""Options of the queue and of the routers, and what depends on how Ray 2.60 is built."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
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
"""Options of the queue with their defaults."""

ROUTER_OPTIONS: Final[dict[str, Any]] = {
    "decode_tokens": 128,
    "retry_after_s": 1.0,
    "max_waiting": QUEUE_OPTIONS["max_waiting"],
}
"""Options of the routers with their defaults."""


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

    Ray does not tell of first tokens: what is at a replica counts as queued there until it ends.
    """
    seats = queue["window"] or (queue["max_ongoing_requests"] + 1) // 2
    return FleetConfig(
        order=PeekConfig.from_label(queue["policy"]),
        unit_tokens=BLOCK_TOKENS,
        stickiness=queue["stickiness"],
        seats=seats,
        window_requests=seats,
        window_tokens=0,
        warm_requests=queue["max_ongoing_requests"],
        max_waiting=queue["max_waiting"],
    )


# -- Ray: versions, names, news of replicas -----------------------------------------------------------


VERSIONS: Final = ("2.60.",)

ACTOR_NAME: Final = "peek_queue"


def why_stand_aside() -> str:
    """Why this Ray's own router is to decide, "" if it need not."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        return "Ray is not installed"
    if not found.startswith(VERSIONS):
        return f"Ray {found} is none that peek was tried on ({', '.join(VERSIONS)}x)"
    return ""


def find_queue(deployment_id: Any) -> Any:
    """The queue of a deployment, None if there is none; asks Ray's registry of names.

    While a rolling update has two of them all routers that look find the same one.
    """
    import ray
    from ray.serve._private.constants import SERVE_DEPLOYMENT_ACTOR_PREFIX, SERVE_NAMESPACE

    prefix = f"{SERVE_DEPLOYMENT_ACTOR_PREFIX}{deployment_id.app_name}::{deployment_id.name}::"
    names = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == SERVE_NAMESPACE
    ]
    ours = [name for name in names if name.startswith(prefix) and name.endswith(f"::{ACTOR_NAME}")]
    for name in sorted(ours, reverse=True):
        try:
            return ray.get_actor(name, namespace=SERVE_NAMESPACE)
        except ValueError:  # it went away just now
            continue
    return None


def watch_replicas(update: Callable[[dict[str, int]], None]) -> Any:
    """Call `update` in this event loop with `{name: max_ongoing_requests}` whenever replicas come or go.

    To be called in a deployment's actor; the caller keeps what is returned.
    """
    import ray
    from ray import serve
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
    from ray.serve._private.long_poll import LongPollClient, LongPollNamespace

    deployment_id = serve.get_deployment_actor_context().deployment_id

    def told(info: Any) -> None:
        update({each.replica_id.unique_id: each.max_ongoing_requests for each in info.running_replicas})

    return LongPollClient(
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE),
        {(LongPollNamespace.DEPLOYMENT_TARGETS, deployment_id): told},
        call_in_event_loop=asyncio.get_running_loop(),
        client_id=f"peek:{ray.get_runtime_context().get_actor_id()}",
    )


def refusal(max_waiting: int, retry_after_s: float) -> Exception:
    """What a caller gets whose request finds the queue full: over HTTP a 503 with Retry-After."""
    from ray.serve.exceptions import BackPressureError

    refused: Exception = BackPressureError(max_waiting, max_waiting, 503, retry_after_s)
    return refused


def bypasses_the_queue() -> bool:
    """Whether `ray.serve.llm` streams directly: it then only asks where a request might go."""
    return os.environ.get("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING") == "1"
