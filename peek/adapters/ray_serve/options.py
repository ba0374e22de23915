"""What a deployment says to have its requests wait in one queue."""

from __future__ import annotations

import logging
from typing import Any

from peek.adapters.ray_serve import classes
from peek.adapters.ray_serve.seams import ACTOR_NAME, why_stand_aside
from peek.adapters.ray_serve.settings import divided

logger = logging.getLogger("ray.serve.peek")


def fleet_options(**options: Any) -> dict[str, Any]:
    """Arguments for `serve.deployment`, or fields of `deployment_config` in `ray.serve.llm`.

    On a Ray that this was not written for they are none, and an error in the log says so.

    Args:
        **options: of the queue and its routers:

            max_ongoing_requests: how many a replica takes; Ray is told, too.
            window: how many are sent to a replica that does not hold what they share, half of
                `max_ongoing_requests` where it is left out; the rest is for those of whose prompt it does.
                About as many as the engine computes at once.
            cache_tokens: prefix cache of a replica.
            policy: the order among those who wait for one replica, a label.
            stickiness: see `FleetConfig`.
            max_waiting: who comes when so many wait is refused, with `BackPressureError`: over HTTP a 503.
            retry_after_s: what that answer says.
            decode_tokens: tokens that an answer is expected to have, where the request allows as many.
            max_request_s: after that long a request that nobody told the end of counts as ended.

    Raises `InvalidConfig` for an unknown option or value.
    """
    queue, router = divided(options)
    why = why_stand_aside()
    if why:
        logger.error("peek stands aside, Ray Serve's own router decides: %s", why)
        return {"max_ongoing_requests": queue["max_ongoing_requests"]}
    from ray.serve.config import DeploymentActorConfig, RequestRouterConfig

    return {
        "max_ongoing_requests": queue["max_ongoing_requests"],
        "deployment_actors": [
            DeploymentActorConfig(
                name=ACTOR_NAME,
                actor_class=classes.FleetQueueActor,
                init_kwargs={"options": queue},
                actor_options={"num_cpus": 0, "max_concurrency": 10_000},
            )
        ],
        "request_router_config": RequestRouterConfig(
            request_router_class=classes.FleetRouter, request_router_kwargs=router
        ),
    }
