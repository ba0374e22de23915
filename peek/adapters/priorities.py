"""One planner for each priority, for vLLM's `--scheduling-policy priority`.

The operator's priorities stand: a request with a smaller number goes first, whatever it shares.  Among equal
priorities the planner decides.  A planner for each lets the fair lane's bound hold among equals.  Together
they answer as one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from types import SimpleNamespace
from typing import Any

from peek.adapters.mirror import BlockMirror
from peek.config import PeekConfig
from peek.errors import UnknownRequest
from peek.planner import LazyPlan, Plan, Planner
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED
from peek.request import PendingRequest


def _of_its_planner(name: str) -> Any:
    """Return the method of `Planner` of this name, for the planner of the request's priority."""
    method = getattr(Planner, name)
    return lambda self, request_id, *args: method(self._planner_of(request_id), request_id, *args)


class PriorityPlanners:
    """Answers as one `Planner`, with one behind it for each priority that waiting requests have.

    Its methods are those of `Planner`; only their costs differ.

    Args:
        make: returns a new planner.
        priority_of: returns the priority of a waiting request, by its id.
    """

    def __init__(self, make: Callable[[], Planner], priority_of: Callable[[str], int]) -> None:
        self._make = make
        self._priority_of = priority_of
        self._planners: dict[int, Planner] = {}
        self._where: dict[str, int] = {}
        self._parts: list[Plan] = []
        self._plan = Plan()
        self._lazy = LazyPlan.of(self._plan)
        model = make()
        self.config: PeekConfig = model.config
        self.evicts = model.evicts
        self._past = model.totals()
        """Counters of planners for priorities without waiting requests."""

    # -- all priorities ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._where

    @property
    def held(self) -> dict[str, PendingRequest]:
        """Held requests of all priorities.  O(held)."""
        planners = self._planners.values()
        return {name: request for planner in planners for name, request in planner.held.items()}

    def generated(self, tenant: str, tokens: int) -> None:
        """Charge the tenant's accounts of every priority."""
        for planner in self._planners.values():
            planner.generated(tenant, tokens)

    def answered(self, tokens: int, request_id: str = "") -> None:
        """Pass the length of an answer to every priority's planner."""
        for planner in self._planners.values():
            planner.answered(tokens, request_id)

    def needs(self, symbol: int) -> bool:
        """O(priorities)."""
        return any(planner.needs(symbol) for planner in self._planners.values())

    def eviction_score(self, node_id: int, idle_s: float = 0.0) -> float:
        """Return the largest score of any priority.  O(priorities)."""
        scores = (planner.eviction_score(node_id, idle_s) for planner in self._planners.values())
        return max(scores, default=0.0)

    def totals(self) -> dict[str, int | float]:
        """Return sums over all priorities, past ones included."""
        totals = self._past
        for planner in self._planners.values():
            totals = _sum(totals, planner.totals())
        return totals

    # -- one request -------------------------------------------------------------------------------

    def add(self, request: PendingRequest, held: bool = False) -> None:
        """Add a request to the planner of its priority."""
        priority = self._priority_of(request.request_id)
        planner = self._planners.get(priority) or self._make()
        planner.add(request, held)
        self._planners[priority] = planner
        self._where[request.request_id] = priority

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        """`Planner.remove`; drops the planner of a priority without waiting requests."""
        planner = self._planner_of(request_id)
        cost = planner.remove(request_id, admitted, uncached_tokens)
        priority = self._where.pop(request_id)
        if not len(planner):
            self._past = _sum(self._past, planner.totals())
            del self._planners[priority]
        return cost

    extend, hold, resume = map(_of_its_planner, ("extend", "hold", "resume"))
    request, cluster, cached_len = map(_of_its_planner, ("request", "cluster", "cached_len"))

    def _planner_of(self, request_id: str) -> Planner:
        if request_id not in self._where:
            raise UnknownRequest(f"request {request_id!r} is not waiting")
        return self._planners[self._where[request_id]]

    # -- one cycle ---------------------------------------------------------------------------------

    def order_matters(self, cache: BlockMirror) -> bool:
        """`Planner.order_matters`.  O(priorities)."""
        waiting = {planner: len(planner) - len(planner.held) for planner in self._planners.values()}
        if cache.lone_requests != sum(waiting.values()):
            return any(planner.order_matters(cache) for planner in waiting)
        # No request can hit or share, so a planner asks the cache for nothing but this.
        lone: Any = SimpleNamespace
        return any(planner.order_matters(lone(lone_requests=n)) for planner, n in waiting.items())

    def plan(self, cache: BlockMirror, now: float) -> Plan:
        """Return the plans of all priorities in one, smallest number first."""
        parts = [self._planners[priority].plan(cache, now) for priority in sorted(self._planners)]
        if len(parts) == len(self._parts) and all(map(is_, parts, self._parts)):
            return self._plan
        self._parts = parts
        aside = all(part.stood_aside for part in parts)
        self._plan = Plan(
            [request_id for part in parts for request_id in part],
            any(part.reordered for part in parts),
            NOTHING_TO_GAIN if aside else ORDERED,
            aside,
        )
        self._lazy = LazyPlan.of(self._plan)
        return self._plan

    def lazy_plan(self, cache: BlockMirror, now: float) -> LazyPlan:
        """Return the whole plan, worked out at once."""
        self.plan(cache, now)
        return self._lazy


def _sum(one: dict[str, int | float], other: dict[str, int | float]) -> dict[str, int | float]:
    return {name: value + other[name] for name, value in one.items()}
