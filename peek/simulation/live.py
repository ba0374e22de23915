"""Simulated engines that follow a real one: told of each request as it arrives, run up to the present.

`LiveBlocks` and `LiveRadix` are the simulated engines with three things changed.  Requests come one by one
and are forgotten when they end, so memory grows with those present.  Symbols are the caller's: equal
prefixes have equal ones, from 0 on; what is generated gets others, below 0.  And an answer is a guess, its
length and its symbols, until it is known (`correct`), be that before or after it has ended here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from peek.config import PeekConfig
from peek.planner import Planner
from peek.simulation.caches import BlockCache
from peek.simulation.cost import StepTimes
from peek.simulation.engines import BlockEngine, Job, RadixEngine, SimEngine
from peek.simulation.workload import SimRequest, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATIENCE: Final = 3
"""Turns in a row without anything to compute until the head of the queue is taken never to fit."""

_MIX: Final = 0x1E3779B97F4A7C15
"""An odd number whose multiples spread over 64 bits."""


@dataclass(frozen=True)
class Limits:
    """What the real engine has.

    Attributes:
        arena_tokens: KV cache, in tokens; whole units.
        unit_tokens: tokens of a block or page, the unit of all keys.
        max_running: seats.
        step_tokens: tokens of one step (vLLM), or of one chunk of prefill (SGLang).
        prefill_tokens: of one batch of prefills (SGLang).
    """

    arena_tokens: int
    unit_tokens: int
    max_running: int
    step_tokens: int
    prefill_tokens: int = 0

    def workload(self) -> Workload:
        """As an engine takes them; without requests."""
        return Workload(
            name="live", load="", seed=0, requests=(), warmup=0, max_running=self.max_running,
            arena_tokens=self.arena_tokens, unit_tokens=self.unit_tokens,
        )  # fmt: skip


class Live(SimEngine):
    """Mixed into an engine kind."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entered: list[Job] = []
        """Jobs admitted for the first time; the reader empties it."""
        self.length_of: Callable[[SimRequest], int] = attrgetter("output_tokens")
        """Tokens that the answer of a request is taken to have; asked when it arrives."""
        self._known: dict[str, tuple[int, bytes]] = {}
        """Answers of requests that have not ended, see `correct`."""
        self._unknown: dict[str, Job] = {}
        """Jobs that have ended with an answer that is still a guess."""
        self._empty_turns = 0

    def offer(self, request: SimRequest) -> None:
        """`request` arrives at its `arrival_s`; its `output_tokens` are the most that its answer may have."""
        self.schedule_arrival(request, request.arrival_s)

    def correct(self, request_id: str, output_tokens: int, answer: bytes = b"") -> None:
        """The answer is known now: its length, and the symbols behind those of the prompt."""
        ended = self._unknown.pop(request_id, None)
        if ended is not None:
            self.learn(ended, answer)
            return
        self._known[request_id] = (max(1, output_tokens), answer)
        job = self.jobs.get(request_id)
        if job is not None:
            self._tell(job)

    def _tell(self, job: Job) -> None:
        job.output_tokens, answer = self._known[job.request_id]
        self.learn(job, answer)

    @abstractmethod
    def learn(self, job: Job, answer: bytes) -> None:
        """A job that runs, waits or has ended turns out to have this answer."""

    def arrived(self, job: Job) -> Job:
        """A job as it is made: with its answer, or a guess for it."""
        if job.request_id in self._known:
            self._tell(job)
        else:
            job.output_tokens = max(1, self.length_of(job.request))
        return job

    def give_up(self, request_id: str) -> None:
        """A request was withdrawn while it waited; where it runs here, it ends with its next token."""
        job = self.jobs.get(request_id)
        if job is not None and job in self.waiting:
            self.withdraw(job)
            self._known.pop(request_id, None)
            del self.jobs[request_id]
        else:
            self.correct(request_id, 1)

    def advance(self, until_s: float, most_steps: int) -> None:
        """Run until the clock has come to `until_s`, for `most_steps` at most."""
        for _ in range(most_steps):
            if self.now >= until_s:
                return
            self.admit_arrivals()
            if self.turn():
                self._empty_turns = 0
            else:
                self._pass_time(until_s)

    def _pass_time(self, until_s: float) -> None:
        """Nothing to compute: on to the next arrival, or past a request that will never fit."""
        self._empty_turns += 1
        stuck = self.stuck()
        if stuck and self._empty_turns < PATIENCE:
            return
        self._empty_turns = 0
        if stuck and stuck[0] in self.waiting:
            self.give_up(stuck[0].request_id)
            return
        coming = self._arrivals[0][0] if self._arrivals else until_s
        self.now = max(self.now, min(coming, until_s))

    def leave(self, count: int) -> None:
        self.entered += [job for job in self.waiting[:count] if not job.preemptions]
        super().leave(count)

    def finish(self, job: Job) -> None:
        super().finish(job)
        del self.jobs[job.request_id]
        if self._known.pop(job.request_id, None) is None:
            self._unknown[job.request_id] = job


