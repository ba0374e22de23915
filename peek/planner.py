"""The planner: one scheduling cycle from the engine's queue to an admission order.

One `Planner` stands beside one engine scheduler and is the only holder of state: the pending tree,
the lanes' clocks, the demand index, the prefills in flight, the counters.  The engine's adapter
tells it who arrived and who left, asks for an order, and asks for eviction scores.  There is no
clock in here: `now` and, if durations are wanted, a `timer` come from the caller.

docs/cycle.md follows one cycle through this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from mypy_extensions import i64

from peek.config import PeekConfig
from peek.eviction.base import EvictionPolicy
from peek.eviction.index import DemandIndex, MarkIndex, SymbolIndex, peak_demand, shared_levels
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.lanes import FAIR_LANE, Lanes
from peek.request import NO_LANE, PendingRequest
from peek.stats import CycleStats
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView

if TYPE_CHECKING:
    from peek.protocols import CacheView, WaitingQueue


@final
class Planner:
    """Plans the admission of one engine's waiting requests.

    Args:
        config: settings; the default is the library's own policy.
        policy: an `AdmissionPolicy` of your own in place of the configured one.
        chained: keys are interned chained block hashes (vLLM), see `PendingTree`.
        timer: returns seconds; fills the durations in `stats`.
    """

    def __init__(
        self,
        config: PeekConfig | None = None,
        policy: AdmissionPolicy | None = None,
        chained: bool = False,
        timer: Callable[[], float] | None = None,
    ) -> None:
        settings = PeekConfig() if config is None else config
        self.config = settings
        self.tree = PendingTree(chained)
        self.stats = CycleStats()
        self._policy: AdmissionPolicy = settings.build_policy() if policy is None else policy
        self._lanes: Lanes | None = settings.build_lanes()
        self._eviction: EvictionPolicy | None = settings.build_eviction()
        self._index: DemandIndex = SymbolIndex(self.tree) if chained else MarkIndex(self.tree)
        self._walk = DualWalk(self.tree)
        self._in_flight = PendingTree()
        self._visible: set[str] = set()
        self._gate: bool = settings.in_flight_gate
        self._timer = timer
        self._cache: CacheView | None = None
        self._walked: bool = False
        self._queue: list[PendingRequest] = []
        self._queue_version: i64 = -1
        self._signals_version: i64 = -1
        self.kept_arrival_order: bool = True
        """Whether the last `plan` stood aside: nothing that waits is shared, cached or under way."""
        self._in_order: bool = True
        self._latest_arrival: float = float("-inf")

    # -- who waits ---------------------------------------------------------------------------------

    def add(self, request: PendingRequest) -> None:
        """A request arrived, or came back after preemption.  Cost and errors of `PendingTree.add`."""
        self.tree.add(request)
        request.arrival_work = self.stats.uncached_admitted
        if request.arrival_time < self._latest_arrival:
            self._in_order = False
        else:
            self._latest_arrival = request.arrival_time

    def extend(self, request_id: str, key: object) -> None:
        """More of a request's key matters than was given.  Cost and errors of `PendingTree.extend`."""
        self.tree.extend(request_id, key)

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> None:
        """A request left the queue.  O(depth); `UnknownRequest` if it was not waiting.

        Args:
            admitted: False when it was aborted or withdrawn.
            uncached_tokens: prompt tokens the engine really has to compute for it; the last cycle's
                expectation when the engine does not tell.
        """
        key = self.tree.key_of(request_id) if admitted and self._gate else b""
        request = self.tree.remove(request_id)
        if not admitted:
            self._visible.discard(request_id)
            self.stats.withdrawn += 1
            return
        cost: i64 = request.num_tokens - request.cached_len
        if uncached_tokens is not None:
            cost = uncached_tokens
        self.stats.note_admission(request.num_tokens, request.cached_len, cost, request.lane == FAIR_LANE)
        if self._lanes is not None:
            self._lanes.charge(request, cost)
        if request_id in self._visible:
            self._visible.discard(request_id)
        elif key and request_id not in self._in_flight:
            self._in_flight.insert(request_id, key, request.namespace)

    def prefilled(self, request_id: str) -> None:
        """An admitted request's prefill ended, or the request is gone; its prefix is visible now.

        Only engines with `in_flight_gate` need to call this; unknown ids are ignored.  It may come
        before the planner learns of the admission, which is when the queue is compared next.
        """
        if request_id in self._in_flight:
            self._in_flight.remove(request_id)
        elif request_id in self.tree:
            self._visible.add(request_id)

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self.tree)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.tree

    @property
    def only_hits_matter(self) -> bool:
        """Whether `plan` sorts by arrival unless a waiting prompt is cached or under way.  O(1).

        So it is when the policy lives on sharing and no two waiting requests share a prefix.
        """
        return self._policy.needs_sharing and not self.tree.has_sharing

    # -- one cycle ---------------------------------------------------------------------------------

    def plan(self, cache: CacheView, now: float) -> list[str]:
        """The admission order of all waiting requests, first to admit first.

        O(nodes the cache follows + n + c log c + w log w) for the default policy with c clusters and w
        requests that are mostly cached; one cache call a request where nothing is shared.

        Args:
            cache: the engine's prefix cache as it is now.
            now: seconds, same clock as `arrival_time`.
        """
        timer: Any = self._timer
        started: float = timer() if timer is not None else 0.0
        queue = self._arrivals()
        self._cache = cache
        self._walked = False
        ordered = queue
        self._price(queue, cache.unit_tokens)
        self.kept_arrival_order = self.only_hits_matter and not self._anybody_hits(cache)
        if self.kept_arrival_order:
            self.stats.without_sharing += 1
            for request in queue:
                request.lane = NO_LANE
        else:
            ordered = self._ordered(queue, cache, now)
        self.stats.note_plan(len(queue), timer() - started if timer is not None else 0.0)
        return [request.request_id for request in ordered]

    def _ordered(self, queue: list[PendingRequest], cache: CacheView, now: float) -> list[PendingRequest]:
        policy = self._policy
        unit: i64 = cache.unit_tokens
        if policy.reads_cache and not self._walked:
            self._walk_now(cache)
        if (policy.reads_tree or self._lanes is not None) and self._signals_version != self.tree.version:
            self.tree.refresh((policy.theta + unit - 1) // unit)
            self._signals_version = self.tree.version
        cycle = Cycle(self.tree, now, unit, self.stats.uncached_admitted, self._gate)
        ordered = policy.order(queue, cycle)
        if self._lanes is not None:
            ordered = self._lanes.interleave(ordered, queue, cycle)
        return ordered

    def _anybody_hits(self, cache: CacheView) -> bool:
        """Whether the prompt of anybody waiting is cached, or being computed, in part."""
        if not self._policy.reads_cache:
            return False
        self._walk_now(cache)
        return any(r.cached_len > 0 or (self._gate and r.coming_len > 0) for r in self._queue)

    def _walk_now(self, cache: CacheView) -> None:
        if self._gate:
            self._match_in_flight(cache.unit_tokens)
        self._walk.walk(cache)
        self._walked = True
        self.stats.cache_calls += self._walk.advances

    def _match_in_flight(self, unit: int) -> None:
        """Write `coming_len`: the same walk, with the prefills under way in the place of the cache."""
        if len(self._in_flight) == 0:
            for request in self._queue:
                request.coming_len = 0
            return
        self._walk.walk(TreeView(self._in_flight, unit))
        for request in self._queue:
            request.coming_len = request.cached_len

    def _arrivals(self) -> list[PendingRequest]:
        """Waiting requests by (arrival_time, sequence)."""
        if self._queue_version != self.tree.version:
            self._queue = self.tree.requests()
            if not self._in_order:
                self._queue.sort(key=_arrival)
            self._queue_version = self.tree.version
        return self._queue

    def _price(self, queue: list[PendingRequest], unit: i64) -> None:
        """Prompt lengths in tokens, where the caller left them to the key."""
        for request in queue:
            if request.num_tokens == 0:
                request.num_tokens = (request.length + request.tail) * unit

    def cycle(self, queue: WaitingQueue, cache: CacheView, now: float) -> None:
        """Bring the planner up to date with an engine's queue, plan, and reorder that queue.

        The queue may have changed in any way since the last call: the difference is what counts.
        """
        waiting: list[str] = list(queue.waiting_ids())
        known = 0
        arrived: list[str] = []
        for request_id in waiting:
            if request_id in self.tree:
                known += 1
            else:
                arrived.append(request_id)
        if known != len(self.tree):
            self._take_leave(set(waiting), queue)
        for request_id in arrived:
            self.add(queue.translate(request_id))
        order = self.plan(cache, now)
        if order != waiting:
            self.stats.reordered += 1
            queue.reorder(order)

    def _take_leave(self, present: set[str], queue: WaitingQueue) -> None:
        """Remove who is in the tree and not in the queue any more."""
        for request in self.tree.requests():
            if request.request_id not in present:
                cost: int = queue.uncached_tokens(request.request_id)
                self.remove(request.request_id, cost >= 0, cost if cost >= 0 else None)

    # -- eviction ----------------------------------------------------------------------------------

    @property
    def evicts(self) -> bool:
        """Whether eviction scores are in use; if not, the engine's own eviction stands."""
        return self._eviction is not None

    def eviction_score(self, node_id: int, idle_s: float = 0.0) -> float:
        """How much the queue needs a cached node or block; lowest goes first, 0.0 is no demand.

        O(1) to O(levels) per candidate, after one O(matched nodes) step per cycle that evicts.
        Always 0.0 when the configuration leaves eviction to the engine and, but for `chained` keys,
        before the first plan.

        Args:
            node_id: what `CacheView.node_id` returns for it; with `chained` keys its symbol.
            idle_s: seconds since the engine last used it (modes "recency" and "decay").
        """
        if self._eviction is None or len(self.tree) == 0:
            return 0.0
        if not self.tree.chained:
            if self._cache is None:
                return 0.0
            if not self._walked or self._walk.epoch != self.tree.epoch:
                self._walk_now(self._cache)
            self._index.refresh(self._cache, self._walk.epoch)
        node = self._index.find(node_id)
        if node is None:
            return 0.0
        return self._eviction.score(peak_demand(node), shared_levels(node), idle_s)


def _arrival(request: PendingRequest) -> tuple[float, int]:
    return (request.arrival_time, request.sequence)
