"""How a plan is made: is there anything to gain, what do queue and cache say, and what does the policy.

`PlanMaker.make` goes through one cycle in this order: arrival order, signals, policy, plan.  A plan stands
(`StandingPlan`) until queue, cache or time move on; a lazy one is drawn request by request (`Drawn`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.errors import PolicyFault
from peek.planner.calls import PolicyCalls
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED, LazyPlan, Plan
from peek.planner.signals import Signals
from peek.planner.stats import PlannerStats
from peek.policy.base import Cycle, Listed, RequestStream, hits_something
from peek.request import NO_LANE, PendingRequest
from peek.trie.cache_answers import unit_tokens_of
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class PlanMaker:
    """Makes one plan after another for one tree.

    Args:
        tree, signals, stats: the planner's.
        calls: policy and lanes.
        gated: siblings of a prefill under way wait for it.
    """

    __slots__ = ("_calls", "_gated", "_signals", "_stats", "_tree", "arrivals")

    def __init__(
        self, tree: PendingTree, calls: PolicyCalls, signals: Signals, stats: PlannerStats, gated: bool
    ) -> None:
        self.arrivals = ArrivalOrder()
        self._tree = tree
        self._calls = calls
        self._signals = signals
        self._stats = stats
        self._gated = gated

    def order_matters(self, cache: CacheView) -> bool:
        """`Planner.order_matters`."""
        policy = self._calls.policy
        if self._tree.has_sharing or not policy.needs_sharing:
            return True
        return policy.reads_cache and getattr(cache, "lone_requests", -1) != len(self._tree)

    def make(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        """A new plan, lazy where that was asked for.  Whoever calls holds the tree."""
        plan = self._made(cache, now, lazily)
        return LazyPlan.of(plan) if lazily and isinstance(plan, Plan) else plan

    def _made(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        calls = self._calls
        unit: i64 = unit_tokens_of(cache)
        self._signals.look_at(cache)
        self.arrivals.fill_lengths(unit)
        if not self._finds_something(cache):
            self._stats.stood_aside += 1
            return kept_order(self.arrivals.of(self._tree), NOTHING_TO_GAIN, True)
        if calls.policy.reads_cache:
            self._stats.cache_calls += self._signals.match_cache()
        if calls.reads_tree:
            self._signals.match_queue(calls.policy.theta, unit)
        cycle = Cycle(self._tree, now, unit, self._stats.uncached_admitted, self._gated)
        try:
            stream = calls.stream(cycle) if lazily else None
            if stream is not None:
                return LazyPlan(Drawn(stream, self._tree, calls, self.arrivals))
            queue = self.arrivals.of(self._tree)
            ordered = calls.order(queue, cycle)
        except PolicyFault as fault:
            calls.count(calls.policy, fault)
            return kept_order(self.arrivals.of(self._tree), f"arrival order: {fault}", False)
        return Plan([request.request_id for request in ordered], ordered != queue, ORDERED)

    def _finds_something(self, cache: CacheView) -> bool:
        """Whether anything that waits is shared, cached or under way, or the policy does not care."""
        if self._tree.has_sharing or not self._calls.policy.needs_sharing:
            return True
        if not self.order_matters(cache):
            return False
        self._stats.cache_calls += self._signals.match_cache()
        return hits_something(self.arrivals.of(self._tree), self._gated)


@final
class ArrivalOrder:
    """Waiting requests by (arrival_time, sequence), put together again only when the tree has changed.

    Requests mostly arrive in the order of their `arrival_time`, which is the order in which the tree keeps
    them; only once one did not does this sort.
    """

    __slots__ = ("_in_order", "_latest", "_requests", "_unsized", "_version")

    def __init__(self) -> None:
        self._unsized: list[PendingRequest] = []
        self._requests: list[PendingRequest] = []
        self._version: i64 = -1
        self._in_order: bool = True
        self._latest: float = float("-inf")

    def note(self, request: PendingRequest) -> None:
        """A request was added to the tree.  O(1)."""
        if request.arrival_time < self._latest:
            self._in_order = False
        else:
            self._latest = request.arrival_time
        if request.num_tokens == 0:
            self._unsized.append(request)

    def fill_lengths(self, unit_tokens: i64) -> None:
        """Prompt lengths in tokens, where the caller left them to the key.  O(those added since)."""
        for request in self._unsized:
            if request.num_tokens == 0:
                request.num_tokens = (request.length + request.tail) * unit_tokens
        self._unsized = []

    def of(self, tree: PendingTree) -> list[PendingRequest]:
        """The tree's requests, first to arrive first; the same list until the tree changes.

        O(1) while the tree stands, else O(n), and O(n log n) where arrival times are out of order.
        """
        if self._version != tree.version:
            self._requests = tree.requests()
            if not self._in_order:
                self._requests.sort(key=_arrival)
            self._version = tree.version
        return self._requests


def _arrival(request: PendingRequest) -> tuple[float, int]:
    return (request.arrival_time, request.sequence)


def kept_order(queue: list[PendingRequest], reason: str, stood_aside: bool) -> Plan:
    """A plan that leaves the queue as it is; no lane has picked anybody.  O(n)."""
    ids: list[str] = []
    for request in queue:
        request.lane = NO_LANE
        ids.append(request.request_id)
    return Plan(ids, False, reason, stood_aside)


@final
class Drawn:
    """Ids from a policy's stream one after another, none any more once the queue or the cache has changed.

    A stream that fails is counted, and the requests that it has not placed follow in arrival order.

    Args:
        stream: the requests of `tree`, best first.
    """

    __slots__ = (
        "_arrivals",
        "_calls",
        "_checked",
        "_left",
        "_number",
        "_stream",
        "_tree",
        "_version",
        "_walks",
    )

    def __init__(
        self, stream: RequestStream, tree: PendingTree, calls: PolicyCalls, arrivals: ArrivalOrder
    ) -> None:
        self._stream = stream
        self._tree = tree
        self._calls = calls
        self._arrivals = arrivals
        self._checked = True
        self._left: i64 = len(tree)
        self._number: i64 = calls.new_number()
        self._version: i64 = tree.version
        self._walks: i64 = tree.walks

    def next_id(self) -> str | None:
        """The id of the request that goes next.  Cost of the stream's own `next`."""
        if self._version != self._tree.version or self._walks != self._tree.walks:
            return None
        if not self._checked:
            request = self._stream.next()
            return None if request is None else request.request_id
        try:
            request = self._calls.next_of(self._stream, self._tree, self._number)
            if request is None and self._left > 0:
                raise PolicyFault(f"{type(self._calls.policy).__name__} left out {self._left} requests")
        except PolicyFault as fault:
            return self._fallen_back(fault)
        if request is None:
            return None
        self._left -= 1
        return request.request_id

    def _fallen_back(self, fault: PolicyFault) -> str | None:
        """Arrival order for all that have not been placed.  O(n)."""
        self._checked = False
        number = self._number
        queue = self._arrivals.of(self._tree)
        self._stream = Listed([request for request in queue if request.placed != number])
        self._calls.count(self._calls.policy, fault)
        return self.next_id()


