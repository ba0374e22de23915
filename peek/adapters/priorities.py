"""One planner for each priority, for an engine that schedules by priority.

The operator's priorities stand: a request with a smaller number goes first, whatever it shares.  Among equal
priorities a planner decides.  Each priority has its own, so that the fair lane's bound holds among equals.
Together they act as one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from sortedcontainers import SortedDict

from peek.errors import UnknownRequest
from peek.planner import LazyPlan, Plan, Planner
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED
from peek.protocols import CacheView
from peek.request import PendingRequest

MOST_PLANNERS: Final = 32
"""Most priorities with a planner of their own, because any client may choose a number."""

_Place: TypeAlias = tuple[int, float, int]
"""A request's priority, its arrival time, and its rank among the planner's requests."""


def _of_its_planner(name: str) -> Any:
    """Return a method that calls `Planner`'s method of this name on the planner of the request's priority."""
    method = getattr(Planner, name)
    return lambda self, request_id, *args: method(self._found(request_id)[0], request_id, *args)


def _of_all(name: str) -> Any:
    """Return a method that calls `Planner`'s method of this name on every planner."""
    method = getattr(Planner, name)
    return lambda self, *args: [method(planner, *args) for planner in self._all()]


class PriorityPlanners:
    """Acts as one `Planner`, and has one for each priority.

    Its methods are those of `Planner`; only their costs differ.  A planner stays when its queue is empty.  If
    there are `MOST_PLANNERS`, the one that has been empty longest takes over a new priority and keeps what it
    has learned.  If none is empty, requests of further priorities go by arrival, unplanned.

    Args:
        make: returns a new planner.
        priority_of: returns the priority of a request that begins to wait, by its id.
    """

    def __init__(self, make: Callable[[], Planner], priority_of: Callable[[str], int]) -> None:
        self._make = make
        self._priority_of = priority_of
        self._planners: OrderedDict[int, Planner] = OrderedDict()
        """By priority; the planner that a request left last is at the end."""
        self._shared = make()
        """The planner with the requests of further priorities."""
        self._others: SortedDict[_Place, str] = SortedDict()
        """The ids of these requests."""
        self._where: dict[str, tuple[Planner, _Place]] = {}
        self._asked: dict[Planner, LazyPlan] | None = None
        """The parts of the last plan so far; None if a request has come, gone, been held or resumed."""
        self._lazy = self._planned = LazyPlan(None)
        self._plan = Plan()
        self.evicts = self._shared.evicts

    # -- all priorities ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._where

    def _all(self) -> list[Planner]:
        return [*self._planners.values(), self._shared]

    @property
    def held(self) -> dict[str, PendingRequest]:
        """Held requests of all priorities.  O(held)."""
        return {name: request for planner in self._all() for name, request in planner.held.items()}

    generated, answered, prefilled = map(_of_all, ("generated", "answered", "prefilled"))

    def needs(self, symbol: int) -> bool:
        """O(priorities)."""
        return any(planner.needs(symbol) for planner in self._all())

    def eviction_score(self, node_id: int) -> float:
        """Return the largest score of any priority.  O(priorities)."""
        return max(planner.eviction_score(node_id) for planner in self._all())

    def totals(self) -> dict[str, int | float]:
        """Return sums over all planners."""
        totals = [planner.totals() for planner in self._all()]
        return {name: sum(each[name] for each in totals) for name in totals[0]}

    # -- one request -------------------------------------------------------------------------------

    def add(self, request: PendingRequest, held: bool = False) -> None:
        """Add a request to the planner of its priority."""
        request_id = request.request_id
        priority = self._priority_of(request_id)
        planner = self._planner_for(priority)
        planner.add(request, held)
        place = (priority, request.arrival_time, request.sequence)
        self._where[request_id] = planner, place
        if planner is self._shared:
            self._others[place] = request_id
        self._asked = None

    def _planner_for(self, priority: int) -> Planner:
        if priority in self._planners:
            return self._planners[priority]
        if len(self._planners) < MOST_PLANNERS:
            return self._planners.setdefault(priority, self._make())
        empty = next((number for number, planner in self._planners.items() if not len(planner)), None)
        if empty is None:
            return self._shared
        return self._planners.setdefault(priority, self._planners.pop(empty))

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        planner, place = self._found(request_id)
        cost = planner.remove(request_id, admitted, uncached_tokens)
        del self._where[request_id]
        if planner is self._shared:
            del self._others[place]
        else:
            self._planners.move_to_end(place[0])
        self._asked = None
        return cost

    def hold(self, request_id: str) -> None:
        self._found(request_id)[0].hold(request_id)
        self._asked = None  # requests of further priorities have no plan of their own to end

    def resume(self, request_id: str, key: object, tail: int = 0) -> None:
        self._found(request_id)[0].resume(request_id, key, tail)
        self._asked = None

    extend = _of_its_planner("extend")
    request, cluster, cached_len = map(_of_its_planner, ("request", "cluster", "cached_len"))

    def _found(self, request_id: str) -> tuple[Planner, _Place]:
        if request_id not in self._where:
            raise UnknownRequest(f"request {request_id!r} is not waiting")
        return self._where[request_id]

    # -- one cycle ---------------------------------------------------------------------------------

    def order_matters(self, cache: CacheView) -> bool:
        """`Planner.order_matters`.  O(priorities)."""
        waiting = {planner: len(planner) - len(planner.held) for planner in self._all()}
        none_hits = getattr(cache, "lone_requests", -1) == sum(waiting.values())
        for planner, count in waiting.items():
            lone: Any = SimpleNamespace(lone_requests=count if none_hits else -1)
            if planner.order_matters(lone):  # it asks the cache for nothing else
                return True
        return False

    def plan(self, cache: CacheView, now: float) -> Plan:
        """Return the whole of `lazy_plan`."""
        lazy = self.lazy_plan(cache, now)
        if lazy is not self._planned:
            places = [self._where[request_id][1] for request_id in lazy]
            self._plan = Plan(lazy, places != sorted(places), lazy.reason, lazy.stood_aside)
            self._planned = lazy
        return self._plan

    def lazy_plan(self, cache: CacheView, now: float) -> LazyPlan:
        """Return the plans of all priorities in one, smallest number first.

        A planner is asked once those before it have no more requests, or if they stand aside.
        """
        last = self._asked
        if last is not None and all(planner.lazy_plan(cache, now) is plan for planner, plan in last.items()):
            return self._lazy
        asked: dict[Planner, LazyPlan] = {}

        def ask(planner: Planner) -> LazyPlan:
            return asked.get(planner) or asked.setdefault(planner, planner.lazy_plan(cache, now))

        own = [((priority,), planner) for priority, planner in sorted(self._planners.items()) if len(planner)]
        aside = all(ask(planner).stood_aside for _, planner in own)
        source: Any = SimpleNamespace(next_id=partial(next, self._ids(own, ask, asked), None))
        self._lazy = LazyPlan(source, (), NOTHING_TO_GAIN if aside else ORDERED, aside)
        self._asked = asked
        return self._lazy

    def _ids(self, own: Any, ask: Callable[[Planner], LazyPlan], asked: object) -> Iterator[str]:
        """Yield the ids of a plan until a request comes or goes."""
        for _, next_up in merge(own, self._others.items()):
            if self._asked is not asked:
                return
            if not isinstance(next_up, str):
                yield from ask(next_up)
            elif next_up not in self._shared.held:
                yield next_up
