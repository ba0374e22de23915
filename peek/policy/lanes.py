"""Lanes: how much of the engine's work goes to the cache's order, and how much to the oldest requests.

A cache-friendly order can let an old request wait for ever.  Lanes merge it with a second order, the fair
lane, by stride scheduling.  Each lane has a clock that its admissions push forward in inverse proportion to
its share, and the lane that is behind admits next.

`LaneController` is this library's.  Its clocks go on from cycle to cycle and are charged the *uncached prompt
tokens really admitted*, because a cold request costs an engine a hundred times as much as a warm one.  Its
bound: in any window the fair lane receives at least `fair_share` of the admitted uncached tokens, less the
cost of one request.

`CycleLanes` is the published algorithm, here for reproduction: clocks that start anew every cycle, one charge
per admission, and a fair lane that keeps the sections.  Its published bound does not hold (docs/lanes.md).
"""

from __future__ import annotations

from math import inf
from typing import Final

from mypy_extensions import i64, mypyc_attr

from peek.policy.base import Cycle
from peek.request import NO_LANE, SINGLETON, PendingRequest
from peek.settings import require_number

CACHE_LANE: Final = 0
FAIR_LANE: Final = 1

MIN_SHARE: Final = 0.10
MAX_SHARE: Final = 0.60
EMA_BETA: Final = 0.3
"""The paper's bounds of the dynamic share, and the part by which it moves in a cycle."""


def check_share(fair_share: object) -> None:
    """Raise `InvalidConfig` unless `fair_share` is a number strictly between 0 and 1."""
    require_number("fair_share", fair_share, 1.0)


def check_slo(slo_s: object) -> None:
    """Raise `InvalidConfig` unless `slo_s` is a positive, finite number of seconds."""
    require_number("slo_s", slo_s, inf)


@mypyc_attr(allow_interpreted_subclasses=True)
class Lanes:
    """Merges the policy's order with a fair order, and is told which requests were admitted."""

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        """Merge `cache_lane` with a fair order of `queue`, the same requests in arrival order.  O(n).

        Writes `request.lane`, the lane that picked each request.
        """
        # Not abstract: where a subclass lacks an abstract method, a compiled call of it ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to merge two orders")

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        """Note that a request of the last order was admitted, and what it cost.  O(1)."""


class FairShare:
    """The fair lane's share, fixed or dynamic (the paper's 1 - alpha).

    The dynamic share is `0.15 + 0.5 * singleton_frac + 0.3 * age_pressure`, clamped to 0.10 .. 0.60 and
    smoothed with EMA beta = 0.3.  Here `age_pressure = min(1, oldest singleton's wait / slo_s)`.
    """

    def __init__(self, fair_share: float, dynamic: bool, slo_s: float) -> None:
        check_share(fair_share)
        check_slo(slo_s)
        self.value: float = fair_share
        self.dynamic = dynamic
        self.slo_s: float = slo_s

    def update(self, queue: list[PendingRequest], now: float) -> None:
        """Move the share by one cycle; a fixed share, or an empty queue, changes nothing.  O(n)."""
        if self.dynamic and queue:
            target = target_share(queue, now, self.slo_s)
            self.value = (1.0 - EMA_BETA) * self.value + EMA_BETA * target


def target_share(queue: list[PendingRequest], now: float, slo_s: float) -> float:
    """The dynamic share of a queue in arrival order, before smoothing.  O(n)."""
    n_singletons = 0
    oldest_wait = 0.0
    for request in queue:
        if request.cluster_id == SINGLETON:
            n_singletons += 1
            oldest_wait = max(oldest_wait, now - request.arrival_time)
    singleton_frac = n_singletons / len(queue)
    age_pressure = min(1.0, oldest_wait / slo_s)
    return min(MAX_SHARE, max(MIN_SHARE, 0.15 + 0.5 * singleton_frac + 0.3 * age_pressure))


