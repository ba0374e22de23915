"""The shadow beside an SGLang scheduler: it reports to `peek.adapters.shadow` and changes nothing.

SGLang asks for an order only when it may admit, so the shadow looks in each turn of the scheduler's loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from peek.adapters.activation import Settings
from peek.adapters.sglang.adapter import NOMINAL_TOKEN_S, SglangAdapter
from peek.adapters.sglang.caches import hybrid_of, is_bigram, is_fed_from_elsewhere
from peek.adapters.sglang.requests import Followed, prompt_of, request_namespace, stated_by
from peek.adapters.shadow import Shadow
from peek.simulation.live import Limits, LiveRadix, folded, page_names


def setting_of(scheduler: Any, name: str) -> Any:
    """Return a server argument; None if the scheduler or this version does not have it."""
    return getattr(getattr(scheduler, "server_args", None), name, None)


def why_no_shadow(policy: Any, scheduler: Any) -> str | None:
    """Return why the virtual engine would differ from this one; None if it would not."""
    cache = policy.tree_cache
    if setting_of(scheduler, "enable_streaming_session"):
        return "streaming sessions keep KV of their own"
    if policy.enable_priority_scheduling:
        return "requests are scheduled by priority"
    if hybrid_of(cache) is not None or is_bigram(cache):
        return "the model's KV cache is of several kinds, or shared with a draft model"
    if is_fed_from_elsewhere(cache):
        return "KV is kept on the host, too"
    return None


class SglangShadow:
    """Reports what happens in the scheduler beside an adapter to a `Shadow`.  O(changes + running) per turn.

    Attributes:
        account: None before the first turn, in which the scheduler's limits are seen.
        clock: seconds; never goes back.
    """

    def __init__(self, adapter: SglangAdapter, settings: Settings) -> None:
        self.account: Shadow | None = None
        self.clock: Callable[[], float] = time.monotonic
        self._cache = adapter.policy.tree_cache
        self._settings = settings
        self._statements = adapter.statements
        self._page = int(self._cache.page_size)
        self._followed = Followed()
        self._went_on = False

    def _begin(self, scheduler: Any) -> Shadow:
        limits = Limits(
            arena_tokens=int(self._cache.token_to_kv_pool_allocator.size) // self._page * self._page,
            unit_tokens=self._page,
            max_running=int(scheduler.max_running_requests),
            step_tokens=int(scheduler.chunked_prefill_size or 2**31),
            prefill_tokens=int(scheduler.max_prefill_tokens),
        )
        return Shadow(partial(LiveRadix, limits, self._settings.config, token_s=NOMINAL_TOKEN_S))

    def looked_at(self, queue: list[Any]) -> None:
        """Note new requests before SGLang orders its queue, since its own policy may move them."""
        if self.account is not None:
            self._arrive(self.account, queue, self.clock())

    def turned(self, scheduler: Any, batch: Any, running: Any) -> None:
        """Note that SGLang prefills `batch`, or goes on decoding `running` (None: that of the scheduler)."""
        self.account = account = self.account or self._begin(scheduler)
        now, queue = self.clock(), scheduler.waiting_queue
        requests = [] if batch is None else batch.reqs
        self._arrive(account, queue, now)
        self._arrive(account, requests, now)
        for request in requests:
            account.admitted(request.rid, int(request.cached_tokens))
        for request in self._followed.gone(queue if self._followed.due() else None):
            prompt, (tokens, limit) = len(request.origin_input_ids), prompt_of(request)
            answer = self._names(tokens[prompt // self._page * self._page :]) if limit >= prompt - 1 else b""
            account.ended(request.rid, len(request.output_ids), answer)
        account.step(now)
        chunks: list[tuple[int, int]] = []
        decoded: list[int] = []
        if batch is not None:
            chunks = list(zip(map(int, batch.prefix_lens), map(int, batch.extend_lens), strict=True))
        else:
            decoding = (scheduler.running_batch if running is None else running).reqs
            decoded = [len(each.origin_input_ids) + len(each.output_ids) for each in decoding]
        account.took_step(now, self._went_on, chunks, decoded)
        self._went_on = bool(chunks or decoded)

    def _arrive(self, account: Shadow, queue: list[Any], now: float) -> None:
        for request in self._followed.new(queue):
            if request.output_ids:  # retracted before it was followed
                continue
            tokens, limit = prompt_of(request)
            prompt = len(tokens)
            key = self._names(tokens if limit >= prompt - 1 else tokens[:limit])
            allowed = int(request.sampling_params.max_new_tokens)
            stated = stated_by(request, self._settings.tenants, self._statements)
            space = request_namespace(request)
            account.arrived(request.rid, key, prompt, allowed, now, space, stated)

    def _names(self, tokens: Any) -> bytes:
        return folded(tokens) if self._page == 1 else page_names(tokens, self._page)