class LiveBlocks(Live, BlockEngine):
    """A vLLM-like engine that follows a real one; `config` is the policy of its planner."""

    def __init__(self, limits: Limits, config: PeekConfig, cost: StepTimes) -> None:
        planner = Planner(config, plan_lasts_s=inf)
        super().__init__(limits.workload(), planner, cost, max_batched_tokens=limits.step_tokens)
        self.block_tokens = limits.unit_tokens
        self.cache = BlockCache(limits.arena_tokens // self.block_tokens, self.block_tokens)
        self._generated = 0

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return self.arrived(Job(request, arrival_s, _numbers(request.key)))

    def fresh_symbol(self) -> int:
        """One below 0, in turns from -1 down."""
        self._generated = self._generated - 1 if self._generated > 1 - 2**31 else -1
        return self._generated

    def plan(self) -> None:
        """As in the real adapter, a queue that shares nothing and hits nothing is not walked."""
        assert self.planner is not None
        if self.planner.has_sharing:
            self.cache.lone_requests = -1
        else:
            hits = any(job.symbols and self.cache.holds(job.symbols[0]) for job in self.waiting)
            self.cache.lone_requests = -1 if hits else len(self.waiting)
        super().plan()

    def learn(self, job: Job, answer: bytes) -> None:
        names = _numbers(answer)
        start = len(job.request.key) >> 2
        for symbol, name in zip(job.symbols[start:], names, strict=False):
            self.cache.rename(symbol, name)
        job.symbols[start : start + len(names)] = names


class LiveRadix(Live, RadixEngine):
    """An SGLang-like engine that follows a real one.

    Args:
        token_s: nominal seconds of a prompt token: the planner's clock counts admitted work, as it does in
            the real engine's adapter.
    """

    def __init__(self, limits: Limits, config: PeekConfig, cost: StepTimes, token_s: float) -> None:
        planner = Planner(config, in_flight_gate=config.sees_prefills, plan_lasts_s=inf)
        self._token_s = token_s
        super().__init__(limits.workload(), planner, cost, chunk_tokens=limits.step_tokens)
        self.max_prefill_tokens = limits.prefill_tokens

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return self.arrived(Job(request, self.planner_now()))

    def learn(self, job: Job, answer: bytes) -> None:
        job.answer = answer
        self.cache.rename(job.leaf, answer)

    def planner_now(self) -> float:
        assert self.planner is not None
        return self.planner.work_done * self._token_s


def _numbers(key: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(key, dtype="<i4").tolist()
    return numbers


def folded(values: Iterable[int] | np.ndarray) -> bytes:
    """64-bit values as packed symbols from 0 on: small ones as they are, others folded to 31 bits.

    Two values of two thousand million are then taken for one.  O(values).
    """
    wide = np.asarray(values, dtype=np.int64)
    return ((wide ^ (wide >> 31)) & 0x7FFFFFFF).astype("<i4").tobytes()


def page_names(values: Iterable[int] | np.ndarray, page: int) -> bytes:
    """Packed symbols from 0 on for the whole pages of a prompt: equal pages have equal ones.  O(values)."""
    wide = np.asarray(values, dtype=np.int64)
    pages = wide[: len(wide) // page * page].reshape(-1, page)
    factors = np.full(page, _MIX, dtype=np.int64).cumprod()  # multiples of one would only add up
    mixed = (pages * factors).sum(axis=1) * _MIX
    return folded(mixed ^ (mixed >> 29))
