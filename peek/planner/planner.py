"""The planner: the requests in an engine's queue, and the order in which they should be admitted.

One `Planner` stands beside one engine's scheduler and is the only holder of state.  Its driver, a real
engine's adapter or the simulated engine, makes these calls:

    add, remove, prefilled      a request arrived; left, at some cost; its prefill ended
    hold, resume                a request cannot run for now; it can run again
    plan                        an order of all waiting requests, and the reason for it
    eviction_score              how much the queue needs a cached node or block

The planner has no clock: `now` and a `timer` come from the caller.  docs/cycle.md follows one cycle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, final

from mypy_extensions import i64

from peek.config import PeekConfig
from peek.errors import DuplicateRequest, InvalidConfig, InvalidKey, PolicyFault, UnknownRequest
from peek.eviction.demand import EvictionPolicy
from peek.eviction.index import MarkIndex, demand_of
from peek.planner.calls import Drawn, PolicyCalls
from peek.planner.plan import NOTHING_TO_GAIN, ORDERED, LazyPlan, Plan, Upcoming, first_of
from peek.planner.signals import PrefillsInFlight, Signals
from peek.planner.stats import PlannerStats
from peek.policy.base import ADMITTED, HELD, WITHDRAWN, AdmissionPolicy, Cycle, arrival, hits_something
from peek.policy.lanes import FAIR_LANE, Lanes
from peek.request import MAX_TOKENS, NO_LANE, PendingRequest, count_of, require_tokens
from peek.settings import require_lead
from peek.trie.node import Node
from peek.trie.pending_tree import Cluster, PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView, WaitingQueue


@final
class Planner:
    """Plans the admission of one engine's waiting requests.

    Args:
        config: settings; the default is the library's own policy.
        policy: an `AdmissionPolicy` of your own in place of the configured one.
        chained: whether keys are interned chained block hashes (vLLM), see `PendingTree`.
        timer: returns seconds; fills the durations in `stats`.
        lanes: merges the policy's order with a fair one.  A configured policy gets the configured lanes; a
            `policy` of your own has none unless you give them here.
        eviction: an `EvictionPolicy` of your own in place of the configured one; `eviction_score` asks it.
        in_flight_gate: whether the engine shows a prefix to others only when its prefill ends, and the driver
            calls `prefilled`.  Siblings of a prefill under way then wait for it.  Several planners of one
            engine share a `PrefillsInFlight`, given here.
        strict: whether a policy's failure raises `PolicyFault`.  An arrival or departure during which it is
            raised has happened all the same.  Without `strict` the queue keeps its arrival order for that
            cycle, the plan says why, and `stats.policy_faults` counts it.
        plan_lasts_s: seconds of `now` for which the last plan stands while queue and cache do not change; the
            cache needs a `version` for that.  With 0.0 each call makes a new order.
        unit_tokens: tokens per symbol of the keys, as in `CacheView`, at least 1.  It is used to
            find a prompt's first tokens (`heads`), and for lengths left to the key before the first plan.
        learns: whether the driver calls `answered`.  If not, the policy is told to learn nothing of answers
            and sessions (`AdmissionPolicy.reads_heads`), and remembers no admitted request.

    Use it from one thread at a time, and do not call it from a policy or cache view during a call.  If both
    calls need the tree of waiting requests, `PlannerBusy` is raised.  A copy or pickle is refused with
    `TypeError`; a forked process has a planner of its own.
    """

    def __init__(
        self,
        config: PeekConfig | None = None,
        policy: AdmissionPolicy | None = None,
        chained: bool = False,
        timer: Callable[[], float] | None = None,
        *,
        lanes: Lanes | None = None,
        eviction: EvictionPolicy | None = None,
        in_flight_gate: bool | PrefillsInFlight = False,
        strict: bool = False,
        plan_lasts_s: float = 0.0,
        unit_tokens: int = 1,
        learns: bool = True,
    ) -> None:
        settings = PeekConfig() if config is None else config
        if not isinstance(settings, PeekConfig):
            raise InvalidConfig(f"config is {config!r}; need a PeekConfig, as from_label makes one")
        if policy is None and lanes is None:
            lanes = settings.build_lanes()
        self.config = settings
        self.tree = PendingTree(chained)
        self.stats = PlannerStats()
        ordering = settings.build_policy() if policy is None else policy
        self._calls = PolicyCalls(ordering, lanes, self.stats, strict, unit_tokens, learns)
        self._in_flight: PrefillsInFlight | None = None
        if isinstance(in_flight_gate, PrefillsInFlight):
            self._in_flight = in_flight_gate
        elif in_flight_gate:
            self._in_flight = PrefillsInFlight()
        self._signals = Signals(self.tree, self._in_flight, self.stats, unit_tokens)
        self._arrivals = ArrivalOrder()
        self._eviction = settings.build_eviction() if eviction is None else eviction
        self._marks = MarkIndex(self.tree)
        require_lead("plan_lasts_s", plan_lasts_s)
        self._standing = StandingPlan(plan_lasts_s)
        self._timer = timer
        self.held: dict[str, PendingRequest] = {}
        """Waiting requests that are in no plan, by id; see `hold`.  Do not change it."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Planner cannot be copied or pickled: make a new one and add what waits")

    # -- arrivals and departures -------------------------------------------------------------------

    def add(self, request: PendingRequest, held: bool = False) -> None:
        """Add a request that arrived, or came back after preemption.  Cost and errors of `PendingTree.add`.

        With `held` it cannot run yet, as after `hold`: its key is ignored until `resume` gives it one, and it
        must have its `num_tokens`.  O(1).
        """
        if request.request_id in self.held or (held and request.request_id in self.tree):
            raise DuplicateRequest(f"request {request.request_id!r} is already waiting")
        if held:
            self._add_held(request)
        else:
            self.tree.add(request)
        request.arrival_work = self.stats.uncached_admitted
        request.cached_len = request.coming_len = request.placed = 0  # it may have waited elsewhere
        request.lane = NO_LANE
        self._arrivals.note(request)
        self._calls.arrived(request, self.tree)
        if held:
            self._calls.left(request, HELD, 0)

    def _add_held(self, request: PendingRequest) -> None:
        if request.num_tokens == 0:
            raise InvalidKey(f"num_tokens of {request.request_id!r} is 0; one that is held has to say it")
        self.tree.number(request)
        request.key = None
        self.held[request.request_id] = request

    def extend(self, request_id: str, key: object) -> None:
        """Lengthen a request's key if more of it matters than was given.  As `PendingTree.extend`."""
        self.tree.extend(request_id, key)

    def remove(
        self, request_id: str, admitted: bool = True, uncached_tokens: SupportsIndex | None = None
    ) -> int:
        """Remove a request that left the queue.  O(depth).

        Args:
            admitted: False if it was aborted or withdrawn.
            uncached_tokens: prompt tokens that the engine really has to compute for it.  None means what the
                last plan expected, or the whole prompt if it was in no plan.

        Returns:
            The uncached tokens that are charged for it, 0 if it was not admitted.  A held request is expected
            to have no cached tokens.

        Raises:
            UnknownRequest: it was not waiting.
            InvalidKey: `uncached_tokens` is not within 0 .. 2**53.
        """
        told = -1
        if uncached_tokens is not None:
            told = require_tokens(f"uncached_tokens of {request_id!r}", uncached_tokens)
        in_flight = self._in_flight
        request = self.held.pop(request_id, None)
        key = b""
        if request is not None:
            self._calls.arrived(request, self.tree)
        else:
            if admitted and in_flight is not None:
                key = self.tree.key_of(request_id)
            request = self.tree.remove(request_id)
        self._arrivals.forget(request_id, self._signals.unit_tokens)
        if in_flight is not None:
            if key:
                in_flight.admit(request_id, key, request.namespace)
            else:
                in_flight.withdrawn(request_id)
        if not admitted:
            self.stats.withdrawn += 1
            self._calls.left(request, WITHDRAWN, 0)
            return 0
        cost: i64 = told if told >= 0 else max(0, request.num_tokens - request.cached_len)
        self.stats.note_admission(request.num_tokens, request.cached_len, cost, request.lane == FAIR_LANE)
        self._calls.charge(request, cost)
        self._calls.left(request, ADMITTED, cost)
        return cost

    def hold(self, request_id: str) -> None:
        """Take a waiting request that cannot run for now out of all plans, until it is resumed.  O(depth).

        Meanwhile it shares nothing with other requests, nothing is kept in the cache for it, and its tenant's
        turns do not wait for it.  It may be removed while it is held.  `UnknownRequest` if it is not waiting,
        or held already.
        """
        request = self.tree.remove(request_id)
        request.cached_len = request.coming_len = 0
        request.lane = NO_LANE
        self.held[request_id] = request
        self._calls.left(request, HELD, 0)

    def resume(self, request_id: str, key: object, tail: SupportsIndex = 0) -> None:
        """Put a held request that can run again back into its place by arrival.

        Args:
            key, tail: as in `PendingRequest`; the symbols may have changed, `num_tokens` stays.

        Raises:
            UnknownRequest: it is not held.
            InvalidKey: as `add`; it stays held.
        """
        request = self.held.get(request_id)
        if request is None:
            raise UnknownRequest(f"request {request_id!r} is not held")
        symbols_behind = count_of(request_id, "tail", tail)
        request.key = key
        self.tree.put_back(request)
        request.tail = symbols_behind
        del self.held[request_id]
        self._calls.arrived(request, self.tree)

    def prefilled(self, request_id: str) -> None:
        """Note that an admitted request's prefill ended, or that the request is gone.  O(depth).

        Its prefix is visible now, or never will be.  For engines with `in_flight_gate`.  Unknown ids are
        ignored.  The call may come before that of `remove`.
        """
        if self._in_flight is not None:
            self._in_flight.ended(request_id, request_id in self.tree)

    def generated(self, tenant: str, tokens: SupportsIndex) -> None:
        """Charge `tokens` more generated tokens to a tenant.  O(1).

        `InvalidKey` unless they are within 0 .. 2**53.
        """
        self._calls.generated(tenant, require_tokens("tokens generated", tokens))
        self._standing.drop()

    def answered(self, tokens: SupportsIndex, request_id: str = "") -> None:
        """Learn the length of an answer that has ended, for this request and requests like it.  O(1).

        `InvalidKey` unless the tokens are within 0 .. 2**53; nothing is learned then.
        """
        self._calls.answered(request_id, require_tokens("tokens answered", tokens))

    def served(self) -> dict[str, float]:
        """The tenants' accounts in tokens, if the policy keeps any.  O(tenants)."""
        return self._calls.served()

    @property
    def policy(self) -> AdmissionPolicy:
        """The policy that orders the queue, for looking at its state.  O(1)."""
        return self._calls.policy

    def __len__(self) -> int:
        """Number of waiting requests, held ones included."""
        return len(self.tree) + len(self.held)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.tree or request_id in self.held

    def request(self, request_id: str) -> PendingRequest:
        """A waiting request with its signals as of the last plan.  O(1); `UnknownRequest`."""
        held = self.held.get(request_id)
        return self.tree.request(request_id) if held is None else held

    def cluster(self, request_id: str) -> Cluster | None:
        """A waiting request's cluster; None if it shares nothing or is held.  O(1); `UnknownRequest`."""
        return None if request_id in self.held else self.tree.cluster(request_id)

    def needs(self, symbol: int) -> bool:
        """Whether a waiting request or a prefill under way has a `chained` symbol in its key.  O(1)."""
        in_flight = self._in_flight
        return self.tree.owner(symbol) is not None or (in_flight is not None and in_flight.needs(symbol))

    def totals(self) -> dict[str, int | float]:
        """The counters of `stats` by name, and the present `waiting` (in plans), `held` and `tree_nodes`."""
        now = {"waiting": len(self.tree), "held": len(self.held), "tree_nodes": self.tree.node_count}
        return {**self.stats.as_dict(), **now}

    # -- waiting requests, for readers -------------------------------------------------------------

    def requests(self) -> list[PendingRequest]:
        """All waiting requests in the order they were added, held ones last.  O(n)."""
        return [*self.tree.requests(), *self.held.values()]

    def newest(self) -> Iterator[PendingRequest]:
        """The waiting requests that are not held, the one added last first; valid until the queue changes."""
        return self.tree.newest()

    def key_of(self, request_id: str) -> bytes:
        """The packed key of a waiting request that is not held.  O(len(key)); `UnknownRequest`."""
        return self.tree.key_of(request_id)

    def shared_symbols(self, key: bytes, namespace: str) -> int:
        """As `PendingTree.shared_symbols`."""
        return self.tree.shared_symbols(key, namespace)

    def roots(self) -> Iterator[tuple[str, Node]]:
        """Each namespace in use and the root of its waiting prompts; valid until the queue changes."""
        return self.tree.roots()

    @property
    def has_sharing(self) -> bool:
        """Whether two waiting requests share at least one symbol.  O(1)."""
        return self.tree.has_sharing

    @property
    def work_done(self) -> int:
        """Uncached tokens admitted so far.  O(1)."""
        return self.stats.uncached_admitted

    # -- one cycle ---------------------------------------------------------------------------------

    def order_matters(self, cache: CacheView) -> bool:
        """False if `plan` is sure to keep arrival order, as far as can be told without a walk.  O(1).

        It is false if the policy needs sharing, no two waiting requests share a prefix, and none can hit the
        cache: the policy does not read it, or the cache rules hits out (`lone_requests`).
        """
        policy = self._calls.policy
        if self.tree.has_sharing or not policy.needs_sharing:
            return True
        return policy.reads_cache and bool(getattr(cache, "lone_requests", -1) != len(self.tree))

    def plan(self, cache: CacheView, now: float) -> Plan:
        """Return the admission order of all waiting requests that are not held, first to admit first.

        O(nodes the cache follows + n log n) for the default policy; O(1) while the last plan stands.

        Args:
            cache: the engine's prefix cache as it is now.
            now: seconds, same clock as `arrival_time`.

        Raises:
            InvalidCache: the cache view gave an impossible answer.
            InvalidKey: `now` is not a finite number.
            PolicyFault: the policy failed and `strict` is set.
        """
        plan = self._next_plan(cache, now, False)
        assert isinstance(plan, Plan)
        return plan

    def lazy_plan(self, cache: CacheView, now: float) -> LazyPlan:
        """Return the order of `plan`, worked out only as far as it is asked for.

        It is for an engine that admits a few requests.  With the default policy and a cache that tells its
        changes (`changed_since`, `inserted_since`) it costs O(changes in queue and cache since the last call
        + n vector operations).  Each request that is asked for, and each sibling that is put off, adds a few
        hundred nanoseconds.  Policies without a `stream` plan the whole queue.  Arguments and errors are
        those of `plan`.
        """
        plan = self._next_plan(cache, now, True)
        assert isinstance(plan, LazyPlan)
        return plan

    def _version(self) -> int:
        """Grows whenever the queue or what is under way changes."""
        return self.tree.version + (0 if self._in_flight is None else self._in_flight.version)

    def _next_plan(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        standing = self._standing.find(self._version(), cache, now)
        if standing is not None and isinstance(standing, LazyPlan) == lazily:
            return standing
        if not isfinite(now):
            raise InvalidKey(f"now is {now!r}, not a finite number")
        timer: Any = self._timer
        started: float = timer() if timer is not None else 0.0
        self.tree.enter("Planner.plan")
        try:
            plan = self._made(cache, now, lazily)
        finally:
            self.tree.leave()
        if lazily and isinstance(plan, Plan):
            plan = LazyPlan.of(plan)
        self._standing.keep(plan, self._version(), cache, now)
        stats = self.stats
        stats.plans += 1
        stats.planned += len(self.tree)
        stats.last_plan_s = timer() - started if timer is not None else 0.0
        stats.plan_s += stats.last_plan_s
        return plan

    def _made(self, cache: CacheView, now: float, lazily: bool) -> Plan | LazyPlan:
        """Make one plan: arrival order, signals, policy.  The caller holds the tree."""
        calls, tree, arrivals = self._calls, self.tree, self._arrivals
        gated = self._in_flight is not None
        unit: i64 = self._signals.look_at(cache)
        arrivals.fill_lengths(unit)
        if calls.policy.needs_sharing and not self._finds_something(cache, gated):
            self.stats.stood_aside += 1
            return kept_order(arrivals.of(tree), NOTHING_TO_GAIN, True)
        if calls.policy.reads_cache:
            self._signals.match_cache()
        if calls.policy.reads_tree or calls.lanes is not None:  # for score, cluster and head
            self._signals.match_queue(calls.policy.theta)
        shown = 0 if self._in_flight is None else self._in_flight.shown_tokens
        cycle = Cycle(tree, now, unit, self.stats.uncached_admitted, gated, shown)
        try:
            stream = calls.stream(cycle) if lazily else None
            if stream is not None:
                return LazyPlan(Drawn(stream, tree, calls, arrivals.of))
            queue = arrivals.of(tree)
            ordered = calls.order(queue, cycle)
        except PolicyFault as fault:
            calls.count(calls.policy, fault)
            return kept_order(arrivals.of(tree), f"arrival order: {fault}", False)
        return Plan([request.request_id for request in ordered], ordered != queue, ORDERED)

    def _finds_something(self, cache: CacheView, gated: bool) -> bool:
        """Whether a waiting prompt shares a prefix, or has one cached or under way."""
        if self.tree.has_sharing:
            return True
        if not self.order_matters(cache):
            return False
        self._signals.match_cache()
        return hits_something(self._arrivals.of(self.tree), gated)

    def upcoming(self, k: SupportsIndex) -> list[Upcoming]:
        """The next `k` requests of the last plan that still wait, with their uncached tokens.

        It is for prefetching.  O(k), and a lazy plan is worked out that far.  Once a request has arrived or
        left, a lazy plan has only the ids asked for before.  The list is empty before the first plan.

        Raises `InvalidKey` unless `k` is within 0 .. 2**53.
        """
        count = require_tokens("k", k)
        last = self._standing.last
        return [] if last is None else first_of(last, count, self.tree)

    def cycle(self, queue: WaitingQueue, cache: CacheView, now: float) -> Plan:
        """Compare, plan and reorder a queue that does not report arrivals and departures.

        The queue may have changed in any way since the last call.  O(n) on top of `add`, `remove`, `plan`.
        """
        waiting: list[str] = list(queue.waiting_ids())
        self._synchronise(queue, waiting)
        plan = self.plan(cache, now)
        order = [*plan, *self.held] if self.held else plan
        if order != waiting:
            self.stats.reordered += 1
            queue.reorder(order)
        return plan

    def _synchronise(self, queue: WaitingQueue, waiting: list[str]) -> None:
        """Add and remove requests until exactly those of `waiting`, the queue's ids, wait here.  O(n)."""
        present = set(waiting)
        if len(present) < len(waiting):
            raise DuplicateRequest("the queue names a waiting request twice")
        arrived = [request_id for request_id in waiting if request_id not in self]
        if len(waiting) - len(arrived) != len(self):
            for request in self.requests():
                if request.request_id not in present:
                    cost: Any = queue.uncached_tokens(request.request_id)
                    self.remove(request.request_id, cost >= 0, cost if cost >= 0 else None)
        for request_id in arrived:
            request = queue.translate(request_id)
            if request.request_id != request_id:
                raise InvalidKey(f"translate({request_id!r}) answered request {request.request_id!r}")
            self.add(request)

    # -- the cache ---------------------------------------------------------------------------------

    def cached_len(self, request_id: str) -> int:
        """Tokens of a waiting request's prompt in the cache of the last plan.  O(1); `UnknownRequest`.

        Unlike `request(...).cached_len`, it walks the cache if the policy did not, at most once per plan.
        """
        self._signals.match_cache_now("Planner.cached_len")
        return self.request(request_id).cached_len

    @property
    def evicts(self) -> bool:
        """Whether eviction scores are in use; if not, the engine's own eviction stands."""
        return self._eviction is not None

    def eviction_score(self, node_id: SupportsIndex, idle_s: float = 0.0) -> float:
        """How much the queue needs a cached node or block; the lowest is evicted first, 0.0 is no demand.

        O(1) to O(levels), after one O(matched nodes) step per cycle that evicts.  Always 0.0 if eviction is
        left to the engine, and before the first plan, except for `chained` keys.

        Args:
            node_id: what `CacheView.node_id` returns for it; with `chained` keys its symbol.
            idle_s: seconds since the engine last used it (modes "recency" and "decay").
        """
        eviction = self._eviction
        if eviction is None:
            return 0.0
        tree = self.tree
        number: int = node_id if isinstance(node_id, int) else operator.index(node_id)
        node = tree.owner(number) if tree.chained else self._marked(number)
        if node is None:
            return 0.0
        peak, levels = demand_of(node)
        return eviction.score(peak, levels, idle_s)

    def _marked(self, node_id: int) -> Node | None:
        """The deepest node that needs a cached tree node, by the marks of the last plan's walk."""
        cache = self._signals.cache
        if cache is None or len(self.tree) == 0:
            return None
        self._marks.refresh(cache, self._signals.walk_epoch())
        return self._marks.find(node_id)


@final
class ArrivalOrder:
    """Waiting requests by (arrival_time, sequence), listed anew only when the tree has changed.

    Most requests are added in the order of their `arrival_time`, which is then the tree's order.  Sorting
    begins only with the first request that was not.
    """

    def __init__(self) -> None:
        self._unsized: dict[str, PendingRequest] = {}
        self._requests: list[PendingRequest] = []
        self._version: i64 = -1
        self._in_order: bool = True
        self._latest: float = float("-inf")

    def note(self, request: PendingRequest) -> None:
        """Note a request that was added to the tree.  O(1)."""
        if request.arrival_time < self._latest:
            self._in_order = False
        else:
            self._latest = request.arrival_time
        if request.num_tokens == 0:
            self._unsized[request.request_id] = request

    def forget(self, request_id: str, unit_tokens: i64) -> None:
        """Note that a request waits no more; fill in its length if it was in no plan.  O(1)."""
        request = self._unsized.pop(request_id, None)
        if request is not None:
            _fill_length(request, unit_tokens)

    def fill_lengths(self, unit_tokens: i64) -> None:
        """Fill in prompt lengths in tokens that the caller left to the key.  O(requests added since)."""
        for request in self._unsized.values():
            _fill_length(request, unit_tokens)
        self._unsized.clear()

    def of(self, tree: PendingTree) -> list[PendingRequest]:
        """The tree's requests, first to arrive first; the same list until the tree changes.

        O(1) for an unchanged tree, else O(n), or O(n log n) if arrival times are out of order.
        """
        if self._version != tree.version:
            self._requests = tree.requests()
            if not self._in_order:
                self._requests.sort(key=arrival)
            self._version = tree.version
        return self._requests


def _fill_length(request: PendingRequest, unit_tokens: i64) -> None:
    if request.num_tokens == 0:
        symbols = min(request.length + request.tail, i64(MAX_TOKENS) // unit_tokens)
        request.num_tokens = symbols * unit_tokens


def kept_order(queue: list[PendingRequest], reason: str, stood_aside: bool) -> Plan:
    """A plan that leaves the queue as it is, with no request picked by a lane.  O(n)."""
    ids: list[str] = []
    for request in queue:
        request.lane = NO_LANE
        ids.append(request.request_id)
    return Plan(ids, False, reason, stood_aside)


@final
class StandingPlan:
    """Keeps a plan until the queue, the prefills under way or the cache change, or its time is over.

    Only a cache with a `version` can tell that it has not changed; with any other no plan stands.
    """

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s: float = lasts_s
        self.last: Plan | LazyPlan | None = None
        self._planned_at: float = 0.0
        self._version: i64 = -1
        self._cache: object = None
        self._cache_version: Any = None
        """None if no plan stands."""

    def find(self, version: i64, cache: CacheView, now: float) -> Plan | LazyPlan | None:
        """Return the plan that still stands; None if there is none.  O(1)."""
        if self._cache_version is None or self._version != version or self._cache is not cache:
            return None
        if not 0.0 <= now - self._planned_at < self._lasts_s:  # a clock that was set back ends it, too
            return None
        return self.last if self._cache_version == getattr(cache, "version", None) else None

    def keep(self, plan: Plan | LazyPlan, version: i64, cache: CacheView, now: float) -> None:
        """Remember a plan and the versions that it was made from."""
        self.last = plan
        self._planned_at = now
        self._version = version
        self._cache = cache
        self._cache_version = getattr(cache, "version", None)

    def drop(self) -> None:
        """Drop the plan because something other than queue and cache has changed."""
        self._cache_version = None
