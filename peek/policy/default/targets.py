"""A lane for requests that can still have their first token in time.

A request may have a target: seconds within which its first token is wanted.  Requests that can still meet
their targets go before the others, fewest tokens to compute first.  On one machine, with all requests due
equally soon after they came, that order leaves the fewest late.  (Moore, "An n job, one machine sequencing
algorithm for minimizing the number of late jobs", 1968, drops the longest job from a sequence that is late.)
A request that can no longer meet its target has none any more.

Beside them the order of the policy's index gets a share of the work, by stride scheduling over the tokens
that are really admitted.  It serves requests without a target and late ones.  But cheap requests in time may
stand first in that order, too, so only the turns of overdue requests are guaranteed.

The engine's pace is learned: uncached tokens admitted per second while requests wait.
"""

from __future__ import annotations

import heapq
from math import exp, inf, nan
from typing import Final, final

from mypy_extensions import i64

from peek.policy.base import RequestStream, uncached_tokens
from peek.policy.lanes import FAIR_LANE
from peek.request import PendingRequest

_MEMORY_S: Final = 10.0
"""Time that the engine's pace looks back on, in seconds: several steps, yet short against a change of load.
A longer time between two plans counts as this."""

_MOST_LEAD: Final = 16384.0
"""Maximum work by which a lane can be behind, in tokens: about two steps, so that a lane that was empty does
not catch up.  The cost of one request is never cut, however large it is."""


@final
class Pace:
    """The engine's pace: uncached tokens admitted per second while requests wait."""

    def __init__(self) -> None:
        self._tokens: float = 0.0
        self._seconds: float = 0.0
        self._since: float = 0.0
        self._last_s: float = nan
        self._waits = False

    def admitted(self, tokens: float, waits: bool) -> None:
        """Count tokens that were admitted; `waits` says whether requests still wait.  O(1)."""
        self._since += tokens
        self._waits = waits

    def idle(self) -> None:
        """Note that no request waits any more: no time counts until one does.  O(1)."""
        self._waits = False

    def at(self, now: float, waits: bool) -> float:
        """The pace at `now` seconds, in tokens per second; 0.0 if unknown.  O(1), called once per plan.

        `waits`: whether any request waits.
        """
        passed = min(now - self._last_s, _MEMORY_S)  # a longer time is a pause: asleep, new weights
        if passed != 0.0:  # NaN before the first plan, negative if the clock was set back
            if self._waits and passed > 0.0:
                kept = exp(-passed / _MEMORY_S)
                self._tokens = self._tokens * kept + self._since
                self._seconds = self._seconds * kept + passed
            self._since = 0.0
            self._last_s = now
            self._waits = waits
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0


@final
class TargetLane:
    """Requests with a target, and the account of which of the two lanes is behind.

    The arguments are options of the policy: `share` is what the other lane gets while a request is in time.
    """

    def __init__(self, default_s: float | None, share: float) -> None:
        self.default_s: float | None = default_s
        self.share: float = share
        self.lead: float = 0.0
        """How far this lane is ahead of the other lane, in tokens / share."""
        self._pace = Pace()
        self._wanted: dict[str, PendingRequest] = {}
        """Waiting requests that have a target, by id."""
        self._picked: set[str] = set()
        self._waiting: i64 = 0
        self._in_use = False

    def target_of(self, request: PendingRequest) -> float:
        """The target of a request, in seconds; infinity for none.  O(1)."""
        if self.default_s is None:
            return inf
        own = request.ttft_target_s
        return self.default_s if own is None else own

    def arrived(self, request: PendingRequest) -> None:
        """Note a request that waits from now on.  O(1)."""
        self._waiting += 1
        if self.target_of(request) < inf:
            self._wanted[request.request_id] = request

    def left(self, request: PendingRequest) -> None:
        """Note that a request waits no more.  O(1)."""
        self._waiting -= 1
        if self._waiting == 0:
            self._pace.idle()
        self._wanted.pop(request.request_id, None)

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        """Charge an admitted request to its lane and the pace; call it after `left`.  O(1)."""
        if self.default_s is None:
            return
        tokens = float(max(1, uncached_tokens))
        self._pace.admitted(tokens, self._waiting > 0)
        if not self._in_use:
            return
        if request.request_id in self._picked and request.lane != FAIR_LANE:  # not overdue
            price = tokens / (1.0 - self.share)
            self.lead = min(self.lead + price, max(price, _MOST_LEAD))
        else:
            price = tokens / self.share
            self.lead = max(self.lead - price, -max(price, _MOST_LEAD))

    def merge(self, order: RequestStream, now: float) -> RequestStream:
        """Return `order` with the requests in time first, as far as their share goes.

        If no request is in time, it is `order` itself.  O(requests with a target); O(log) for each that goes.
        """
        pace = self._pace.at(now, self._waiting > 0)
        self._picked.clear()
        in_time: list[tuple[int, float, int, PendingRequest]] = []
        for request in self._wanted.values():
            work = max(1, request.num_tokens - max(request.cached_len, request.coming_len))
            takes_s = float(work) / pace if pace > 0.0 else 0.0
            if now - request.arrival_time + takes_s <= self.target_of(request):
                in_time.append((work, request.arrival_time, request.sequence, request))
        self._in_use = bool(in_time)
        if not in_time:
            return order
        heapq.heapify(in_time)
        return TargetTurns(order, self, in_time)

    def pick(self, request: PendingRequest) -> None:
        """Note that this lane has placed a request.  O(1)."""
        self._picked.add(request.request_id)


@final
class TargetTurns(RequestStream):
    """An order in which requests in time go whenever their lane is not ahead.

    Args:
        order: the policy's order of all waiting requests.
        lane: the lane as it stands; this order is not charged to it.
        in_time: a heap of the requests in time, by tokens to compute, then arrival.
    """

    def __init__(
        self,
        order: RequestStream,
        lane: TargetLane,
        in_time: list[tuple[int, float, int, PendingRequest]],
    ) -> None:
        self._order = order
        self._lane = lane
        self._lead: float = lane.lead
        self._in_time = in_time
        self._placed: set[str] = set()

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.  O(log), or the order's own cost."""
        placed, lane = self._placed, self._lane
        while self._in_time and self._in_time[0][3].request_id in placed:
            heapq.heappop(self._in_time)
        if self._in_time and self._lead <= 0.0:
            work, _, _, request = heapq.heappop(self._in_time)
            lane.pick(request)
            placed.add(request.request_id)
            self._lead += float(work) / (1.0 - lane.share)
            return request
        other = self._order.next()
        while other is not None and other.request_id in placed:
            other = self._order.next()
        if other is not None:
            placed.add(other.request_id)
            self._lead -= float(uncached_tokens(other)) / lane.share
        return other
