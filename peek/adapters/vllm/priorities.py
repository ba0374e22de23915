"""A planner for each priority, under vLLM's `--scheduling-policy priority`.

What the operator set stands: a request of a smaller number goes first, whatever it shares.  Among equals the
order is the planner's.  Each priority has a planner of its own, so that the fair lane's bound holds among
equals; together they answer as one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peek.adapters.vllm.mirror import BlockMirror
from peek.config import PeekConfig
from peek.errors import UnknownRequest
from peek.planner import LazyPlan, Plan, Planner
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED
from peek.request import PendingRequest


class _AllLone:
    """A cache that knows that none of so many requests can hit it."""

    def __init__(self, lone_requests: int) -> None:
        self.lone_requests = lone_requests


class PriorityPlanners:
    """Answers for one `Planner`, with one behind it for each priority that somebody waits with.

    Args:
        make: a new planner.
        priority_of: the priority of a waiting request, by its id.
    """

    def __init__(self, make: Callable[[], Planner], priority_of: Callable[[str], int]) -> None:
        self._make = make
        self._priority_of = priority_of
        self._planners: dict[int, Planner] = {}
        self._where: dict[str, int] = {}
        self._parts: list[Plan] = []
        self._plan = Plan()
        self._lazy: tuple[Plan, LazyPlan] = (self._plan, LazyPlan.of(self._plan))
        model = make()
        self.config: PeekConfig = model.config
        self.evicts = model.evicts
        self._past = model.totals()
        """Counters of planners that nobody waits with any more."""

    # -- who waits ---------------------------------------------------------------------------------

    def add(self, request: PendingRequest, held: bool = False) -> None:
        """As `Planner.add`."""
        priority = self._priority_of(request.request_id)
        planner = self._planners.get(priority) or self._make()
        planner.add(request, held)
        self._planners[priority] = planner
        self._where[request.request_id] = priority

    def extend(self, request_id: str, key: object) -> None:
        """As `Planner.extend`."""
        self._planner_of(request_id).extend(request_id, key)

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        """As `Planner.remove`."""
        planner = self._planner_of(request_id)
        cost = planner.remove(request_id, admitted, uncached_tokens)
        priority = self._where.pop(request_id)
        if not len(planner):
            self._past = _sum(self._past, planner.totals())
            del self._planners[priority]
        return cost

    def hold(self, request_id: str) -> None:
        """As `Planner.hold`."""
        self._planner_of(request_id).hold(request_id)

    def resume(self, request_id: str, key: object, tail: int = 0) -> None:
        """As `Planner.resume`."""
        self._planner_of(request_id).resume(request_id, key, tail)

    @property
    def held(self) -> dict[str, PendingRequest]:
        """As `Planner.held`.  O(held)."""
        planners = self._planners.values()
        return {name: request for planner in planners for name, request in planner.held.items()}

    def _planner_of(self, request_id: str) -> Planner:
        if request_id not in self._where:
            raise UnknownRequest(f"request {request_id!r} is not waiting")
        return self._planners[self._where[request_id]]

    def generated(self, tenant: str, tokens: int) -> None:
        """As `Planner.generated`, in the accounts of every priority."""
        for planner in self._planners.values():
            planner.generated(tenant, tokens)

    def answered(self, tokens: int, request_id: str = "") -> None:
        """As `Planner.answered`, to every priority."""
        for planner in self._planners.values():
            planner.answered(tokens, request_id)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._where

    def request(self, request_id: str) -> PendingRequest:
        """As `Planner.request`."""
        return self._planner_of(request_id).request(request_id)

    def needs(self, symbol: int) -> bool:
        """As `Planner.needs`.  O(priorities)."""
        return any(planner.needs(symbol) for planner in self._planners.values())

    def totals(self) -> dict[str, int | float]:
        """As `Planner.totals`, over all priorities."""
        totals = self._past
        for planner in self._planners.values():
            totals = _sum(totals, planner.totals())
        return totals

    # -- one cycle ---------------------------------------------------------------------------------

    def order_matters(self, cache: BlockMirror) -> bool:
        """As `Planner.order_matters`.  O(priorities)."""
        planners = self._planners.values()
        if cache.lone_requests != sum(len(planner.tree) for planner in planners):
            return any(planner.order_matters(cache) for planner in planners)
        lone: Any = _AllLone
        return any(planner.order_matters(lone(len(planner.tree))) for planner in planners)

    def plan(self, cache: BlockMirror, now: float) -> Plan:
        """As `Planner.plan`: the plans of all priorities, smallest number first."""
        parts = [self._planners[priority].plan(cache, now) for priority in sorted(self._planners)]
        if len(parts) == len(self._parts) and all(map(_same, parts, self._parts)):
            return self._plan
        self._parts = parts
        aside = all(part.stood_aside for part in parts)
        self._plan = Plan(
            [request_id for part in parts for request_id in part],
            any(part.reordered for part in parts),
            NOTHING_TO_GAIN if aside else ORDERED,
            aside,
        )
        return self._plan

    def lazy_plan(self, cache: BlockMirror, now: float) -> LazyPlan:
        """As `Planner.lazy_plan`, worked out at once."""
        plan = self.plan(cache, now)
        if plan is not self._lazy[0]:
            self._lazy = (plan, LazyPlan.of(plan))
        return self._lazy[1]

    # -- the cache ---------------------------------------------------------------------------------

    def cached_len(self, request_id: str) -> int:
        """As `Planner.cached_len`."""
        return self._planner_of(request_id).cached_len(request_id)

    def eviction_score(self, node_id: int, idle_s: float = 0.0) -> float:
        """As `Planner.eviction_score`: the largest need of any priority.  O(priorities)."""
        scores = (planner.eviction_score(node_id, idle_s) for planner in self._planners.values())
        return max(scores, default=0.0)


def _same(one: object, other: object) -> bool:
    return one is other


def _sum(one: dict[str, int | float], other: dict[str, int | float]) -> dict[str, int | float]:
    return {name: value + other[name] for name, value in one.items()}
