"""An engine after SGLang's scheduler: prefill batches before decode batches, a radix cache, retraction.

Source: `sglang/srt/managers/scheduler.py` and `schedule_policy.py` (`PrefillAdder`), 0.5.9.  Whenever
the waiting queue can fill a prefill batch, that batch runs next and decoding stands still; the batch
closes at the chunk size, the input budget, the seats, or when the tokens that running requests may
still generate (times an optimism ratio that falls while decoding goes well) leave no room.  A prompt
longer than what is left of the chunk is continued by the next batch, as far as the same room goes.  A
prefix enters the tree when its prefill, or chunk, ends: siblings in the same batch do not hit.  When
decoding runs out of memory, requests with the fewest generated tokens are retracted and queue again.

SGLang does not reserve the rest of a prompt for those it admits beside it, which it does under shortest
prefill first.  Where that rest finds no memory, SGLang ends with "Prefill out of memory"; here the prompt
waits while the others decode, and is the first to be retracted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from peek.planner import Planner
from peek.simulation.cost import StepTimes, chunk_pairs
from peek.simulation.engine import Job, SimEngine, StepWork
from peek.simulation.radix_cache import RadixCache
from peek.simulation.radix_node import RadixNode
from peek.simulation.workload import SimRequest, Workload

if TYPE_CHECKING:
    from peek.protocols import CacheView

CHUNK_TOKENS: Final = 8192
"""SGLang's default `chunked_prefill_size` on an 80 GB card."""
MAX_PREFILL_TOKENS: Final = 16384
CLIP_NEW_TOKENS: Final = 4096
"""An output longer than this is planned for as this long."""

INIT_RATIO: Final = 0.7
MIN_RATIO: Final = INIT_RATIO * 0.14
RATIO_DECAY: Final = (INIT_RATIO - MIN_RATIO) / 600
"""`new_token_ratio`: the part of the allowed output that running requests are expected to use."""
RETRACT_STEPS: Final = 20
"""Retraction frees memory for this many decode steps."""


class RadixJob(Job):
    """A job, its locked tree node, and the tokens it holds outside the tree."""

    def __init__(self, request: SimRequest, arrival_s: float) -> None:
        super().__init__(request, arrival_s, [])
        self.key = request.key
        self.node: RadixNode | None = None
        self.private: int = 0
        self.prefilled = False


