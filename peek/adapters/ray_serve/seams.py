"""What depends on how Ray 2.60 is built: its versions, names and news."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

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

    To be called in a deployment's actor.  What is returned must be kept.
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
