"""Plays for vLLM's real scheduler, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from support import plays as common
from support.plays import Job, Play, interleaved, play_out
from support.stepping import STEP_S, Admission, Record, Steps
from vllm_lab import (
    BLOCK,
    AsyncScheduler,
    RequestStatus,
    Scheduler,
    fake_output,
    free_blocks,
    hash_lookahead,
    make_request,
    make_scheduler,
    queued,
)

INTERLEAVED = interleaved(BLOCK)
plays = partial(common.plays, (BLOCK,), budgets=(24, 64, 256))


class Stepper(Steps):
    """Steps of `engine`, by the clock of which `peek` goes; with `overlap` results come one step late.

    `worker` answers a step as `fake_output` does.
    """

    def __init__(self, engine: Any, overlap: bool = False, worker: Callable[..., Any] = fake_output) -> None:
        super().__init__()
        self.engine = engine
        self._worker = worker
        self._depth = 2 if overlap else 1
        self._flight: deque[tuple[Any, Any]] = deque()
        self.beside = getattr(engine, "peek", None)
        if self.beside is not None and self.beside.adapter is not None:
            self.beside.adapter.clock = lambda: self.now

    @property
    def idle(self) -> bool:
        return not self.engine.has_unfinished_requests() and not self._flight

    def request_of(self, job: Job, name: str, number: int, play: Play) -> Any:
        return make_request(
            name,
            job.tokens(number),
            job.max_tokens,
            lora=job.space,
            skip_reading=True if job.skip else None,
            cache_salt=job.salt,
            arrival_time=job.arrival_s(number) - STEP_S,
            ahead=hash_lookahead(self.engine),
            priority=job.priority if play.priority else 0,
        )

    def add(self, request: Any) -> None:
        self.engine.add_request(request)
        self.records[request.request_id] = Record(self.at)

    def abort(self, rid: str) -> None:
        if rid in self.engine.requests and not self.records[rid].finished:
            self.engine.finish_requests(rid, RequestStatus.FINISHED_ABORTED)
            self.records[rid].aborted = True

    def reset(self) -> None:
        self.engine.reset_prefix_cache()

    def step(self) -> Any:
        engine = self.engine
        if not engine.has_unfinished_requests() and self._flight:
            self._deliver()
            return None
        self.watch(self, None)
        waiting = filter(_plain, engine.requests.values())
        by_age = [one.request_id for one in sorted(waiting, key=lambda one: float(one.arrival_time))]
        scheduled = engine.schedule()
        for new in scheduled.scheduled_new_reqs:
            cost = engine.requests[new.req_id].num_prompt_tokens - new.num_computed_tokens
            oldest = by_age[:1] == [new.req_id]
            if new.req_id in by_age:
                by_age.remove(new.req_id)
            self.note(Admission(new.req_id, self.at, int(new.num_computed_tokens), cost, oldest))
        for name in scheduled.preempted_req_ids or ():
            self.records[name].preemptions += 1
        self.watch(self, scheduled)
        self._flight.append((scheduled, self._worker(engine, scheduled)))
        if len(self._flight) >= self._depth:
            self._deliver()
        self.at += 1
        return scheduled

    def _deliver(self) -> None:
        for batch in self.engine.update_from_output(*self._flight.popleft()).values():
            for output in batch.outputs:
                record = self.records.get(output.request_id)
                if record is not None and not record.aborted:
                    record.tokens.extend(output.new_token_ids)
                    record.finished = output.finish_reason is not None

    def essence(self, decided: Any) -> dict[str, Any]:
        return essence(decided) if decided is not None else {}

    def check(self) -> None:
        held = [request.request_id for request in [*self.engine.running, *queued(self.engine)]]
        assert sorted(held) == sorted(self.engine.requests), "somebody is in two lists, or in none"

    def check_nothing_is_left(self) -> None:
        engine = self.engine
        assert free_blocks(engine) == engine.kv_cache_manager.block_pool.num_gpu_blocks - 1, "blocks leaked"
        assert not engine.requests
        adapter = None if self.beside is None else self.beside.adapter
        if adapter is not None:
            adapter.sync()
            assert self.beside.shield.fallbacks == 0
            assert (len(adapter.planner), len(adapter._known), len(adapter._keys)) == (0, 0, 0)
            assert len(adapter.mirror) == 0, "symbols outlive their requests"
            assert (len(adapter._blocked._held), len(adapter.quarantine)) == (0, 0)


def perform(
    play: Play,
    policy: dict[str, Any] | None,
    *,
    overlap: bool = False,
    stock: bool = False,
    each_step: Callable[[Any, Any], None] | None = None,
    room: int = 1,
    **engine: Any,
) -> Stepper:
    """Play it to the end.  `policy` None with `stock` False is `peek` that nobody asked for.

    `room` times the blocks that the play has, for `engine` arguments of `make_scheduler` that need more.
    """
    from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

    kinds = (Scheduler, AsyncScheduler) if stock else (PeekScheduler, PeekAsyncScheduler)
    made = make_scheduler(
        kinds[overlap],
        room * play.units,
        **{
            "max_num_seqs": play.seats,
            "max_num_batched_tokens": play.budget,
            "asynchronous": overlap,
            "options": policy,
            "priority": play.priority,
            **engine,
        },
    )
    if play.max_loras is not None:
        made.lora_config = SimpleNamespace(max_loras=play.max_loras)
    stepper = Stepper(made, overlap)
    if each_step is not None:
        stepper.watch = each_step
    play_out(play, stepper)
    return stepper


def _plain(request: Any) -> bool:
    return bool(request.status == RequestStatus.WAITING and request.num_preemptions == 0)


def essence(scheduled: Any) -> dict[str, Any]:
    """All that a `SchedulerOutput` tells a worker, in a form that compares."""
    cached = scheduled.scheduled_cached_reqs
    return {
        "new": [(new.req_id, new.num_computed_tokens, new.block_ids) for new in scheduled.scheduled_new_reqs],
        "cached": (list(cached.req_ids), list(cached.new_block_ids), list(cached.num_computed_tokens)),
        "tokens": list(scheduled.num_scheduled_tokens.items()),
        "total": scheduled.total_num_scheduled_tokens,
        "spec": dict(scheduled.scheduled_spec_decode_tokens),
        "finished": sorted(scheduled.finished_req_ids),
        "preempted": sorted(scheduled.preempted_req_ids or ()),
    }
