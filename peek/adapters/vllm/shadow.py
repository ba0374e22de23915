"""The shadow beside a vLLM scheduler: it reports to `peek.adapters.shadow` and changes nothing."""

from __future__ import annotations

from typing import Any

from peek.adapters.mirror import GroupMirror
from peek.adapters.shadow import Shadow
from peek.adapters.vllm.adapter import VllmAdapter
from peek.adapters.vllm.queue import RankedQueue
from peek.adapters.vllm.seams import parameters_of
from peek.config import PeekConfig
from peek.simulation.live import Limits, LiveBlocks, folded


def why_no_shadow(adapter: VllmAdapter) -> str | None:
    """Return why the virtual engine would differ from this one; None if it would not."""
    if isinstance(adapter.scheduler.waiting, RankedQueue):
        return "requests are scheduled by priority"
    if getattr(adapter.scheduler.scheduler_config, "long_prefill_token_threshold", 0) > 0:
        return "long prompts are computed in parts"
    if isinstance(adapter.mirror, GroupMirror):
        return "the model's KV cache has several groups, or a draft model"
    return None


class VllmShadow:
    """Reports what happens in the scheduler of an adapter to a `Shadow`.  O(changes + running) per step."""

    def __init__(self, adapter: VllmAdapter, config: PeekConfig) -> None:
        scheduler, self._unit = adapter.scheduler, adapter.mirror.unit_tokens
        blocks = int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1  # one is the null block
        limits = Limits(
            arena_tokens=blocks * self._unit,
            unit_tokens=self._unit,
            max_running=int(scheduler.max_num_running_reqs),
            step_tokens=int(scheduler.max_num_scheduled_tokens),
        )
        self.account = Shadow(lambda steps: LiveBlocks(limits, config, steps))
        self._scheduler, self._adapter = scheduler, adapter
        self._here: dict[str, Any] = {}
        """Requests that have not ended in vLLM, by id."""
        self._now = 0.0
        self._went_on = False
        for request in scheduler.waiting:
            self._arrive(request)

    def before_schedule(self) -> None:
        """Report arrivals and departures; call it before the adapter's method, which forgets them."""
        waiting = self._scheduler.waiting
        for request in waiting.entered.values():
            self._arrive(request)
        for request_id, request in waiting.gone.items():
            if request.is_finished() and self._here.get(request_id) is request:
                self._end(request_id)  # aborted while it waited
        self._now = self._adapter.clock()
        self._went_on = bool(self._scheduler.running)
        self.account.step(self._now)

    def _arrive(self, request: Any) -> None:
        name = request.request_id
        if self._here.get(name) is request or request.num_computed_tokens or request.num_preemptions:
            return
        prompt, allowed = int(request.num_tokens), int(request.max_tokens)
        key = self._names(request, 0, prompt // self._unit)
        self._here[name] = request
        stated = self._adapter.statements.of(parameters_of(request))
        self.account.arrived(name, key, prompt, allowed, float(request.arrival_time), stated=stated)

    def _names(self, request: Any, start: int, stop: int | None) -> bytes:
        """Return the symbols of some of a request's blocks; none if it does not read the cache."""
        if getattr(request, "skip_reading_prefix_cache", False):
            return b""
        hashes = request.block_hashes[start:stop]
        return folded([int.from_bytes(name[:8], "little", signed=True) for name in hashes])

    def after_schedule(self, output: Any) -> None:
        """Report the step that vLLM has put together, which begins now."""
        for admitted in output.scheduled_new_reqs:
            self.account.admitted(admitted.req_id, int(admitted.num_computed_tokens))
        for request_id in output.finished_req_ids:
            self._end(request_id)
        chunks, decoded = [], []
        for request_id, count in output.num_scheduled_tokens.items():
            computed = int(self._scheduler.requests[request_id].num_computed_tokens)  # with these
            if count == 1:
                decoded.append(computed)
            else:
                chunks.append((computed - count, count))
        self.account.took_step(self._now, self._went_on, chunks, decoded)

    def _end(self, request_id: str) -> None:
        request = self._here.pop(request_id, None)
        if request is not None:
            answer = self._names(request, int(request.num_prompt_tokens) // self._unit, None)
            self.account.ended(request_id, int(request.num_output_tokens), answer)
