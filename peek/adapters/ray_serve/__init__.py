"""Ray Serve (2.60): each request goes where its prompt is cached or least is to do, see `fleet_options`::

    from peek.adapters.ray_serve import fleet_options

    @serve.deployment(num_replicas=4, **fleet_options(max_ongoing_requests=256))
    class Model: ...

The parts: `routing` is what Ray's router of each handle does, `decider` its planner, `exchange` how the
routers of a deployment hear of each other, `classes` what Ray is given, `settings` the options and what
depends on how Ray is built.
"""

from __future__ import annotations

from peek.adapters.ray_serve.classes import fleet_options

__all__ = ["fleet_options"]
