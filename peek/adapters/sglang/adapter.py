"""One planner beside one SGLang `SchedulePolicy`.

`SglangAdapter.order` stands in for `calc_priority`: it compares the waiting queue with what the planner
knows, plans, and sorts the queue in place.

There is no clock.  With tensor parallelism every rank runs a scheduler of its own, and all must come to
the same order; wall time differs between ranks, work done does not.  So time is the prefill work
admitted so far, in tokens, at a nominal speed.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final
from weakref import WeakKeyDictionary

from peek.adapters.activation import Settings
from peek.adapters.sglang.eviction import DemandStrategy
from peek.adapters.sglang.namespaces import ALONE
from peek.adapters.sglang.pages import PageTable
from peek.adapters.sglang.seams import (
    make_view,
    prefill_ended,
    prompt_of,
    request_namespace,
    require_seams,
    set_strategy,
    shows_nodes,
    touch,
    was_admitted,
)
from peek.adapters.shield import Shield
from peek.planner import Planner
from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES, pack

logger = logging.getLogger("peek")

NOMINAL_TOKEN_S: Final = 1 / 6000
"""Seconds a prompt token is taken to take; only where a policy speaks of seconds (`slo_s`)."""


class Waiting:
    """What the adapter remembers of a request in the planner or in flight."""

    __slots__ = ("outputs", "request", "symbols")

    def __init__(self, request: Any, symbols: bytes) -> None:
        self.request = request
        self.symbols = symbols
        self.outputs = len(request.output_ids)


class SglangAdapter:
    """Orders the waiting queue of `policy` and, if configured, chooses what its cache evicts.

    Args:
        policy: a `sglang.srt.managers.schedule_policy.SchedulePolicy`.
        settings: what was asked for; not stock.
        shield: stands before whatever SGLang's cache calls.
    """

    def __init__(self, policy: Any, settings: Settings, shield: Shield) -> None:
        self.policy = policy
        # SGLang shows a prefix to others when its prefill ends.
        gate = settings.config.admission == "peek"
        self.planner = Planner(
            settings.config, timer=time.perf_counter, in_flight_gate=gate, strict=settings.strict
        )
        self.reordered = 0
        """Calls that changed the order of SGLang's queue."""
        self._work_done = 0
        """Prompt tokens admitted for computation so far."""
        self.cached_real = 0
        self.protected_evictions = 0
        require_seams(policy, self.planner.evicts)
        cache = policy.tree_cache
        page_tokens = int(cache.page_size)
        self._page_tokens = page_tokens
        self._pages = PageTable(page_tokens) if page_tokens > 1 else None
        self.view = make_view(cache, self._pages)
        self._waiting: dict[str, Waiting] = {}
        self._in_flight: dict[str, Waiting] = {}
        self._arrived: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._away = False
        """Whether the queue may be in another order than SGLang's own policy would see."""
        self._shield = shield
        self._stock_strategy: Any = None
        self._touches = self.planner.evicts and not shows_nodes(cache)
        if self._touches:
            logger.warning(
                "peek: SGLang's Rust core takes no eviction strategy; needed prefixes are kept recent instead"
                " (SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python evicts by demand)"
            )
        elif self.planner.evicts:
            self._stock_strategy = set_strategy(cache, None)
            set_strategy(cache, DemandStrategy(self._stock_strategy, self._demand))

    @property
    def now(self) -> float:
        """Nominal seconds of prefill work admitted so far."""
        return self._work_done * NOMINAL_TOKEN_S

    # -- one cycle ---------------------------------------------------------------------------------

    def order(self, queue: list[Any]) -> bool:
        """Sort `queue` in place; False if SGLang's own policy should see to it.

        That is so, for a policy that lives on sharing, where nothing that waits is shared, cached or under
        way, and with fewer than two waiting.

        O(queue) for the comparison, plus the plan.
        """
        self._sync(queue)
        planner = self.planner
        # Eviction asks the last plan's view of the cache, also while the order does not matter.
        if not queue or (len(queue) < 2 and not planner.evicts):
            return planner.order_matters(self.view)
        plan = planner.plan(self.view, self.now)
        if plan.stood_aside and not self._away and not planner.evicts:
            return False
        known = self._waiting
        ordered = [known[request_id].request for request_id in plan]
        if self.policy.enable_priority_scheduling:
            sign = self.policy.priority_sign
            ordered.sort(key=lambda request: request.priority * sign)
        if ordered != queue:
            queue[:] = ordered
            self.reordered += 1
        self._away = not plan.stood_aside
        if hasattr(queue[0], "num_matched_prefix_tokens"):  # read by SGLang's load snapshots
            for request in queue:
                request.num_matched_prefix_tokens = int(planner.request(request.rid).cached_len)
        if self._touches:
            self._touch_needed(queue)
        return not plan.stood_aside

    def _sync(self, queue: list[Any]) -> None:
        self._settle()
        present: set[str] = set()
        arrived = []
        for request in queue:
            entry = self._waiting.get(request.rid)
            if entry is None or entry.request is not request or entry.outputs != len(request.output_ids):
                arrived.append(request)  # new, or retracted since: it was away
            else:
                present.add(request.rid)
        if len(present) != len(self._waiting):
            for rid in [rid for rid in self._waiting if rid not in present]:
                self._leave(rid)
        for request in arrived:
            self._add(request)

    def _settle(self) -> None:
        """Prefills that ended since the last cycle show their prefix to others now."""
        ended = [rid for rid, entry in self._in_flight.items() if prefill_ended(entry.request, entry.outputs)]
        for rid in ended:
            self.planner.prefilled(rid)
            self._release(self._in_flight.pop(rid))

    def _leave(self, rid: str) -> None:
        """A request is out of the queue: in a batch, or aborted."""
        entry = self._waiting.pop(rid)
        request = entry.request
        if not was_admitted(request, entry.outputs):
            self.planner.remove(rid, admitted=False)
            self._release(entry)
            return
        uncached = None  # of a retracted request SGLang does not tell; the plan's expectation stands
        if not getattr(request, "retracted_stain", False):
            cached = int(request.cached_tokens)
            self.cached_real += cached
            uncached = int(self.planner.request(rid).num_tokens) - cached
        if prefill_ended(request, entry.outputs):
            self.planner.prefilled(rid)
            self._release(entry)
        else:
            self._in_flight[rid] = entry  # its pages are still compared with
        self._work_done += self.planner.remove(rid, True, uncached)

    def _release(self, entry: Waiting) -> None:
        if self._pages is not None:
            self._pages.release(entry.symbols)

    def _add(self, request: Any) -> None:
        tokens, limit = prompt_of(request)
        whole = limit // self._page_tokens * self._page_tokens
        namespace = request_namespace(request)
        symbols = b""
        if whole == 0:
            namespace = ALONE + str(request.rid)
        elif not namespace.startswith(ALONE):
            symbols = pack(tokens)[: whole * SYMBOL_BYTES]
            if self._pages is not None:
                symbols = self._pages.intern(symbols)
        self._waiting[request.rid] = Waiting(request, symbols)
        arrival = self._arrived.setdefault(request, self.now)
        key: object = symbols or [0]
        self.planner.add(PendingRequest(request.rid, key, arrival, namespace, num_tokens=len(tokens)))

    # -- eviction ----------------------------------------------------------------------------------

    def _demand(self, node_id: int) -> float:
        demand = self._shield.call(self.planner.eviction_score, node_id) or 0.0
        self.protected_evictions += demand > 0.0
        return demand

    def _touch_needed(self, queue: list[Any]) -> None:
        """The Rust core: what the head of the queue needs becomes the most recent.  O(matched tokens)."""
        touched: set[tuple[str, bytes]] = set()
        for request in reversed(queue):
            cached = int(self.planner.cached_len(request.rid))
            matched = cached // self._page_tokens * SYMBOL_BYTES
            namespace = self.planner.request(request.rid).namespace
            prefix = (namespace, self._waiting[request.rid].symbols[:matched])
            if matched and prefix not in touched:
                touched.add(prefix)
                touch(self.policy.tree_cache, request, cached)

    def detach(self) -> None:
        """Give the cache its own strategy back.  O(1)."""
        if self._stock_strategy is not None:
            stock, self._stock_strategy = self._stock_strategy, None
            set_strategy(self.policy.tree_cache, stock)
