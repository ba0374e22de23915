"""Ray Serve: routers that send a request where its prompt is cached, or where the least work waits::

    from peek.adapters.ray_serve import fleet_options

    @serve.deployment(num_replicas=4, **fleet_options(max_ongoing_requests=256))
    class Model: ...

`routing` is the router of each handle, `decider` its planner.  The routers of a deployment share loads
through `exchange`.  `classes` has what a deployment is given, `settings` the options and Ray's internals.
"""

from __future__ import annotations

from peek.adapters.ray_serve.classes import fleet_options

__all__ = ["fleet_options"]
