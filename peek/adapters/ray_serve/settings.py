"""Options of the routers, and everything that depends on the internals of Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from peek.config import PeekConfig
from peek.errors import InvalidConfig
from peek.fleet import FleetConfig
from peek.fleet.prompt_keys import BLOCK_TOKENS
from peek.settings import require_whole

OPTIONS: Final[dict[str, Any]] = {
    "policy": "peek",
    "max_ongoing_requests": 1_000,
    "seats": 256,
    "cache_tokens": 200_000,
    "stickiness": 4.0,
    "decode_tokens": 128,
}
"""The options with their defaults."""


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, with defaults; `InvalidConfig` for an unknown or invalid one."""
    for name in options:
        if name not in OPTIONS:
            raise InvalidConfig(f"option {name!r} is unknown; valid: {', '.join(sorted(OPTIONS))}")
    found = {**OPTIONS, **options}
    require_whole("max_ongoing_requests", found["max_ongoing_requests"], 1, 2**31)
    require_whole("seats", found["seats"], 1, 2**31)
    require_whole("cache_tokens", found["cache_tokens"], 0, 2**60)
    require_whole("decode_tokens", found["decode_tokens"], 0, 2**40)
    fleet_config(found)
    return found


def seats_of(options: Mapping[str, Any]) -> int:
    """Return how many requests a replica computes at once."""
    return int(min(options["seats"], options["max_ongoing_requests"]))


def fleet_config(options: Mapping[str, Any]) -> FleetConfig:
    """Return the fleet's settings.  Ray reports no first tokens, so a request counts as queued to its end."""
    seats = seats_of(options)
    return FleetConfig(
        order=PeekConfig.from_label(str(options["policy"])),
        unit_tokens=BLOCK_TOKENS,
        stickiness=options["stickiness"],
        seats=seats,
        window_requests=seats,
        window_tokens=0,
        warm_requests=options["max_ongoing_requests"],
        max_waiting=2**40,  # Ray itself bounds how many requests wait
    )


# -- Ray: versions, names -----------------------------------------------------------------------------


VERSIONS: Final = ("2.58.", "2.59.", "2.60.")
ACTOR_NAME: Final = "peek_exchange"


def why_stand_aside() -> str:
    """Return why Ray's own router has to decide with this version of Ray; "" if it does not."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        return "Ray is not installed"
    if not found.startswith(VERSIONS):
        return f"Ray {found} is none that peek was tried on ({', '.join(f'{each}x' for each in VERSIONS)})"
    return ""


def find_exchange(deployment_id: Any) -> Any:
    """Find a deployment's exchange, the same for all routers (in an update there are two); or None."""
    import ray
    from ray.serve._private.constants import SERVE_DEPLOYMENT_ACTOR_PREFIX, SERVE_NAMESPACE

    prefix = f"{SERVE_DEPLOYMENT_ACTOR_PREFIX}{deployment_id.app_name}::{deployment_id.name}::"
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors if actor["namespace"] == SERVE_NAMESPACE]
    ours = [name for name in names if name.startswith(prefix) and name.endswith(f"::{ACTOR_NAME}")]
    for name in sorted(ours, reverse=True):
        try:
            return ray.get_actor(name, namespace=SERVE_NAMESPACE)
        except ValueError:  # it went away just now
            continue
    return None


def bypasses_the_router() -> bool:
    """Whether `ray.serve.llm` streams directly, so that its requests never reach this router."""
    return os.environ.get("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING") == "1"
