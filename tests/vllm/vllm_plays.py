"""Random plays for the real scheduler: who arrives when, who is aborted, how tight the cache is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from vllm_lab import (
    BLOCK,
    AsyncScheduler,
    RequestStatus,
    Scheduler,
    expected_tokens,
    fake_output,
    free_blocks,
    hash_lookahead,
    make_request,
    make_scheduler,
    queued,
)

MAX_STEPS = 4000
STEP_S = 0.05


@dataclass(frozen=True)
class Job:
    """One request of a play."""

    arrival: int
    prefix: int
    prefix_tokens: int
    tail: int
    max_tokens: int
    salt: str | None
    lora: str | None
    skip: bool
    abort: int | None

    @property
    def prompt(self) -> int:
        return self.prefix_tokens + self.tail

    def request(self, name: str, number: int, ahead: int = 0) -> Any:
        shared = [10 + self.prefix] * self.prefix_tokens
        own = [100 + number % 800] * self.tail
        return make_request(
            name,
            shared + own,
            self.max_tokens,
            lora=self.lora,
            skip_reading=True if self.skip else None,
            cache_salt=self.salt,
            arrival_time=self.arrival * STEP_S + number * 1e-6,
            ahead=ahead,
        )


@dataclass(frozen=True)
class Play:
    jobs: list[Job]
    slack: int
    max_num_seqs: int
    budget: int
    max_loras: int | None
    resets: list[int] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        """The largest request fits, with a margin for vLLM's null block and its watermark."""
        most = max(job.prompt + job.max_tokens for job in self.jobs)
        return most // BLOCK + 4 + self.slack

    @property
    def has_loras(self) -> bool:
        return any(job.lora is not None for job in self.jobs)


INTERLEAVED = Play(
    [Job(0, i % 2, 96, 8, 4, None, None, False, None) for i in range(8)],
    slack=0, max_num_seqs=1, budget=256, max_loras=None,
)  # fmt: skip
"""Two prefixes that take turns, one seat: any order by prefix changes it."""


@st.composite
def jobs(draw: st.DrawFn, aborts: bool = True, plain: bool = False) -> Job:
    prefix_tokens = draw(st.sampled_from([0, 16, 32, 48, 64, 96, 128]))
    return Job(
        arrival=draw(st.integers(0, 25)),
        prefix=draw(st.integers(0, 3)),
        prefix_tokens=prefix_tokens,
        tail=draw(st.integers(0 if prefix_tokens else 1, 40)),
        max_tokens=draw(st.integers(1, 30)),
        salt=None if plain else draw(st.sampled_from([None, None, "s", "t"])),
        lora=None if plain else draw(st.sampled_from([None, None, "en", "de"])),
        skip=not plain and draw(st.integers(0, 7)) == 0,
        abort=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20))) if aborts else None,
    )


@st.composite
def plays(draw: st.DrawFn, aborts: bool = True, plain: bool = False) -> Play:
    return Play(
        jobs=draw(st.lists(jobs(aborts, plain), min_size=2, max_size=24)),
        slack=draw(st.sampled_from([0, 1, 3, 8, 20])),
        max_num_seqs=draw(st.sampled_from([1, 2, 4, 8])),
        budget=draw(st.sampled_from([24, 64, 256])),
        max_loras=None if plain else draw(st.sampled_from([None, None, 1])),
        resets=[] if plain else draw(st.lists(st.integers(0, 40), max_size=2)),
    )


@dataclass
class Outcome:
    """What a play led to."""

    scheduler: Any
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    admissions: list[tuple[str, int, bool]] = field(default_factory=list)
    """(name, uncached tokens, was the oldest of those who simply wait), in order."""
    outputs: list[Any] = field(default_factory=list)
    steps: int = 0
    preemptions: int = 0


def perform(
    play: Play,
    policy: dict[str, Any] | None,
    *,
    asynchronous: bool = False,
    stock: bool = False,
    each_step: Callable[[Any, Any], None] | None = None,
    room: int = 1,
    **engine: Any,
) -> Outcome:
    """Play it to the end.  `policy` None with `stock` False is `peek` that nobody asked for.

    `room` times the blocks that the play has, for `engine` arguments of `make_scheduler` that need more.

    `each_step(scheduler, scheduled)` is called before each `schedule()`, with None, and after it.
    """
    from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

    if stock:
        cls = AsyncScheduler if asynchronous else Scheduler
    else:
        cls = PeekAsyncScheduler if asynchronous else PeekScheduler
    scheduler = make_scheduler(
        cls,
        room * play.num_blocks,
        max_num_seqs=play.max_num_seqs,
        max_num_batched_tokens=play.budget,
        asynchronous=asynchronous,
        options=policy,
        **engine,
    )
    if play.max_loras is not None:
        scheduler.lora_config = SimpleNamespace(max_loras=play.max_loras)
    outcome = Outcome(scheduler)
    _run(play, outcome, 2 if asynchronous else 1, each_step)
    return outcome


