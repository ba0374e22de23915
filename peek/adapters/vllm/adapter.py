"""One planner beside one vLLM scheduler.

`VllmAdapter` looks at the scheduler before and after each `schedule()`: it tells the planner who waits,
puts the waiting deque into the planner's order, and learns what was admitted and what it cost.  Only
requests that simply wait take part; whoever was preempted, is blocked (remote KV, grammar, streaming
input), holds KV or belongs to a resumable session keeps its place in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from peek.adapters.shield import Shield
from peek.adapters.vllm.mirror import BlockMirror
from peek.adapters.vllm.seams import (
    hash_lookup,
    install_free_queue,
    least_needed,
    require_seams,
    watch_hashes,
)
from peek.config import PeekConfig
from peek.planner import Planner
from peek.request import PendingRequest


class VllmAdapter:
    """Reorders the waiting queue of `scheduler` and, if configured, chooses what it evicts.

    Args:
        scheduler: a `vllm.v1.core.sched.scheduler.Scheduler`, fully constructed.
        config: settings; not stock.
        shield: stands before whatever vLLM's block pool calls.
        clock: seconds on the clock of `Request.arrival_time`.
    """

    def __init__(
        self, scheduler: Any, config: PeekConfig, shield: Shield, clock: Callable[[], float] = time.time
    ) -> None:
        require_seams(scheduler)
        from vllm.v1.request import RequestStatus

        self.scheduler = scheduler
        self.clock = clock
        self.planner = Planner(config, chained=True, timer=time.perf_counter)
        self.cached_real = 0
        """Prompt tokens of admitted requests that vLLM found in its cache."""
        self.protected_evictions = 0
        """Blocks that were passed over because a waiting request needs them."""
        self._pool = scheduler.kv_cache_manager.block_pool
        block_size = scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self.mirror = BlockMirror(block_size, hash_lookup(self._pool))
        self._keys: dict[str, bytes] = {}
        self._known: dict[str, Any] = {}
        self._plain_wait = RequestStatus.WAITING
        self._shield = shield
        self._table = self._watch()
        if self.planner.evicts:
            install_free_queue(self._pool, lambda in_order, n: shield.call(self._choose, in_order, n))

    def _watch(self) -> object:
        call = self._shield.call
        mirror = self.mirror
        return watch_hashes(
            self._pool,
            lambda block_hash: call(mirror.block_cached, block_hash),
            lambda block_hash: call(mirror.block_gone, block_hash),
        )

    # -- before schedule() -------------------------------------------------------------------------

    def before_schedule(self) -> None:
        """Bring the planner up to date and the queue into its order."""
        waiting = self.scheduler.waiting
        movable = [request for request in waiting if self._takes_part(request)]
        self._sync(movable)
        scheduler = self.scheduler
        seats = max(scheduler.max_num_running_reqs, getattr(scheduler, "max_num_active_reqs", 0))
        if len(movable) < 2 or len(scheduler.running) >= seats:
            return
        if self._pool.cached_block_hash_to_block is not self._table:
            self._table = self._watch()  # the prefix cache was reset
            self.mirror.reset()
        order = self.planner.plan(self.mirror, self.clock())
        self._reorder(waiting, movable, order)

    def _takes_part(self, request: Any) -> bool:
        return (
            request.status == self._plain_wait
            and request.num_computed_tokens == 0
            and request.num_preemptions == 0
            and not getattr(request, "resumable", False)
        )

    def _sync(self, movable: list[Any]) -> None:
        planner = self.planner
        for request in movable:
            known = self._known.get(request.request_id)
            if known is not request:
                if known is not None:  # the id came back with another prompt
                    self._remove(request.request_id, None)
                self._add(request)
        if len(planner) != len(movable):
            present = {request.request_id for request in movable}
            for request_id in [known for known in self._keys if known not in present]:
                self._remove(request_id, None)

    def _add(self, request: Any) -> None:
        # The engine always computes the last token, so a block that ends the prompt is of no use.
        usable = (request.num_tokens - 1) // self.mirror.unit_tokens
        hashes = request.block_hashes[:usable]
        if hashes and not getattr(request, "skip_reading_prefix_cache", False):
            key = self.mirror.intern(hashes)
        else:
            key = self.mirror.alone(request.request_id)
        self._keys[request.request_id] = key
        self._known[request.request_id] = request
        self.planner.add(
            PendingRequest(request.request_id, key, request.arrival_time, num_tokens=request.num_tokens)
        )

    def _remove(self, request_id: str, uncached_tokens: int | None) -> None:
        self.planner.remove(request_id, uncached_tokens is not None, uncached_tokens)
        del self._known[request_id]
        self.mirror.release(self._keys.pop(request_id), self.planner.tree)

    def _reorder(self, waiting: Any, movable: list[Any], order: list[str]) -> None:
        """Fill the places of `movable` in the deque in `order`; everybody else stays put."""
        if all(request.request_id == name for request, name in zip(movable, order, strict=True)):
            return
        by_id = {request.request_id: request for request in movable}
        ordered = iter(order)
        queue = [by_id[next(ordered)] if request.request_id in by_id else request for request in waiting]
        waiting.clear()  # nothing can fail between here and the next line
        waiting.extend(queue)
        self.planner.stats.reordered += 1

    # -- after schedule() --------------------------------------------------------------------------

    def after_schedule(self, output: Any) -> None:
        """Learn who was admitted and what it cost."""
        for admitted in output.scheduled_new_reqs:
            request_id = admitted.req_id
            if request_id in self._keys:
                cached = int(admitted.num_computed_tokens)
                self.cached_real += cached
                prompt = int(self.planner.tree.request(request_id).num_tokens)
                self._remove(request_id, prompt - cached)

    # -- eviction ----------------------------------------------------------------------------------

    def _choose(self, in_order: Iterator[Any], count: int) -> list[Any] | None:
        """The blocks that nobody waits for first; None while nobody waits."""
        if not self._keys:
            return None
        # No more blocks than the mirror knows can be needed, so one that is not is found if there is one.
        chooser = least_needed(self._pool, self._score, len(self.mirror) + 1)
        return chooser(in_order, count)

    def _score(self, block_hash: bytes) -> float:
        symbol = self.mirror.symbol_of(block_hash)
        if symbol < 0:
            return 0.0
        demand = self.planner.eviction_score(symbol)
        self.protected_evictions += demand > 0.0
        return demand
