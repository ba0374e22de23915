"""One planner beside one SGLang `SchedulePolicy`, or one for each priority.

It uses no wall clock.  With tensor parallelism each rank has its own scheduler, and all must reach the same
order.  Wall time differs between them; the prefill work admitted so far, in tokens, does not.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from peek.adapters.activation import Settings
from peek.adapters.containment import Shield, require
from peek.adapters.engine_adapter import EngineAdapter, found_in
from peek.adapters.line import Line
from peek.adapters.sglang import caches
from peek.adapters.sglang.requests import (
    Translator,
    Waiting,
    cached_of,
    entry_time,
    is_turn,
    stated_by,
    tenant_of,
    was_admitted,
)
from peek.errors import DuplicateRequest
from peek.planner import LazyPlan
from peek.planner.signals import PrefillsInFlight
from peek.request import PendingRequest

logger = logging.getLogger("peek")

NOMINAL_TOKEN_S: Final = 1 / 6000
"""Nominal seconds for a prompt token: all ranks then read the same clock.  Targets and `slo_s` go by it."""
SPARE: Final = 8
"""Requests in the plan's order after the last that a batch has room for, because SGLang passes over some."""
_MOST_TOLD: Final = 128
"""Up to this number of waiting requests SGLang's load snapshots look at each; above it SGLang estimates."""
OF_POLICY: Final = ("policy", "tree_cache.page_size", "enable_priority_scheduling", "priority_sign")
_LIMITS: Final = ("max_running_requests", "max_prefill_tokens", "chunked_prefill_size")
_OF_SCHEDULER: Final = (*_LIMITS, "running_batch.reqs", "waiting_queue")


def schedule_policy(policy: Any) -> str:
    """Return the `--schedule-policy` in force; without a prefix cache SGLang itself uses fcfs."""
    return str(getattr(policy.policy, "value", policy.policy))


