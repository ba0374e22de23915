"""The classes to hand to Ray: `FleetRouter` and `FleetQueueActor`, to be named in a configuration file, too.

They are made on first use, so that importing this module does not import Ray.
"""

from __future__ import annotations

from typing import Any, Final

from peek.adapters.ray_serve.metrics import QueueMetrics
from peek.adapters.ray_serve.queue import FleetQueue
from peek.adapters.ray_serve.routing import FleetRouting
from peek.adapters.ray_serve.seams import watch_replicas


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
    made = globals()[name] = _MADE[name]()
    return made
