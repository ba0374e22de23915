"""What an operator wants to know of a planner at work, seen from its calls.

An `ObservedPlanner` stands in the place of an adapter's planner, so adapters of both engines are observed in
the same way and know nothing of it.  What it sees outlives the adapter, in `Observations`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from peek.planner import Plan, Planner
from peek.request import PendingRequest

if TYPE_CHECKING:
    from peek.protocols import CacheView

PLAN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
PLACES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
TOKENS: Final = (-16384, -4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384)


class Tally:
    """A histogram: how many values lie up to each bound, and their sum.  O(log bounds) a value.

    Attributes:
        counts: values per bound, above the bound before it; one more for those above all.
        total: how many values.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += 1
        self.sum += value


class Observations:
    """What was seen of the planners of one attachment.

    Attributes:
        plan_s: seconds on the planner's timer, each plan.
        gains: places that an admitted request had moved forward: earlier arrivals that still waited.
        surprises: prompt tokens of an admitted request found in the cache, less those the plan expected.
    """

    def __init__(self) -> None:
        self.plan_s = Tally(PLAN_SECONDS)
        self.gains = Tally(PLACES)
        self.surprises = Tally(TOKENS)


class ObservedPlanner:
    """A `Planner` whose calls are observed; whatever is not named here is the planner's own.

    An arrival and an admission cost O(log waiting) more.
    """

    def __init__(self, planner: Planner, seen: Observations) -> None:
        self.observed = planner
        self._seen = seen
        self._numbers: dict[str, int] = {}
        """Who waits, by rank of arrival."""
        self._in_order: SortedList[int] = SortedList()
        self._arrivals = 0
        self.stats = planner.stats
        self.evicts = planner.evicts
        self.order_matters = planner.order_matters
        self.request = planner.request
        self.needs = planner.needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observed, name)

    def __len__(self) -> int:
        return len(self.observed)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.observed

    def add(self, request: PendingRequest) -> None:
        """`Planner.add`."""
        self.observed.add(request)
        self._arrivals += 1
        self._numbers[request.request_id] = self._arrivals
        self._in_order.add(self._arrivals)

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        """`Planner.remove`."""
        request = self.observed.request(request_id)
        expected, tokens = request.cached_len, request.num_tokens
        cost = self.observed.remove(request_id, admitted, uncached_tokens)
        number = self._numbers.pop(request_id)
        if admitted:
            self._seen.gains.note(self._in_order.index(number))
            if uncached_tokens is not None:
                self._seen.surprises.note(int(tokens - uncached_tokens - expected))
        self._in_order.remove(number)
        return cost

    def plan(self, cache: CacheView, now: float) -> Plan:
        """`Planner.plan`."""
        made = self.stats.plans
        plan = self.observed.plan(cache, now)
        if self.stats.plans != made:
            self._seen.plan_s.note(self.stats.last_plan_s)
        return plan