class RadixEngine(SimEngine):
    """SGLang-like; see the module's description."""

    def __init__(
        self,
        workload: Workload,
        planner: Planner | None,
        cost: StepTimes,
        progress: Callable[[int], None] | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        touch_limit: int = 0,
    ) -> None:
        """As `SimEngine`.

        Args:
            chunk_tokens: prefill tokens of one batch.
            touch_limit: SGLang's own cache-aware policies match every waiting request in each cycle,
                which refreshes the recency of what they would reuse; with at most this many waiting.
        """
        super().__init__(workload, planner, cost, progress)
        self.touch_limit = touch_limit
        self.unit: int = workload.unit_tokens
        self.cache = RadixCache(workload.unit_tokens)
        self.chunk_tokens: int = chunk_tokens
        self.max_prefill_tokens: int = MAX_PREFILL_TOKENS
        self.private_tokens: int = 0
        self._capacity: int = workload.arena_tokens
        self._ratio: float = INIT_RATIO
        self._full = False
        self._chunked: RadixJob | None = None
        self._next_symbol: int = -1

    def cache_view(self) -> CacheView:
        return self.cache

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return RadixJob(request, arrival_s)

    def planner_key(self, job: Job) -> object:
        assert isinstance(job, RadixJob)
        # A prompt shorter than a page has no symbol; it stands alone under a name of its own.
        return job.key or self.fresh_symbols(1)

    @property
    def available(self) -> int:
        """Tokens that are free or could be freed."""
        return self._capacity - self.private_tokens - self.cache.locked_tokens

    def plan(self) -> None:
        super().plan()
        if len(self.waiting) <= self.touch_limit:
            for job in self.waiting:
                assert isinstance(job, RadixJob)
                self.cache.match(job.key, job.request.namespace, self._match_limit(job))

    def step(self) -> StepWork:
        work = self._prefill_batch()
        if not work.jobs and self.running:
            work = self._decode_batch()
        if not self.running and self._chunked is None:
            self._ratio = INIT_RATIO
            self._full = False
        return work

    # -- prefill -----------------------------------------------------------------------------------

    def _prefill_batch(self) -> StepWork:
        work = StepWork()
        if self._chunked is None and (self._full or not self.waiting):
            return work
        chunk = self.chunk_tokens
        input_budget = self.max_prefill_tokens
        continued = self._chunked
        held = 0
        if continued is not None:
            tokens = self._within_room(continued, self.next_chunk(continued, chunk))
            if tokens > self.available:
                return work
            self._take(continued, tokens)
            self._extend(continued, tokens, work)
            chunk -= tokens
            input_budget -= tokens
            if continued.computed == continued.total_tokens:
                self._chunked = None
                held = min(continued.allowed_tokens - continued.generated, CLIP_NEW_TOKENS)
        room = self.available - self._expected_output() - held
        if self.waiting and chunk > 0 and not self._full:
            self.plan()
            self._admit(work, room, chunk, input_budget)
        return work

    def next_chunk(self, job: RadixJob, budget: int) -> int:
        """Tokens that the next batch computes of a prompt that is too long for one."""
        return min(job.total_tokens - job.computed, budget)

    def _within_room(self, continued: RadixJob, tokens: int) -> int:
        """So many tokens, or fewer if those that decode will need the memory; all if none is left."""
        room = int(self.available - self._expected_output(continued))
        return min(tokens, room) if room > 0 else tokens

    def _expected_output(self, apart_from: RadixJob | None = None) -> float:
        """Tokens the running requests are expected to generate yet."""
        total = 0.0
        for job in self.running:
            if job is not apart_from:
                total += min(job.allowed_tokens - job.generated, CLIP_NEW_TOKENS) * self._ratio
        return total

    def _admit(self, work: StepWork, room: float, chunk: int, input_budget: int) -> None:
        admitted = 0
        for waiting in self.waiting:
            assert isinstance(waiting, RadixJob)
            if len(self.running) >= self.workload.max_running:
                self._full = True
                break
            node = self.cache.match(waiting.key, waiting.request.namespace, self._match_limit(waiting))
            cached = int(node.depth) * self.unit
            tokens = waiting.total_tokens - cached
            output = min(waiting.allowed_tokens - waiting.generated, CLIP_NEW_TOKENS)
            before = self.cache.locked_tokens
            self.cache.lock(node)
            room -= int(self.cache.locked_tokens - before)
            if tokens + output >= room:
                self._full = True
                self.cache.unlock(node)
                break
            if (tokens >= input_budget and work.jobs) or (tokens > chunk and self._chunked is not None):
                self.cache.unlock(node)
                break
            waiting.node = node
            waiting.computed = cached
            waiting.note_admission(self.now, cached)
            self.running.append(waiting)
            admitted += 1
            if tokens > chunk:
                tokens = chunk
                self._chunked = waiting
                output = 0
            self._take(waiting, tokens)
            self._extend(waiting, tokens, work)
            room -= tokens + output
            chunk -= tokens
            input_budget -= tokens
            if chunk <= 0 or input_budget <= 0:
                break
        self.leave(admitted)

    def _match_limit(self, job: RadixJob) -> int:
        """Symbols of the prompt that may come from the cache: the last token is always computed."""
        return min(len(job.key) >> 2, (job.total_tokens - 1) // self.unit)

    def uncached_tokens(self, job: RadixJob) -> int:
        """Tokens a waiting job would have to compute now."""
        node = self.cache.match(job.key, job.request.namespace, self._match_limit(job))
        return job.total_tokens - int(node.depth) * self.unit

    def _extend(self, job: RadixJob, tokens: int, work: StepWork) -> None:
        work.add(job, tokens, chunk_pairs(job.computed, tokens))
        job.computed += tokens

    # -- decode ------------------------------------------------------------------------------------

    def _decode_batch(self) -> StepWork:
        work = StepWork()
        parked = self._chunked
        if parked is not None and self.available < len(self.running) - 1:
            self._chunked = None
            self._send_back(parked)
        decoding = [job for job in self.running if job is not self._chunked]
        if self.available < len(decoding):
            self._retract()
            decoding = self.running
            if self.available < len(decoding):
                raise self.too_small(decoding)
        else:
            self._ratio = max(MIN_RATIO, self._ratio - RATIO_DECAY)
        for job in decoding:
            assert isinstance(job, RadixJob)
            self._take(job, 1)
            work.add(job, 1, 0.0)
            job.computed += 1
        return work

    def _retract(self) -> None:
        """Send back requests with the fewest generated tokens until some steps fit again."""
        by_progress = sorted(self.running, key=_progress)
        while len(by_progress) > 1 and self.available < RETRACT_STEPS * len(by_progress):
            job = by_progress.pop()
            self._send_back(job)
        generated = sum(job.generated for job in by_progress)
        allowed = sum(min(job.allowed_tokens, CLIP_NEW_TOKENS) for job in by_progress)
        self._ratio = min(1.0, (generated + RETRACT_STEPS * len(by_progress)) / (allowed + 1))

    def _send_back(self, job: Job) -> None:
        """`job` leaves the batch and queues again; what the tree has of it stays, as long as it may."""
        assert isinstance(job, RadixJob)
        self.running.remove(job)
        self._let_go(job)
        job.computed = 0
        job.prefilled = False
        job.preemptions += 1
        self.enqueue(job)

    # -- memory ------------------------------------------------------------------------------------

    def _take(self, job: RadixJob, tokens: int) -> None:
        """Tokens outside the tree for `job`; evicts from the tree what it must."""
        self.private_tokens += tokens
        job.private += tokens
        short = self.private_tokens + self.cache.cached_tokens - self._capacity
        if short > 0:
            self.cache.evict(short, self.eviction_score())

    def complete(self, work: StepWork) -> None:
        for job in work.jobs:
            assert isinstance(job, RadixJob)
            if not job.prefilled:
                self._publish(job)

    def _publish(self, job: RadixJob) -> None:
        """What is computed of the prompt enters the tree; tokens it already had are given back."""
        symbols = min(job.computed // self.unit, len(job.key) >> 2)
        node = self.cache.insert(job.key[: symbols << 2], job.request.namespace)
        self.cache.lock(node)
        if job.node is not None:
            self.cache.unlock(job.node)
        job.node = node
        self._hold_private(job, job.computed - symbols * self.unit)
        job.prefilled = job.computed == job.total_tokens
        if job.prefilled and self.planner is not None:
            self.planner.prefilled(job.request_id)

    def _hold_private(self, job: RadixJob, tokens: int) -> None:
        self.private_tokens += tokens - job.private
        job.private = tokens

    def release(self, job: Job) -> None:
        assert isinstance(job, RadixJob)
        # The last token was generated but never computed; the rest of the answer stays in the tree.
        symbols = (job.computed - (len(job.key) >> 2) * self.unit) // self.unit
        if symbols > 0:
            self.keep_answer(job, symbols)
        self._let_go(job)
        self._full = False

    def keep_answer(self, job: RadixJob, symbols: int) -> None:
        """The job's answer, so many symbols behind its key, enters the tree."""
        self.cache.insert(job.key + self.fresh_symbols(symbols), job.request.namespace)

    def _let_go(self, job: RadixJob) -> None:
        if job.node is not None:
            self.cache.unlock(job.node)
            job.node = None
        self._hold_private(job, 0)

    def fresh_symbols(self, count: int) -> bytes:
        """So many symbols that no prompt has: prompts are non-negative."""
        first = self._next_symbol
        self._next_symbol = first - count if first - count > -(2**31) else -1
        return np.arange(first, first - count, -1, dtype=np.int64).astype(np.int32).tobytes()


def _progress(job: Job) -> tuple[int, int]:
    """Retraction order, last first out: most generated first, then the shorter prompt."""
    return (-job.generated, job.prompt_tokens)
