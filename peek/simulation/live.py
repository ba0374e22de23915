"""Simulated engines that follow a real engine: they get each request on arrival, and run up to the present.

Requests of `LiveBlocks` and `LiveRadix` come one by one and are forgotten when they end.  The caller chooses
their symbols: from 0 on, equal for equal prefixes; generated tokens get symbols below 0.  The length and the
symbols of an answer are guesses until the caller calls `correct`, before or after the answer ends here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any, Final

import numpy as np

from peek.config import PeekConfig
from peek.planner import Planner
from peek.simulation.caches import BlockCache
from peek.simulation.cost import StepTimes
from peek.simulation.engines import BlockEngine, Job, RadixEngine, SimEngine
from peek.simulation.workload import SimRequest, Workload
from peek.trie.keys import unpack

PATIENCE: Final = 3  # steps in a row without work after which the head of the queue counts as too large
_MIX: Final = 0x1E3779B97F4A7C15  # an odd number whose multiples spread over 64 bits


@dataclass(frozen=True)
class Limits:
    arena_tokens: int  # size of the KV cache in tokens, a multiple of `unit_tokens`, those of a block or page
    unit_tokens: int
    max_running: int  # cap on requests that run at once, the seats
    step_tokens: int  # most tokens of a step (vLLM), or of a prefill chunk (SGLang)
    prefill_tokens: int = 0  # most input tokens of a prefill batch (SGLang)

    def workload(self) -> Workload:
        """Return an empty workload with these limits, as a simulated engine takes them."""
        return Workload(
            name="live", load="", seed=0, requests=(), warmup=0, max_running=self.max_running,
            arena_tokens=self.arena_tokens, unit_tokens=self.unit_tokens,
        )  # fmt: skip


class Live(SimEngine):
    """Mix-in that makes an engine kind follow a real engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Jobs admitted for the first time since the reader last emptied the list.
        self.entered: list[Job] = []
        # Guesses the answer length of an arriving request, in tokens.
        self.length_of: Callable[[SimRequest], int] = attrgetter("output_tokens")
        # Length and symbols of the known answers of requests that have not ended, by id; see `correct`.
        self._known: dict[str, tuple[int, bytes]] = {}
        self._unknown: dict[str, Job] = {}  # ended jobs whose answer is still a guess, by id
        self._empty_turns = 0

    def offer(self, request: SimRequest) -> None:
        """Schedule an arrival at `request.arrival_s`; its `output_tokens` are the longest allowed answer."""
        self.schedule_arrival(request, request.arrival_s)

    def correct(self, request_id: str, output_tokens: int, answer: bytes = b"") -> None:
        """Tell the real answer of a request: its length in tokens, and its symbols after the prompt's."""
        ended = self._unknown.pop(request_id, None)
        if ended is not None:
            self.learn(ended, answer)
            return
        self._known[request_id] = (max(1, output_tokens), answer)
        job = self.jobs.get(request_id)
        if job is not None:
            self.arrived(job)

    @abstractmethod
    def learn(self, job: Job, answer: bytes) -> None:
        """Give the symbols of a known answer to a job that waits, runs or has ended."""

    def arrived(self, job: Job) -> Job:
        """Give a job its answer if that is known, else the guessed length; return it."""
        if job.request_id in self._known:
            job.output_tokens, answer = self._known[job.request_id]
            self.learn(job, answer)
        else:
            job.output_tokens = max(1, self.length_of(job.request))
        return job

    def give_up(self, request_id: str) -> None:
        """Withdraw a request that waits or was put back; the answer of any other ends with the next token."""
        job = self.jobs.get(request_id)
        if job is not None and job in self.stuck():
            self.withdraw(job)
            self._known.pop(request_id, None)
            del self.jobs[request_id]
        else:
            self.correct(request_id, 1)

    def advance(self, until_s: float, most_steps: int) -> None:
        """Run until the clock reaches `until_s`, or for `most_steps` steps."""
        for _ in range(most_steps):
            if self.now >= until_s:
                return
            self.admit_arrivals()
            if self.turn():
                self._empty_turns = 0
            else:
                self._pass_time(until_s)

    def _pass_time(self, until_s: float) -> None:
        """After a step without work: move the clock to the next arrival or `until_s`, or drop a request."""
        self._empty_turns += 1
        stuck = self.stuck()
        if stuck and self._empty_turns < PATIENCE:
            return
        self._empty_turns = 0
        if stuck:
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
    """A vLLM-like engine that follows a real engine; `config` sets its planner."""

    def __init__(self, limits: Limits, config: PeekConfig, cost: StepTimes) -> None:
        planner = Planner(config, plan_lasts_s=inf)
        super().__init__(limits.workload(), planner, cost, max_batched_tokens=limits.step_tokens)
        self.block_tokens = limits.unit_tokens
        self.cache = BlockCache(limits.arena_tokens // self.block_tokens, self.block_tokens)
        self._generated = 0

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return self.arrived(Job(request, arrival_s, unpack(request.key)))

    def fresh_symbol(self) -> int:
        """Return the next symbol below 0, from -1 down; after the lowest, -1 comes again."""
        self._generated = self._generated - 1 if self._generated > 1 - 2**31 else -1
        return self._generated

    def plan(self) -> None:
        """Run a cycle; as in vLLM's adapter, a queue that shares nothing and hits nothing is not walked."""
        assert self.planner is not None
        if self.planner.has_sharing:
            self.cache.lone_requests = -1
        else:
            hits = any(job.symbols and self.cache.holds(job.symbols[0]) for job in self.waiting)
            self.cache.lone_requests = -1 if hits else len(self.waiting)
        super().plan()

    def learn(self, job: Job, answer: bytes) -> None:
        names = unpack(answer)
        start = len(job.request.key) >> 2
        for symbol, name in zip(job.symbols[start:], names, strict=False):
            self.cache.rename(symbol, name)
        job.symbols[start : start + len(names)] = names


class LiveRadix(Live, RadixEngine):
    """An SGLang-like engine that follows a real engine.

    Its planner's clock counts admitted work, `token_s` seconds per prompt token, as in SGLang's adapter.
    """

    def __init__(self, limits: Limits, config: PeekConfig, cost: StepTimes, token_s: float) -> None:
        planner = Planner(config, in_flight_gate=config.sees_prefills, plan_lasts_s=inf)
        self._token_s = token_s
        super().__init__(limits.workload(), planner, cost)
        self.chunk_tokens, self.max_prefill_tokens = limits.step_tokens, limits.prefill_tokens

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return self.arrived(Job(request, self.planner_now()))

    def learn(self, job: Job, answer: bytes) -> None:
        job.answer = answer
        self.cache.rename(job.leaf, answer)

    def planner_now(self) -> float:
        assert self.planner is not None
        return self.planner.work_done * self._token_s


def folded(values: Iterable[int] | np.ndarray) -> bytes:
    """Pack 64-bit values as symbols from 0 on: small values as they are, others folded to 31 bits.

    Two folded values are equal with a chance of one in two thousand million.  O(values).
    """
    wide = np.asarray(values, dtype=np.int64)
    return ((wide ^ (wide >> 31)) & 0x7FFFFFFF).astype("<i4").tobytes()


def page_names(values: Iterable[int] | np.ndarray, page: int) -> bytes:
    """Return packed symbols from 0 on for the whole pages of a prompt, equal for equal pages.  O(values)."""
    wide = np.asarray(values, dtype=np.int64)
    pages = wide[: len(wide) // page * page].reshape(-1, page)
    factors = np.full(page, _MIX, dtype=np.int64).cumprod()  # multiples of one number would only add up
    mixed = (pages * factors).sum(axis=1) * _MIX
    return folded(mixed ^ (mixed >> 29))
