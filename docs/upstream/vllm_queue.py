"""`peek` as a waiting queue of vLLM with vllm-0.33.0-request-queue.patch, a prototype.

    vllm serve ... --request-queue-cls vllm_queue.PeekRequestQueue

One class in the place of adapter, scheduler class, tracked queues and watched pool.  README.md beside it says
what of the adapter it leaves out.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

from peek.adapters.activation import requested_settings
from peek.adapters.containment import Quarantine, Shield
from peek.adapters.engine_adapter import Generated, Statements
from peek.adapters.vllm.seams import heads_of, make_mirror, namespace_of, parameters_of, why_not_understood
from peek.errors import InvalidConfig
from peek.planner import LazyPlan, Planner
from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES

logger = logging.getLogger("peek")

_WAITS = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)


class PeekRequestQueue(RequestQueue):  # type: ignore[misc]
    """Requests that simply wait go in the planner's order; what vLLM puts at the head goes before them.

    An internal error, a cache that the mirror does not know, or a policy that is off leaves the order of
    arrival.  Nothing is planned until vLLM looks at the queue, and nothing but changes costs anything then.
    """

    def __init__(self, vllm_config: Any) -> None:
        if vllm_config.scheduler_config.policy != "fcfs":
            raise InvalidConfig("PeekRequestQueue is for --scheduling-policy fcfs: leave out priority")
        settings = requested_settings((vllm_config.additional_config or {}).get("peek"))
        self.clock = time.time
        self.shield = Shield(settings.strict)
        self.shield.active = settings.mode == "on" and not settings.config.is_stock
        self.planner = Planner(settings.config, chained=True, strict=settings.strict, plan_lasts_s=inf)
        self.quarantine = Quarantine(settings.strict)
        self.statements = Statements()
        self.generated = Generated(
            self.planner.generated, self.planner.answered, lambda request: request.output_token_ids
        )
        self._head: OrderedDict[str, Any] = OrderedDict()
        """What was preempted or does not simply wait: vLLM's order."""
        self._body: OrderedDict[str, Any] = OrderedDict()
        """The others, as they came."""
        self._keys: dict[str, bytes] = {}
        """Of those that the planner has."""
        self._admitted: list[tuple[Any, int]] = []
        """Requests that left since the scan began, and what was cached of them: a plan ends with news."""
        self._skipped: set[str] = set()
        self._plan: LazyPlan | None = None
        self._at = 0
        self._scanning = False
        self._next: Any = None

    # -- seams: the KV cache -----------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        groups = kv_cache_manager.kv_cache_config.kv_cache_groups
        replays = max((group.kv_cache_spec.prefix_replay_tokens for group in groups), default=0)
        seen = SimpleNamespace(
            kv_cache_manager=kv_cache_manager,
            kv_cache_config=kv_cache_manager.kv_cache_config,
            prefix_replay_tokens=replays,
        )
        why_not = why_not_understood(seen)
        if why_not is not None:
            logger.info("peek: the queue stays in order of arrival: %s", why_not)
            self.shield.active = False
            return
        self.mirror = make_mirror(seen)
        kv_cache_manager.block_pool.listener = self

    def block_cached(self, key: bytes) -> None:
        self.shield.call(self.mirror.block_cached, key)

    def block_removed(self, key: bytes) -> None:
        self.shield.call(self.mirror.block_gone, key)

    def cache_reset(self) -> None:
        self.shield.call(self.mirror.reset)

    # -- seams: one scan ---------------------------------------------------------------------------

    def skip(self, request: Any) -> bool:
        self._skipped.add(request.request_id)
        self._next = None
        return True

    def on_admit(self, request: Any, num_computed_tokens: int) -> None:
        if request.request_id in self._keys:
            self._admitted.append((request, num_computed_tokens))

    def end_scan(self) -> None:
        self._scanning = False
        self._skipped.clear()
        self._next = None

    def _begin_scan(self) -> None:
        """Tell the planner what has happened and ask for a plan.  O(what has changed)."""
        self._settle()
        self.generated.count()
        for request_id in self.mirror.pop_outgrown():
            if request_id in self._keys:
                self._extend(self._body[request_id])
        plan = None
        if len(self.planner) > 1 and self.planner.order_matters(self.mirror):
            plan = self.planner.lazy_plan(self.mirror, self.clock())
        self._plan = None if plan is None or plan.stood_aside else plan

    def _find_next(self) -> Any:
        if not self._scanning:
            self._scanning, self._plan, self._at = True, None, 0
            self.shield.call(self._begin_scan)
        for name, request in self._head.items():
            if name not in self._skipped:
                return request
        while self._plan is not None and (planned := self.shield.call(self._plan.at, self._at)) is not None:
            if planned in self._body and planned not in self._skipped:
                return self._body[planned]
            self._at += 1
        for name, request in self._body.items():
            if name not in self._skipped:
                return request
        raise IndexError("peek from an empty queue")

    # -- vLLM's queue ------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        self.shield.call(self._settle)
        self._next = None
        simply = request.status in _WAITS and not request.num_computed_tokens and not request.num_preemptions
        planned = simply and (
            not self.shield.active or self.quarantine.accepts(request.request_id, partial(self._add, request))
        )
        (self._body if planned else self._head)[request.request_id] = request

    def prepend_request(self, request: Any) -> None:
        self.shield.call(self._settle)
        self._next = None
        self._head[request.request_id] = request
        self._head.move_to_end(request.request_id, last=False)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Any:
        if self._next is None:
            self._next = self._find_next()
        return self._next

    def pop_request(self) -> Any:
        request = self.peek_request()
        self._drop(request)
        return request

    def remove_request(self, request: Any) -> None:
        if not self._drop(request):
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        self.quarantine.let_go(request.request_id)
        if request.request_id in self._keys:
            self.shield.call(self._leave, request, None)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in set(requests):
            if request.request_id in self._head or request.request_id in self._body:
                self.remove_request(request)

    def _drop(self, request: Any) -> bool:
        self._next = None
        name = request.request_id
        return self._head.pop(name, None) is not None or self._body.pop(name, None) is not None

    def __bool__(self) -> bool:
        return len(self) > len(self._skipped)

    def __len__(self) -> int:
        return len(self._head) + len(self._body)

    def __iter__(self) -> Iterator[Any]:
        """First to go first, as of the last plan."""
        planned = [] if self._plan is None else self.shield.call(self._plan.rest, 0) or []
        names = dict.fromkeys([*(name for name in planned if name in self._body), *self._body])
        return iter([*self._head.values(), *map(self._body.__getitem__, names)])

    # -- the planner -------------------------------------------------------------------------------

    def _add(self, request: Any) -> None:
        """Translate a request and hand it to the planner; if anything raises, nothing has changed."""
        usable = self._usable(request)
        reads = usable > 0 and not request.skip_reading_prefix_cache
        name = request.request_id
        key = self.mirror.intern(name, request.block_hashes, usable) if reads else self.mirror.alone(name)
        stated = self.statements.of(parameters_of(request))
        try:
            pending = PendingRequest(
                name,
                key,
                request.arrival_time,
                namespace_of(request),
                num_tokens=request.num_tokens,
                tail=usable - len(key) // SYMBOL_BYTES if reads else 0,
                heads=heads_of(request, self.mirror.unit_tokens),
                session=stated.session,
                ttft_target_s=stated.ttft_target_s,
            )
            self.planner.add(pending)
        except Exception:
            self.mirror.release(key, self.planner.needs)
            raise
        self._keys[name] = key

    def _usable(self, request: Any) -> int:
        """Blocks that could be found in the cache: vLLM always computes the last token."""
        return int(min((request.num_tokens - 1) // self.mirror.unit_tokens, len(request.block_hashes)))

    def _extend(self, request: Any) -> None:
        key = self.mirror.intern_all(request.block_hashes, self._usable(request))
        self._keys[request.request_id] = key
        self.planner.extend(request.request_id, key)

    def _settle(self) -> None:
        for request, cached in self._admitted:
            self.generated.runs(request, request.request_id, "")
            self._leave(request, max(0, request.num_prompt_tokens - cached))
        self._admitted.clear()

    def _leave(self, request: Any, uncached_tokens: int | None) -> None:
        name = request.request_id
        self.planner.remove(name, uncached_tokens is not None, uncached_tokens)
        self.mirror.release(self._keys.pop(name), self.planner.needs)