def _run(play: Play, outcome: Outcome, depth: int, each_step: Callable[[Any, Any], None] | None) -> None:
    scheduler = outcome.scheduler
    arrivals = deque(sorted(enumerate(play.jobs), key=lambda item: (item[1].arrival, item[0])))
    aborts = {f"r{i}": job.arrival + job.abort for i, job in enumerate(play.jobs) if job.abort is not None}
    in_flight: deque[tuple[Any, Any]] = deque()
    at = 0
    if hasattr(scheduler, "peek") and scheduler.peek.adapter is not None:
        scheduler.peek.adapter.clock = lambda: at * STEP_S
    while arrivals or scheduler.has_unfinished_requests():
        assert at < MAX_STEPS, f"unfinished: {sorted(scheduler.requests)}"
        while arrivals and arrivals[0][1].arrival <= at:
            number, job = arrivals.popleft()
            scheduler.add_request(job.request(f"r{number}", number, hash_lookahead(scheduler)))
        for name in [name for name, due in aborts.items() if due <= at]:
            del aborts[name]
            if name in scheduler.requests and name not in outcome.finished:
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                outcome.aborted.add(name)
        if at in play.resets:
            scheduler.reset_prefix_cache()
        _step(outcome, in_flight, depth, each_step)
        at += 1
    while in_flight:
        _deliver(outcome, in_flight)
    outcome.steps = at


def _step(
    outcome: Outcome,
    in_flight: deque[tuple[Any, Any]],
    depth: int,
    each_step: Callable[[Any, Any], None] | None,
) -> None:
    scheduler = outcome.scheduler
    if each_step is not None:
        each_step(scheduler, None)
    by_age = [request.request_id for request in sorted(filter(_plain, scheduler.waiting), key=_arrival)]
    scheduled = scheduler.schedule()
    outcome.outputs.append(scheduled)
    for new in scheduled.scheduled_new_reqs:
        if new.req_id in by_age:
            cost = scheduler.requests[new.req_id].num_prompt_tokens - new.num_computed_tokens
            outcome.admissions.append((new.req_id, cost, by_age[0] == new.req_id))
            by_age.remove(new.req_id)
    outcome.preemptions += len(scheduled.preempted_req_ids or ())
    _nobody_is_lost(scheduler)
    if each_step is not None:
        each_step(scheduler, scheduled)
    in_flight.append((scheduled, fake_output(scheduler, scheduled)))
    if len(in_flight) >= depth:
        _deliver(outcome, in_flight)


def _deliver(outcome: Outcome, in_flight: deque[tuple[Any, Any]]) -> None:
    for batch in outcome.scheduler.update_from_output(*in_flight.popleft()).values():
        for output in batch.outputs:
            outcome.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                outcome.finished.add(output.request_id)


def _plain(request: Any) -> bool:
    return bool(request.status == RequestStatus.WAITING and request.num_preemptions == 0)


def _arrival(request: Any) -> float:
    return float(request.arrival_time)


def _nobody_is_lost(scheduler: Any) -> None:
    held = [request.request_id for request in [*scheduler.running, *queued(scheduler)]]
    assert len(held) == len(set(held)), "somebody is in two lists"
    assert set(held) == set(scheduler.requests), "somebody is in no list"


def check_outcome(play: Play, outcome: Outcome, room: int = 1) -> None:
    """Everybody got what was foretold, and nothing is left behind."""
    for number, job in enumerate(play.jobs):
        name = f"r{number}"
        foretold = expected_tokens(name, job.prompt, job.max_tokens)
        received = outcome.tokens.get(name, [])
        if name in outcome.aborted:
            assert received == foretold[: len(received)], name
        else:
            assert name in outcome.finished, name
            assert received == foretold, name
    assert free_blocks(outcome.scheduler) == room * play.num_blocks - 1, "blocks leaked"
    assert not outcome.scheduler.requests


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
