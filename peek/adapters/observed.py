"""What an operator wants to know of a planner at work, seen from its calls.

An `ObservedPlanner` stands in the place of an adapter's planner, so adapters of both engines are observed in
the same way and know nothing of it.  What it sees outlives the adapter, in `Observations`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from peek.adapters.reasons import Decisions, facts
from peek.planner import LazyPlan, Plan, Planner
from peek.request import PendingRequest

if TYPE_CHECKING:
    from peek.protocols import CacheView

PLAN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
PLACES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
TOKENS: Final = (-16384, -4096, -1024, -256, -64, -0.001, 0, 64, 256, 1024, 4096, 16384)
"""Whole numbers; 0 has a narrow bucket of its own, so that a quantile drawn through it is 0."""

IN_SHADOW: Final = "in shadow the order of arrival stands"


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
        shadow_reordered: plans in shadow that differ from the order of arrival.
        decisions: the last `explain` admissions and why.
    """

    def __init__(self, explain: int = 0) -> None:
        self.plan_s = Tally(PLAN_SECONDS)
        self.gains = Tally(PLACES)
        self.surprises = Tally(TOKENS)
        self.shadow_reordered = 0
        self.decisions = Decisions(explain)


class ObservedPlanner:
    """A `Planner` whose calls are observed; whatever is not named here is the planner's own.

    An arrival and an admission cost O(log waiting) more.

    Attributes:
        shadow: plan and count as ever, but answer that there is nothing to say: arrival order, no demand.
    """

    def __init__(self, planner: Planner, seen: Observations) -> None:
        self.observed = planner
        self._seen = seen
        self._numbers: dict[str, int] = {}
        """Who waits, by rank of arrival."""
        self._in_order: SortedList[int] = SortedList()
        self._arrivals = 0
        self.shadow = False
        self._now = 0.0
        self._last: Plan | LazyPlan | None = None
        self._answered: Plan | None = None
        self._answer = Plan()
        self._shadow_lazy = (self._answer, LazyPlan.of(self._answer))
        self.order_matters = planner.order_matters
        self.request = planner.request
        self.needs = planner.needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observed, name)

    def __len__(self) -> int:
        return len(self.observed)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.observed

    @property
    def evicts(self) -> bool:
        """`Planner.evicts`."""
        return self.observed.evicts and not self.shadow

    def eviction_score(self, node_id: int, idle_s: float = 0.0) -> float:
        """`Planner.eviction_score`."""
        return 0.0 if self.shadow else self.observed.eviction_score(node_id, idle_s)

    def add(self, request: PendingRequest, held: bool = False) -> None:
        """`Planner.add`."""
        self.observed.add(request, held)
        self._arrivals += 1
        self._numbers[request.request_id] = self._arrivals
        if not held:
            self._in_order.add(self._arrivals)

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        """`Planner.remove`."""
        request = self.observed.request(request_id)
        expected, tokens = request.cached_len, request.num_tokens
        decision = None
        if admitted and self._seen.decisions.keep:
            decision = self._facts(request)
        cost = self.observed.remove(request_id, admitted, uncached_tokens)
        if decision is not None:
            self._seen.decisions.note({**decision, "uncached": cost})
        number = self._numbers.pop(request_id)
        if number not in self._in_order:  # it was held: no plan has placed it
            return cost
        if admitted:
            self._seen.gains.note(self._in_order.index(number))
            if uncached_tokens is not None:
                self._seen.surprises.note(int(tokens - uncached_tokens - expected))
        self._in_order.remove(number)
        return cost

    def hold(self, request_id: str) -> None:
        """`Planner.hold`; it is overtaken by nobody meanwhile."""
        self.observed.hold(request_id)
        self._in_order.remove(self._numbers[request_id])

    def resume(self, request_id: str, key: object, tail: int = 0) -> None:
        """`Planner.resume`."""
        self.observed.resume(request_id, key, tail)
        self._in_order.add(self._numbers[request_id])

    def plan(self, cache: CacheView, now: float) -> Plan:
        """`Planner.plan`."""
        plan = self.observed.plan(cache, now)
        new = self._note(plan, now)
        if not self.shadow:
            return plan
        self._seen.shadow_reordered += new and plan.reordered
        if plan is not self._answered:  # one answer for one plan: adapters compare by identity
            ids = (name for name, number in self._numbers.items() if number in self._in_order)
            self._answered, self._answer = plan, Plan(ids, False, IN_SHADOW, stood_aside=True)
        return self._answer

    def lazy_plan(self, cache: CacheView, now: float) -> LazyPlan:
        """`Planner.lazy_plan`; in shadow the whole plan is made, to know whether it differs."""
        if self.shadow:
            answer = self.plan(cache, now)
            if self._shadow_lazy[0] is not answer:
                self._shadow_lazy = (answer, LazyPlan.of(answer))
            return self._shadow_lazy[1]
        plan = self.observed.lazy_plan(cache, now)
        self._note(plan, now)
        return plan

    def _note(self, plan: Plan | LazyPlan, now: float) -> bool:
        """Whether this plan is a new one; one that stands is the same object."""
        if plan is self._last:
            return False
        self._last = plan
        self._now = now
        self._seen.plan_s.note(self.observed.totals()["last_plan_s"])
        return True

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Why a request that waits, or was admitted of late, stands or stood where it does.  O(waiting)."""
        if request_id not in self.observed:
            return self._seen.decisions.of(request_id)
        return {**self._facts(self.observed.request(request_id)), "uncached": None}

    def _facts(self, request: PendingRequest) -> dict[str, Any]:
        earlier = self._in_order.bisect_left(self._numbers[request.request_id])
        cluster = self.observed.tree.cluster(request.request_id)
        return {**facts(request, cluster, self._last, self._now, earlier), "shadow": self.shadow}