@final
class StandingPlan:
    """Keeps a plan until the queue, the cache or too much time has moved on.

    Only caches with a `version` can tell that they have not changed; with any other no plan stands.

    Args:
        lasts_s: how long, on the clock of `Planner.plan`, an order stands that was made from what had been
            waited; 0.0: not at all.
    """

    __slots__ = ("_cache", "_cache_version", "_lasts_s", "_plan", "_planned_at", "_tree_version")

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s: float = lasts_s
        self._plan: Plan | LazyPlan | None = None
        self._planned_at: float = 0.0
        self._tree_version: i64 = -1
        self._cache: object = None
        self._cache_version: object = None

    def find(self, tree: PendingTree, cache: CacheView, now: float) -> Plan | LazyPlan | None:
        """The plan that still stands, None if there is none.  O(1)."""
        if self._plan is None or self._tree_version != tree.version or self._cache is not cache:
            return None
        if not now - self._planned_at < self._lasts_s or self._cache_version != getattr(
            cache, "version", None
        ):
            return None
        return self._plan

    def keep(self, plan: Plan | LazyPlan, tree: PendingTree, cache: CacheView, now: float) -> None:
        """Remember a plan with what it was made from."""
        version: object = getattr(cache, "version", None)
        self._plan = None if version is None else plan
        self._planned_at = now
        self._tree_version = tree.version
        self._cache = cache
        self._cache_version = version

    def drop(self) -> None:
        """Something else than queue and cache has changed."""
        self._plan = None
