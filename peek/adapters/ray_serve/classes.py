"""What a deployment names: `fleet_options`, or the classes `FleetRouter` and `FleetQueueActor` in a file.

The classes are made on first use, so that importing this module does not import Ray.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from peek.adapters.ray_serve.queue import FleetQueue, QueueMetrics
from peek.adapters.ray_serve.routing import FleetRouting
from peek.adapters.ray_serve.settings import ACTOR_NAME, divided, watch_replicas, why_stand_aside

logger = logging.getLogger("ray.serve.peek")


class ServeQueue(FleetQueue):
    """The queue in an actor of Ray Serve's."""

    _metrics: QueueMetrics | None = None

    def watch(self) -> Any:
        """The controller tells which replicas there are."""
        return watch_replicas(self.set_replicas)

    def export(self, status: dict[str, Any]) -> None:
        """As metrics of Ray's."""
        if self._metrics is None:
            self._metrics = QueueMetrics()
        self._metrics.tell(status)


def _router_class() -> Any:
    from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

    return type(
        "FleetRouter",
        (FleetRouting, PowerOfTwoChoicesRequestRouter),
        {"__module__": __name__, "__doc__": "Ray's power of two choices, behind a queue where there is one."},
    )


def _queue_actor_class() -> Any:
    import ray

    return ray.remote(num_cpus=0)(ServeQueue)


_MADE: Final = {"FleetRouter": _router_class, "FleetQueueActor": _queue_actor_class}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in globals():
        globals()[name] = _MADE[name]()
    return globals()[name]


def fleet_options(**options: Any) -> dict[str, Any]:
    """Arguments for `serve.deployment`, or fields of `deployment_config` in `ray.serve.llm`.

    On a version of Ray that peek was not tried on only `max_ongoing_requests` comes back, and an error in the
    log says so.

    Args:
        **options: of the queue and its routers:

            max_ongoing_requests: how many a replica takes; Ray is told, too.
            window: how many requests are sent to a replica that does not hold their prompts, about as many as
                the engine computes at once; by default half of `max_ongoing_requests`.  The rest is for
                requests of whose prompt it holds half.
            cache_tokens: prefix cache of a replica.
            policy: the order of the requests that wait for one replica, a label.
            stickiness: see `FleetConfig`.
            max_waiting: requests that wait; one more is refused with `BackPressureError`, over HTTP a 503.
            retry_after_s: what that answer says.
            decode_tokens: tokens that an answer is expected to have, where the request allows as many.
            max_request_s: after that long a request whose end was never told counts as ended.

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
                actor_class=__getattr__("FleetQueueActor"),
                init_kwargs={"options": queue},
                actor_options={"num_cpus": 0, "max_concurrency": 10_000},
            )
        ],
        "request_router_config": RequestRouterConfig(
            request_router_class=__getattr__("FleetRouter"), request_router_kwargs=router
        ),
    }
