"""What a deployment is given: `fleet_options`, or the classes `FleetRouter` and `FleetExchangeActor` by name.

The classes are made on first use, so that importing this module does not import Ray.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from peek.adapters.ray_serve.exchange import Exchange
from peek.adapters.ray_serve.routing import FleetRouting
from peek.adapters.ray_serve.settings import ACTOR_NAME, checked, why_stand_aside

logger = logging.getLogger("ray.serve.peek")


def _router_class() -> Any:
    from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

    return type(
        "FleetRouter",
        (FleetRouting, PowerOfTwoChoicesRequestRouter),
        {
            "__module__": __name__,
            "__doc__": "peek's choice; where it has none, Ray's power of two choices.",
        },
    )


def _exchange_class() -> Any:
    import ray

    return ray.remote(num_cpus=0)(Exchange)


_MADE: Final = {"FleetRouter": _router_class, "FleetExchangeActor": _exchange_class}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in globals():
        globals()[name] = _MADE[name]()
    return globals()[name]


def fleet_options(**options: Any) -> dict[str, Any]:
    """Return arguments for `serve.deployment`, or fields of `deployment_config` in `ray.serve.llm`.

    On a version of Ray that `peek` was not tested on it returns only `max_ongoing_requests` and logs an
    error.

    Args:
        **options: options of the routers:

            max_ongoing_requests: requests that a replica takes; passed to Ray, too.
            seats: requests that its engine computes at once, its max_num_seqs.  Places beyond the seats go to
                requests of which the replica holds half the prompt.  A request without a place waits in its
                router.
            policy: label of the order in which requests wait there for one replica.
            cache_tokens: size of a replica's prefix cache, tokens.
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

    return {
        "max_ongoing_requests": found["max_ongoing_requests"],
        "deployment_actors": [
            DeploymentActorConfig(
                name=ACTOR_NAME, actor_class=__getattr__("FleetExchangeActor"), actor_options={"num_cpus": 0}
            )
        ],
        "request_router_config": RequestRouterConfig(
            request_router_class=__getattr__("FleetRouter"), request_router_kwargs=found
        ),
    }
