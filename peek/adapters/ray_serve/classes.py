"""What a deployment is given: `fleet_options`, or the classes `FleetRouter` and `FleetExchangeActor` by name.

The classes are made on first use, so that importing this module does not import Ray.
"""

from __future__ import annotations

import logging
from typing import Any

from peek.adapters.ray_serve.exchange import Exchange
from peek.adapters.ray_serve.routing import FleetRouting
from peek.adapters.ray_serve.settings import ACTOR_NAME, checked, why_stand_aside

logger = logging.getLogger("ray.serve.peek")


def __getattr__(name: str) -> Any:
    if name in globals():
        return globals()[name]
    if name == "FleetRouter":
        from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

        about = "peek's choice; where it has none, Ray's power of two choices."
        bases = (FleetRouting, PowerOfTwoChoicesRequestRouter)
        made: Any = type(name, bases, {"__module__": __name__, "__doc__": about})
    elif name == "FleetExchangeActor":
        import ray

        made = ray.remote(num_cpus=0)(Exchange)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made


def fleet_options(**options: Any) -> dict[str, Any]:
    """Return arguments for `serve.deployment`, or fields of `deployment_config` in `ray.serve.llm`.

    On a version of Ray that `peek` was not tested on it returns only `max_ongoing_requests` and logs an
    error.

    Args:
        **options: options of the routers:

            max_ongoing_requests: requests that a replica takes; passed to Ray, too.
            seats: requests that its engine computes at once, its max_num_seqs.  Places beyond the seats go
                only to requests of which the replica holds half the prompt.  A request without a place waits
                in its router.
            policy: label of the order in which requests wait there for one replica.
            cache_tokens: size of a replica's KV cache, tokens.
            stickiness: see `FleetConfig`.
            decode_tokens: expected length of an answer, tokens; at most what the request allows.

    Raises `InvalidConfig` for an unknown option or value.
    """
    found = checked(options)
    why = why_stand_aside()
    if why:
        logger.error("peek stands aside, Ray Serve's own router decides: %s", why)
        return {"max_ongoing_requests": found["max_ongoing_requests"]}
    from ray.serve.config import DeploymentActorConfig, RequestRouterConfig

    router, actor = __getattr__("FleetRouter"), __getattr__("FleetExchangeActor")
    actors = [DeploymentActorConfig(name=ACTOR_NAME, actor_class=actor, actor_options={"num_cpus": 0})]
    return {
        "max_ongoing_requests": found["max_ongoing_requests"],
        "deployment_actors": actors,
        "request_router_config": RequestRouterConfig(
            request_router_class=router, request_router_kwargs=found
        ),
    }
