"""Ray Serve (2.60): requests wait in one queue for all replicas of a deployment, see `fleet_options`::

    from peek.adapters.ray_serve import fleet_options

    @serve.deployment(num_replicas=4, **fleet_options(max_ongoing_requests=64))
    class Model: ...

The parts: `routing` is what Ray's router of each handle does, `queue_client` how it talks to the queue,
`queue` the actor that decides, `classes` what Ray is given, `settings` the options and what depends on how
Ray is built.
"""

from __future__ import annotations

from peek.adapters.ray_serve.classes import fleet_options

__all__ = ["fleet_options"]
