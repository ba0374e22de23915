"""One planner beside one vLLM scheduler, looked at before and after each `schedule()`.

Only requests that simply wait, or wait for a grammar, take part in plans.  Any other keeps its place in the
queue: it was preempted, waits for remote KV or streaming input, or holds KV.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from peek.adapters.activation import Settings
from peek.adapters.containment import Agreement, Shield
from peek.adapters.engine_adapter import EngineAdapter, found_in
from peek.adapters.vllm import seams
from peek.adapters.vllm.queue import Blocked, RankedQueue, tracked_queue
from peek.errors import InvalidKey
from peek.eviction.demand import victims
from peek.planner.signals import PrefillsInFlight
from peek.request import PendingRequest
from peek.trie.continuations import REACH_TOKENS, STEP_TOKENS, Continuations
from peek.trie.keys import SYMBOL_BYTES, pack

_BLOCKS_A_STEP: Final = 2**16
"""Most blocks of prompts that are translated in one step: about 20 ms."""
_BLOCKS_AN_ARRIVAL: Final = 32
"""Cost of an arrival besides its blocks, in blocks."""


class VllmAdapter(EngineAdapter):
    """Reorders the waiting queue of `scheduler` and, if configured, chooses what it evicts.

    `shield` wraps whatever vLLM's block pool calls.  `clock` has the seconds of `Request.arrival_time`.
    """

    def __init__(self, scheduler: Any, settings: Settings, shield: Shield) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler = scheduler
        self.clock: Callable[[], float] = time.time
        queue = tracked_queue(scheduler.waiting)
        ranks = isinstance(queue, RankedQueue)
        priority_of = (lambda name: int(queue.members[name].priority)) if ranks else None
        part = int(getattr(scheduler.scheduler_config, "long_prefill_token_threshold", 0))
        self._gated = part > 0 and settings.config.sees_prefills
        options = {"chained": True, "in_flight_gate": PrefillsInFlight(True, part) if self._gated else False}
        super().__init__(settings, shield, lambda it: it.output_token_ids, priority_of, **options)
        self._pool = scheduler.kv_cache_manager.block_pool
        self.mirror = seams.make_mirror(scheduler)
        self.agreement = Agreement(slack=self.mirror.unit_tokens - 1)
        self._known: dict[str, Any] = {}
        """vLLM's requests that the planner has, by id."""
        self._keys: dict[str, bytes] = {}
        """Keys of those that are in plans, by id; the others are held."""
        self._in_parts: dict[str, tuple[Any, bytes]] = {}
        """Admitted requests, by id, whose prefill a sibling could repeat meanwhile; with their keys."""
        self._continuations = Continuations()
        compiles = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._waits = (RequestStatus.WAITING, compiles)
        self._blocked = Blocked(scheduler, compiles)
        self._loads, self._runs = RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.RUNNING
        self._table: Any = None
        """The pool's hash table that the mirror follows."""
        self._taken_back: list[Any] = []
        """Requests that shadow mode has moved to the queue's head, in order; some may have left it."""
        self._expected: dict[str, int] = {}
        """Expected cached tokens of the requests that vLLM has been shown in this step."""
        queue.looked = lambda request: shield.call(self._expect, request)
        if self.planner.evicts:
            seams.install_free_queue(self._pool, lambda in_order, n: shield.call(self._choose, in_order, n))
        scheduler.waiting = queue  # last, so that after an error vLLM still has its own queue

    # -- before schedule() -------------------------------------------------------------------------

    def before_schedule(self) -> None:
        """Bring the planner up to date and the queue into its order.

        O(requests that entered or left) while every seat is taken or nothing has changed since the last plan.
        """
        self.sync()
        planner, scheduler = self.planner, self.scheduler
        seats = max(scheduler.max_num_running_reqs, getattr(scheduler, "max_num_active_reqs", 0))
        if len(scheduler.running) >= seats or len(self._keys) < 2:
            return
        if not (self._away or planner.order_matters(self.mirror)):
            return
        plan = planner.lazy_plan(self.mirror, self.clock())
        if plan is not self._followed:
            scheduler.waiting.follow(None if plan.stood_aside else partial(self._shield.call, plan.at))
            self._followed, self._away = plan, not plan.stood_aside

    def sync(self) -> None:
        """Tell planner and mirror what the engine has done since the last call."""
        waiting = self._take_back()
        for request_id, (request, key) in list(self._in_parts.items()):
            if request.status != self._runs or request.num_computed_tokens >= request.num_prompt_tokens:
                del self._in_parts[request_id]
                self.planner.prefilled(request_id)
                self.mirror.release(key, self.planner.needs)
        for request_id in waiting.gone:
            if request_id in self._known:
                self._withdraw(request_id)
            self.quarantine.let_go(request_id)
        waiting.forget_gone()
        # In shadow mode nothing is held: vLLM's own order stands, also for requests that cannot run.
        freed = list(waiting.held.values()) if self.planner.shadow else self._blocked.freed()
        for request in reversed(freed):
            waiting.entered[request.request_id] = request
        if waiting.entered:
            self._followed = None
            self._let_in(waiting)
        if self._pool.cached_block_hash_to_block is not self._table:  # at first, and after a reset
            self._table = self._pool.cached_block_hash_to_block
            seams.watch(self._table, self.mirror, self._shield)
        for name in self.mirror.pop_outgrown():
            if name in self._keys and not self.quarantine.accepts(name, partial(self._extend, name)):
                self._withdraw(name)

    def _take_back(self) -> Any:
        """Move simply waiting requests to the queue's head from the list that vLLM <= 0.30 looks at first.

        In shadow mode all requests are moved, as those left there would overtake the others.  They go before
        requests that vLLM puts at the head meanwhile, as they would from its list.
        """
        waiting, shadow = self.scheduler.waiting, self.planner.shadow
        apart: Any = getattr(self.scheduler, "skipped_waiting", None)
        before = [each for each in self._taken_back if waiting.members.get(each.request_id) is each]
        self._taken_back = before
        if apart or before:
            rest = waiting.put_back(list(apart)[::-1])
            waiting.remove_requests(before)
            moves = {each for each in rest if shadow or self._takes_part(each)}
            back = before[::-1] + [each for each in rest if each in moves]
            self._taken_back = back[::-1] if shadow else []
            if back or len(rest) < len(apart):
                left_there = type(apart)()
                left_there.prepend_requests(each for each in rest if each not in moves)
                waiting.prepend_requests(back)
                self.scheduler.skipped_waiting = left_there  # last, so that an error loses no request
        waiting.put_back([])  # requests that vLLM's scan took out and did not put back have left
        return waiting

    def _takes_part(self, request: Any) -> bool:
        ran = request.num_computed_tokens > 0 or request.num_preemptions > 0
        return request.status in self._waits and not ran

    def _let_in(self, waiting: Any) -> None:
        """Translate up to `_BLOCKS_A_STEP` of the new requests; the rest stay behind the planned ones."""
        left = _BLOCKS_A_STEP
        while waiting.entered and left > 0:
            request_id, request = waiting.entered.popitem(last=False)
            takes_part = self._takes_part(request)
            if request_id in self._known and not (takes_part and self._known[request_id] is request):
                self._withdraw(request_id)
            if takes_part and request_id not in self.quarantine:
                left -= self._place(waiting, request)
            if not takes_part or request_id in self.quarantine:
                waiting.keep_place(request)

    def _place(self, waiting: Any, request: Any) -> int:
        """Plan a request, or hold it while it cannot run; return the cost in blocks."""
        request_id = request.request_id
        known = request_id in self._known
        held = known and request_id not in self._keys
        blocked = not self.planner.shadow and self._blocked.blocks(request)
        comes = not known or (held and not blocked)
        if comes and not self.quarantine.accepts(request_id, partial(self._add, request, blocked)):
            if known:
                self._withdraw(request_id)
            return _BLOCKS_AN_ARRIVAL
        if blocked:
            if known and not held:
                self.planner.hold(request_id)
                self._plans_no_more(request_id)
            self._blocked.hold(request)
            waiting.hold(request)
            return 0 if known else _BLOCKS_AN_ARRIVAL // 4
        if not self.planner.shadow:  # in shadow mode each stays where vLLM has put it
            waiting.take_part(request)
        return _BLOCKS_AN_ARRIVAL + len(request.block_hashes) if comes else 0

    def _add(self, request: Any, held: bool) -> None:
        """Translate a new or held request and give it to the planner; if this raises, nothing has changed."""
        request_id = request.request_id
        key, tail = (b"", 0) if held else self._translate(request)
        try:
            if request_id in self._known:
                self.planner.resume(request_id, key, tail)
                self._blocked.let_go(request)
            else:
                self._hand_over(self._pending(request, key, tail), held)
        except Exception:
            self.mirror.release(key, self.planner.needs)
            raise
        self._known[request_id] = request
        if not held:
            self._keys[request_id] = key
            self._blocked.planned(request, 1)

    def _pending(self, request: Any, key: bytes, tail: int) -> PendingRequest:
        stated = self.statements.of(seams.parameters_of(request))
        return PendingRequest(
            request.request_id,
            key,
            request.arrival_time,
            seams.namespace_of(request),
            request.num_tokens,
            tail=tail,
            tenant=seams.tenant_of(request, self._tenants),
            heads=seams.heads_of(request, self.mirror.unit_tokens),
            session=stated.session or self._session_of(request),
            ttft_target_s=stated.ttft_target_s,
        )

    def _session_of(self, request: Any) -> str:
        """Return the session that a prompt seems to continue.  O(REACH_TOKENS)."""
        tokens = request.prompt_token_ids or ()
        skipped = max(0, len(tokens) - REACH_TOKENS - STEP_TOKENS)
        try:
            last = pack(list(tokens[skipped:]))
        except InvalidKey:  # no tokens, only embeddings, or one below 0
            return ""
        return self._continuations.session_of(request.request_id, last, seams.namespace_of(request), skipped)

    def _plans_no_more(self, request_id: str) -> None:
        self._blocked.planned(self._known[request_id], -1)
        self.mirror.release(self._keys.pop(request_id), self.planner.needs)

    def _translate(self, request: Any) -> tuple[bytes, int]:
        """Return the key of a request, and the number of symbols of its prompt after the key."""
        usable = self._usable(request)
        if usable > 0 and not getattr(request, "skip_reading_prefix_cache", False):
            key = self.mirror.intern(request.request_id, request.block_hashes, usable)
            return key, usable - len(key) // SYMBOL_BYTES
        return self.mirror.alone(request.request_id), 0

    def _usable(self, request: Any) -> int:
        """Return the number of blocks that can be found in the cache: the last token is always computed."""
        return min((int(request.num_tokens) - 1) // self.mirror.unit_tokens, len(request.block_hashes))

    def _extend(self, request_id: str) -> None:
        request = self._known[request_id]
        key = self.mirror.intern_all(request.block_hashes, self._usable(request))
        self._keys[request_id] = key
        self.planner.extend(request_id, key)

    def _withdraw(self, request_id: str) -> None:
        self.planner.remove(request_id, admitted=False)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._blocked.let_go(self._known[request_id])
        if request_id in self._keys:
            self._plans_no_more(request_id)
        del self._known[request_id]

    def detach(self) -> None:
        """Give the scheduler objects of vLLM's own classes back.  Only between steps.  O(n)."""
        seams.restore_stock(self.scheduler)

    # -- after schedule() --------------------------------------------------------------------------

    def after_schedule(self, output: Any) -> None:
        """Note which requests were admitted, and at what cost.  O(admitted + entered + left)."""
        waiting = self._take_back()
        self.reordered += waiting.overtook
        waiting.overtook = False
        self._generated.count()
        for admitted in output.scheduled_new_reqs:
            self._admitted(admitted.req_id, int(admitted.num_computed_tokens))
        for request in waiting.gone.values():
            if request.status == self._loads:  # it holds blocks, and will compute what is not loaded
                self._admitted(request.request_id, int(request.num_computed_tokens))
        self._expected.clear()

    def _expect(self, request: Any) -> None:
        """Note the cached tokens of a request just before vLLM looks for its prompt.  O(blocks found).

        The plan is older: prompts of requests before it in this step are cached by now.  Nothing is noted
        for a request of which only the first block is known.
        """
        key = self._keys.get(request.request_id)
        if key is None or self.scheduler.connector is not None:
            return
        matched, tokens = found_in(self.mirror, "", key)
        if matched * SYMBOL_BYTES < len(key) or not self.planner.request(request.request_id).tail:
            self._expected[request.request_id] = tokens

    def _admitted(self, request_id: str, cached: int) -> None:
        request, expected = self._known.get(request_id), self._expected.get(request_id)
        if request is None:
            return
        if expected is not None:
            self.planner.request(request_id).cached_len = expected
        if self._gated and request_id in self._keys:
            if self.planner.request(request_id).tail:  # later requests may share the whole prompt
                self.quarantine.accepts(request_id, partial(self._extend, request_id))
            self._in_parts[request_id] = request, self._keys[request_id]
        self._admit(request, request_id, cached, None if expected is None else lambda: expected)
        self._forget(request_id)

    def _choose(self, in_order: Iterator[Any], count: int) -> list[Any] | None:
        """Return the blocks that no waiting request needs first; None while nothing is planned."""
        if not self._keys:
            return None
        blocks, mirror = self._pool.blocks, self.mirror

        def score(block_id: int) -> float:
            key = blocks[block_id].block_hash
            symbol = -1 if key is None else mirror.symbol_of(key)
            return 0.0 if symbol < 0 else self._demand(symbol)

        # Only blocks that the mirror knows can be needed, so one look more finds an unneeded block, if any.
        chosen = victims((block.block_id for block in in_order), score, len(mirror) + 1)
        return [blocks[block_id] for block_id in islice(chosen, count)]
