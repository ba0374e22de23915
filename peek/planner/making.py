"""How a plan is made: is there anything to gain, what do queue and cache say, and what does the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.errors import PolicyFault
from peek.planner.arrivals import ArrivalOrder, kept_order
from peek.planner.following import Following
from peek.planner.ordering import Ordering
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED, LazyPlan, Plan
from peek.planner.signals import Signals
from peek.planner.stats import PlannerStats
from peek.policy.base import Cycle
from peek.policy.stream import Listed, RequestStream, everybody
from peek.policy.tenants import TenantAccounts, Turns
from peek.request import PendingRequest
from peek.trie.cache_answers import unit_tokens_of
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class PlanMaker:
    """Makes one plan after another for one tree.

    Args:
        tree, signals, stats: the planner's.
        ordering: policy and lanes.
        gated: siblings of a prefill under way wait for it.
        strict: raise a `PolicyFault`; else count it and keep arrival order.
        accounts: what tenants have been served; None for no turns among them.
    """

    __slots__ = ("_accounts", "_gated", "_ordering", "_signals", "_stats", "_strict", "_tree", "arrivals")

    def __init__(
        self,
        tree: PendingTree,
        ordering: Ordering,
        signals: Signals,
        stats: PlannerStats,
        gated: bool,
        strict: bool,
        accounts: TenantAccounts | None,
    ) -> None:
        self._accounts = accounts
        self.arrivals = ArrivalOrder()
        self._tree = tree
        self._ordering = ordering
        self._signals = signals
        self._stats = stats
        self._gated = gated
        self._strict = strict

    def order_matters(self, cache: CacheView) -> bool:
        """`Planner.order_matters`."""
        if self._tree.has_sharing or not self._ordering.needs_sharing or self._tenants_take_turns():
            return True
        return self._ordering.reads_cache and getattr(cache, "lone_requests", -1) != len(self._tree)

    def make(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        """A new plan, lazy where that was asked for.  Whoever calls holds the tree."""
        plan = self._made(cache, now, lazily)
        return LazyPlan.of(plan) if lazily and isinstance(plan, Plan) else plan

    def _made(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        unit: i64 = unit_tokens_of(cache)
        self._signals.look_at(cache)
        self.arrivals.fill_lengths(unit)
        if not self._finds_something(cache):
            queue = self.arrivals.of(self._tree)
            if self._tenants_take_turns():
                return _plan(self._in_turns(Listed(queue)), queue)
            self._stats.stood_aside += 1
            return kept_order(queue, NOTHING_TO_GAIN, True)
        if self._ordering.reads_cache:
            self._stats.cache_calls += self._signals.match_cache()
        if self._ordering.overdue is not None:
            self._ordering.overdue.price(self._tree.n_namespaces > 1)
        if self._ordering.reads_tree:
            self._signals.match_queue(self._ordering.theta, unit)
        cycle = Cycle(self._tree, now, unit, self._stats.uncached_admitted, self._gated)
        stream = self._ordering.stream(cycle) if lazily else None
        if stream is not None:
            return LazyPlan(Following(self._in_turns(stream), self._tree))
        queue = self.arrivals.of(self._tree)
        try:
            ordered = self._ordering.order(queue, cycle)
        except PolicyFault as fault:
            self.count(fault)
            return kept_order(queue, f"arrival order: {fault}", False)
        return _plan(self._in_turns(Listed(ordered)), queue)

    def _tenants_take_turns(self) -> bool:
        return self._accounts is not None and self._accounts.several

    def _in_turns(self, order: RequestStream) -> RequestStream:
        """The order itself unless several tenants wait."""
        if self._accounts is None or not self._accounts.several:
            return order
        return Turns(order, self._accounts)

    def _finds_something(self, cache: CacheView) -> bool:
        """Whether anything that waits is shared, cached or under way, or the policy does not care."""
        if self._tree.has_sharing or not self._ordering.needs_sharing:
            return True
        if not self.order_matters(cache):
            return False
        self._stats.cache_calls += self._signals.match_cache()
        queue = self.arrivals.of(self._tree)
        return any(request.cached_len > 0 or (self._gated and request.coming_len > 0) for request in queue)

    def count(self, fault: PolicyFault) -> None:
        """A policy of somebody else failed; raises `fault` where that is wanted."""
        self._stats.policy_faults += 1
        if self._strict:
            raise fault


def _plan(stream: RequestStream, queue: list[PendingRequest]) -> Plan:
    ordered = everybody(stream)
    return Plan([request.request_id for request in ordered], ordered != queue, ORDERED)