@mypyc_attr(allow_interpreted_subclasses=True)
class LaneController(Lanes):
    """Stride lanes charged by admitted work; the fair lane is arrival order.

    Args:
        fair_share: part of the uncached tokens that goes to the oldest requests, in (0, 1).
        dynamic: whether the share follows the queue as in the paper, beginning at `fair_share`.
        slo_s: seconds that a singleton has waited when its age pressure is 1.
    """

    def __init__(self, fair_share: float = 0.3, dynamic: bool = False, slo_s: float = 2.0) -> None:
        self.share = FairShare(fair_share, dynamic, slo_s)
        self.lead: float = 0.0
        """How far the fair lane's clock is ahead of the cache lane's, in tokens / share."""

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        self.share.update(queue, cycle.now)
        share = self.share.value
        lead = self.lead
        inherited: set[int] = set()
        ordered: list[PendingRequest] = []
        for request in queue:
            request.lane = NO_LANE
        n: i64 = len(queue)
        next_fair: i64 = 0
        next_cache: i64 = 0
        while len(ordered) < n:
            if lead <= 0.0:
                while queue[next_fair].lane >= 0:
                    next_fair += 1
                request = queue[next_fair]
                request.lane = FAIR_LANE
                lead += float(_cost(request, cycle.unit_tokens, inherited)) / share
            else:
                while cache_lane[next_cache].lane >= 0:
                    next_cache += 1
                request = cache_lane[next_cache]
                request.lane = CACHE_LANE
                lead -= float(_cost(request, cycle.unit_tokens, inherited)) / (1.0 - share)
            ordered.append(request)
        return ordered

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        cost = float(uncached_tokens if uncached_tokens > 0 else 1)
        if request.lane == FAIR_LANE:
            self.lead += cost / self.share.value
        elif request.lane == CACHE_LANE:
            self.lead -= cost / (1.0 - self.share.value)


def _cost(request: PendingRequest, unit_tokens: i64, inherited: set[int]) -> i64:
    """Expected uncached tokens; the first request of a cluster pays for the cluster's prefix."""
    cached = request.cached_len
    if request.cluster_id != SINGLETON:
        if request.cluster_id in inherited:
            cached = max(cached, request.cluster_depth * unit_tokens)
        else:
            inherited.add(request.cluster_id)
    cost = request.num_tokens - cached
    return cost if cost > 1 else 1


@mypyc_attr(allow_interpreted_subclasses=True)
class CycleLanes(Lanes):
    """The published lanes: new clocks every cycle, one charge per admission.

    The fair lane is ordered by (section, arrival, -cached_len).  The lane with the smaller pass value goes
    next; on ties the cache lane does.  A lane skips requests that the other has placed.

    Args: those of `LaneController`; `fair_share` is the paper's 1 - alpha.
    """

    def __init__(self, fair_share: float = 0.3, dynamic: bool = False, slo_s: float = 2.0) -> None:
        self.share = FairShare(fair_share, dynamic, slo_s)

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        self.share.update(queue, cycle.now)
        cache_stride = 1.0 / (1.0 - self.share.value)
        fair_stride = 1.0 / self.share.value
        cache_pass = cache_stride
        fair_pass = fair_stride
        fair_lane = _by_section(queue)
        ordered: list[PendingRequest] = []
        n: i64 = len(queue)
        next_fair: i64 = 0
        next_cache: i64 = 0
        while len(ordered) < n:
            if cache_pass <= fair_pass:
                while cache_lane[next_cache].lane >= 0:
                    next_cache += 1
                request = cache_lane[next_cache]
                request.lane = CACHE_LANE
                cache_pass += cache_stride
            else:
                while fair_lane[next_fair].lane >= 0:
                    next_fair += 1
                request = fair_lane[next_fair]
                request.lane = FAIR_LANE
                fair_pass += fair_stride
            ordered.append(request)
        return ordered


def _by_section(queue: list[PendingRequest]) -> list[PendingRequest]:
    """Order by (section, arrival, -cached_len); arrivals are distinct by sequence, so buckets suffice."""
    buckets: list[list[PendingRequest]] = [[], [], []]
    for request in queue:
        request.lane = NO_LANE
        buckets[request.section].append(request)
    return buckets[0] + buckets[1] + buckets[2]