class SglangAdapter(EngineAdapter):
    """Orders the waiting queue of a `SchedulePolicy` and, if configured, chooses what its cache evicts.

    `shield` wraps whatever SGLang's cache calls.  `scheduler` is the policy's own.
    """

    def __init__(self, policy: Any, settings: Settings, shield: Shield, scheduler: Any) -> None:
        require(scheduler, _OF_SCHEDULER, "SGLang")
        self.policy = policy
        self._scheduler = scheduler
        self._by_priority = bool(policy.enable_priority_scheduling)
        # SGLang shows a prefix to others only when its prefill ends.
        gate = PrefillsInFlight() if settings.config.sees_prefills else False
        rank = self._rank
        priority_of = (lambda rid: int(rank(self._waiting[rid].request())[0])) if self._by_priority else None
        super().__init__(settings, shield, lambda it: it.output_ids, priority_of, in_flight_gate=gate)
        self._work_done = 0
        """Prompt tokens admitted for computation so far."""
        cache = policy.tree_cache
        wanted = [] if caches.shows_nodes(cache) else ["match_full_device_prefix", "match_prefix"]
        if self.planner.evicts and not wanted and caches.hybrid_of(cache) is None:
            wanted.append("eviction_strategy")
        require(caches.tree_core(cache), wanted, "SGLang")
        self._door = Translator(int(cache.page_size), caches.is_bigram(cache), caches.lender_of(cache))
        self.view = caches.make_view(cache, self._door)
        self._waiting: dict[str, Waiting] = {}
        self._in_flight: dict[str, Waiting] = {}
        self._turns: dict[str, Waiting] = {}
        """The waiting requests that are turns of streaming sessions."""
        self._exact = not caches.is_fed_from_elsewhere(cache)
        """Whether SGLang finds exactly the view's tokens; the view counts KV on the host only in part."""
        self._line = Line(self._rank if self._by_priority else None)
        self._arrived: WeakKeyDictionary[Any, tuple[float, float]] = WeakKeyDictionary()
        """By request, also if retracted: its arrival, and the engine's entry time at that moment."""
        self._stock_strategy: Any = None
        self._touches = self.planner.evicts and not caches.shows_nodes(cache)
        logger.info("peek: takes the place of --schedule-policy %s", schedule_policy(policy))
        if self.planner.evicts:
            self._take_over_eviction(cache)
        self._take_over_snapshots()

    def _rank(self, request: Any) -> tuple[int, float]:
        """Return the key by which SGLang sorts if it schedules by priority."""
        return request.priority * self.policy.priority_sign, entry_time(request)

    def _take_over_eviction(self, cache: Any) -> None:
        if self._touches:
            text = "peek: SGLang's Rust core takes no eviction strategy; needed prefixes are kept recent"
            logger.warning(text + " instead (%s evicts by demand)", caches.PYTHON_CORE)
            return
        self._stock_strategy = stock = getattr(caches.tree_core(cache), "eviction_strategy", None)
        if stock is None:
            logger.warning("peek: a %s takes no eviction strategy; it evicts as ever", type(cache).__name__)
            return
        call, demand = self._shield.call, self._demand
        strategy = caches.DemandStrategy(stock, lambda node_id: call(demand, node_id) or 0.0)
        caches.set_strategy(cache, strategy)

    def _take_over_snapshots(self) -> None:
        """Tell SGLang whether its load snapshots can rely on the requests' cached lengths.  O(1)."""
        policy, call, tell = self.policy, self._shield.call, self._tell_cached
        stock = getattr(policy, "waiting_queue_prefix_matched", None)
        if stock is not None:
            policy.waiting_queue_prefix_matched = lambda queue: (
                bool(call(tell, queue)) if self._away and self._shield.active else stock(queue)
            )

    @property
    def now(self) -> float:
        """Nominal seconds of prefill work admitted so far."""
        return self._work_done * NOMINAL_TOKEN_S

    # -- one cycle ---------------------------------------------------------------------------------

    def order(self, queue: list[Any]) -> bool:
        """Take the place of `calc_priority`: order `queue` in place; False leaves it to SGLang's own policy.

        Requests that the next batch may admit come first, in the plan's order; the others follow as SGLang
        queued them, or by priority.  If requests are in quarantine, the whole queue is in planned order.

        O(in flight), and 1 ns per waiting request, while neither queue nor cache changes.  Otherwise also
        O(changes), and the plan as far as it is needed, in the last case all of it.  See `Line.follow`.
        """
        for rid in [rid for rid, entry in self._in_flight.items() if entry.prefill_ended()]:
            self._end(rid)
        self._generated.count()
        if queue != self._line.requests:
            self._sync(queue)
        self._renew_turns()
        planner = self.planner
        # A single request needs no plan, except for eviction, which needs the plan's view of the cache.
        if len(planner) == 0 or (len(planner) == 1 and not planner.evicts):
            for rid, entry in self._waiting.items():
                request: Any = entry.request()
                cached = found_in(self.view, entry.namespace, entry.key)[1]
                request.num_matched_prefix_tokens = planner.request(rid).cached_len = cached
            return bool(planner.order_matters(self.view)) and not len(self.quarantine)
        plan = planner.lazy_plan(self.view, self.now)
        if plan is not self._followed and (self._away or planner.evicts or not plan.stood_aside):
            self._follow(plan, queue)
        return self._away

    def _follow(self, plan: LazyPlan, queue: list[Any]) -> None:
        """Put the queue into the order of a plan, as `order` describes."""
        if plan.stood_aside:
            planned: list[Any] = []
        elif len(self.quarantine):  # requests in quarantine keep the places that SGLang gave them
            places, ids = sorted(queue, key=self._rank) if self._by_priority else queue, iter(plan)
            planned = [it if self._is_apart(it) else self._waiting[next(ids)].request() for it in places]
        else:
            planned = self._head_of(plan)
        if self._away or planned:
            self.reordered += self._line.put(queue, planned)
        self._followed, self._away = plan, not plan.stood_aside
        if self._touches:  # refresh what the first 128 wait for with each plan, not just every 32nd turn
            self.policy._waiting_prefix_refresh_calls = 0
        if not hasattr(self.policy, "waiting_queue_prefix_matched"):  # 0.5.17 does not ask
            self._tell_cached(queue)

    def _tell_cached(self, queue: list[Any]) -> bool:
        """Write the cached length of each waiting request, for load snapshots; False if too many wait."""
        if len(queue) > _MOST_TOLD:
            return False
        cached_len, waiting = self.planner.cached_len, self._waiting
        for request in queue:
            if request.rid in waiting and not self._is_apart(request):
                request.num_matched_prefix_tokens = cached_len(request.rid)
        return True

    def _head_of(self, plan: LazyPlan) -> list[Any]:
        """Return the head of a plan: requests that fit into a batch by seats and tokens, and `SPARE` more."""
        scheduler = self._scheduler
        seats, tokens = int(scheduler.max_running_requests), int(scheduler.max_prefill_tokens)
        if not self._by_priority:  # by priority, running requests may be preempted
            seats -= len(scheduler.running_batch.reqs)
        chunk = int(scheduler.chunked_prefill_size or 0)
        tokens = min(tokens, chunk) if chunk > 0 else tokens
        cached_len = self.planner.cached_len
        planned: list[Any] = []
        spare = SPARE
        for request_id in plan:
            spare -= seats <= 0 or tokens <= 0
            if spare < 0:
                break
            entry = self._waiting[request_id]
            request: Any = entry.request()
            planned.append(request)
            request.num_matched_prefix_tokens = cached = cached_len(request_id)
            seats -= 1
            tokens -= max(1, entry.num_tokens - cached)
        return planned

    def turned(self, requests: list[Any], queue: list[Any]) -> None:
        """Note a batch of `requests`, and the `queue` left, since an idle or full server asks for no order.

        O(batch + changes), and 1 ns per waiting request.
        """
        for request in requests:
            self._left(request)
        self._line.left(requests)
        if queue != self._line.requests:
            self._sync(queue)

    # -- what waits --------------------------------------------------------------------------------

    def _sync(self, queue: list[Any]) -> None:
        self._followed = None
        gone, arrived = self._line.follow(queue)
        for request in gone:
            self._left(request)
        if self._by_priority:
            arrived.sort(key=entry_time)
        for request in arrived:
            self._take_in(request)

    def _renew_turns(self) -> None:
        """Let turns arrive again if the KV that their sessions lend them, and so their keys, has changed."""
        lends = self._door.lends
        for entry in list(self._turns.values()):
            request = entry.request()
            if lends(request, entry.limit) != entry.lent:
                self._leave(request)
                self._take_in(request)

    def _take_in(self, request: Any) -> None:
        # By reference, because two requests may have one `rid`.
        self.quarantine.accepts(ref(request), partial(self._add, request), str(request.rid))

    def _is_apart(self, request: Any) -> bool:
        return len(self.quarantine) > 0 and ref(request) in self.quarantine

    def _end(self, rid: str) -> None:
        self.planner.prefilled(rid)
        self._door.release(self._in_flight.pop(rid))

    def _left(self, request: Any) -> None:
        """Note that a request has left the queue; ignored if it is not known to wait."""
        entry = self._waiting.get(request.rid)
        if entry is not None and entry.request() is request:
            self._leave(request)
        else:
            self.quarantine.let_go(ref(request))

    def _leave(self, request: Any) -> None:
        """Remove a waiting request: it is in a batch, or was aborted."""
        rid = request.rid
        entry = self._waiting.pop(rid)
        self._turns.pop(rid, None)
        if not was_admitted(request, entry.outputs):
            self.planner.remove(rid, admitted=False)
            self._door.release(entry)
            return
        expected = partial(self.planner.cached_len, rid) if self._exact else None
        self._work_done += self._admit(request, rid, cached_of(request), expected)
        self._in_flight[rid] = entry  # prompts are still compared with its pages
        if entry.prefill_ended():
            self._end(rid)

    def _arrival_of(self, request: Any) -> float:
        """Return the arrival of a request that enters the queue; a retracted one keeps its own.  O(1)."""
        # By priority it counts as new if SGLang has renewed the entry time, by which it sorts equals.
        entered, known = entry_time(request), self._arrived.get(request)
        if known is None or (self._by_priority and known[1] != entered):
            known = self._arrived[request] = (self.now, entered)
        return known[0]

    def _add(self, request: Any) -> None:
        """Give a request to the planner; if this raises, nothing has changed."""
        rid = request.rid
        if rid in self._waiting:
            raise DuplicateRequest("its rid is waiting already")
        if rid in self._in_flight:
            if self._in_flight[rid].request() is not request:
                raise DuplicateRequest("its rid is being prefilled")
            self._end(rid)
        stated = stated_by(request, self._tenants, self.statements)
        entry = self._waiting[rid] = self._door.translate(request, stated.session)
        try:
            pending = PendingRequest(
                rid,
                entry.key,
                self._arrival_of(request),
                entry.namespace,
                entry.num_tokens,
                tenant=tenant_of(request, self._tenants),
                heads=entry.heads,
                session=entry.session,
                ttft_target_s=stated.ttft_target_s,
            )
            self._hand_over(pending)
        except Exception:
            self._door.release(self._waiting.pop(rid))
            raise
        if is_turn(request):
            self._turns[rid] = entry

    def detach(self) -> None:
        """Give policy, cache and queue back their own parts, and stop reports of insertions.  O(queue)."""
        vars(self.policy).pop("waiting_queue_prefix_matched", None)
        self.policy.tree_cache.peek = None
        if self._stock_strategy is not None:
            caches.set_strategy(self.policy.tree_cache, self._stock_strategy)
        if self._away:
            self._line.follow(self._scheduler.waiting_queue)
            self._line.put(self._scheduler.waiting_queue, [])
