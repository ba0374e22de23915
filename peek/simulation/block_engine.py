"""An engine after vLLM's v1 scheduler: one mixed batch a step, blocks, preemption.

Source: `vllm/v1/core/sched/scheduler.py` and `block_pool.py`.  Each step has a token budget.  Running
requests come first (one decode token or the next prefill chunk); when blocks run out the youngest
running request is preempted, loses its blocks and returns to the head of the queue.  If nothing was
preempted, waiting requests are admitted in queue order until budget, seats or blocks run out; the scan
stops at the first that does not fit.  Full blocks are visible to others as soon as they are scheduled,
so siblings admitted in the same step already hit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from peek.planner import Planner
from peek.simulation.block_cache import BlockCache, SymbolTable
from peek.simulation.cost import StepTimes, chunk_pairs
from peek.simulation.engine import Job, SimEngine, StepWork
from peek.simulation.workload import SimRequest, Workload

if TYPE_CHECKING:
    from peek.protocols import CacheView

BLOCK_TOKENS: Final = 16
MAX_BATCHED_TOKENS: Final = 8192
"""vLLM's default token budget of a step on an H100 server."""


class BlockJob(Job):
    """A job and its blocks."""

    def __init__(self, request: SimRequest, arrival_s: float, symbols: list[int]) -> None:
        super().__init__(request, arrival_s, symbols)
        self.blocks: list[int] = []
        self.named: int = 0


class BlockEngine(SimEngine):
    """vLLM-like; see the module's description."""

    def __init__(
        self,
        workload: Workload,
        planner: Planner | None,
        cost: StepTimes,
        progress: Callable[[int], None] | None = None,
        max_batched_tokens: int = MAX_BATCHED_TOKENS,
        symbols: SymbolTable | None = None,
    ) -> None:
        """As `SimEngine`.

        Args:
            max_batched_tokens: token budget of a step.
            symbols: names of blocks, where several engines are to call equal ones the same.
        """
        super().__init__(workload, planner, cost, progress)
        # Whole units: 16 tokens where the unit is one, one page of a trace where that is longer.
        self.block_tokens: int = -(-BLOCK_TOKENS // workload.unit_tokens) * workload.unit_tokens
        self.cache = BlockCache(workload.arena_tokens // self.block_tokens, self.block_tokens)
        self.max_batched_tokens: int = max_batched_tokens
        self.preempted: list[BlockJob] = []
        self._symbols = SymbolTable() if symbols is None else symbols
        self._block_bytes: int = 4 * (self.block_tokens // workload.unit_tokens)

    def cache_view(self) -> CacheView:
        return self.cache

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        symbols = self._symbols.intern(request.key, self._block_bytes, request.namespace)
        return BlockJob(request, arrival_s, symbols)

    def planner_key(self, job: Job) -> object:
        # The last token is always computed: a block that ends the prompt is of no use.  A prompt without
        # a useful block stands alone under a name of its own.
        useful = job.symbols[: (job.prompt_tokens - 1) // self.block_tokens]
        return np.array(useful or [self._symbols.fresh()], dtype=np.int32)

    def stuck(self) -> list[Job]:
        return [*self.preempted, *self.waiting]

    def step(self) -> StepWork:
        work = StepWork()
        budget = self.max_batched_tokens
        preempting = False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            assert isinstance(job, BlockJob)
            tokens = min(job.total_tokens - job.computed, budget)
            while not self._allocate(job, tokens):
                preempting = True
                victim = self.running.pop()
                assert isinstance(victim, BlockJob)
                self._preempt(victim, work)
                if victim is job:
                    break
            else:
                budget -= tokens
                self._schedule(job, tokens, work)
                index += 1
        if not preempting and budget > 0 and len(self.running) < self.workload.max_running:
            self._admit(budget, work)
        return work

    def _admit(self, budget: int, work: StepWork) -> None:
        self.plan()
        admitted = 0
        while budget > 0 and len(self.running) < self.workload.max_running:
            again = bool(self.preempted)
            if not again and admitted == len(self.waiting):
                break
            job: Job = self.preempted[0] if again else self.waiting[admitted]
            assert isinstance(job, BlockJob)
            tokens = self._try_admit(job, budget)
            if tokens == 0:
                break
            if again:
                self.preempted.pop(0)
            else:
                admitted += 1
            self.running.append(job)
            budget -= tokens
            self._schedule(job, tokens, work)
        self.leave(admitted)

    def _try_admit(self, job: BlockJob, budget: int) -> int:
        """Take cached and new blocks for the first chunk; the chunk's tokens, 0 if they do not fit."""
        limit = (job.total_tokens - 1) // self.block_tokens
        cached = self.cache.match(job.symbols, limit)
        start = len(cached) * self.block_tokens
        tokens: int = min(job.total_tokens - start, budget)
        whole = self._blocks_for(job.total_tokens) - len(cached)
        if whole > self.cache.free_blocks - self.cache.idle(cached):
            return 0  # vLLM's scheduler_reserve_full_isl: all that is known must fit, not this chunk only
        fresh = self._blocks_for(start + tokens) - len(cached)
        self.cache.use(cached)
        job.blocks = cached
        job.named = len(cached)
        job.computed = start
        job.blocks.extend(self._take(fresh))
        job.note_admission(self.now, start)
        return tokens

    def _allocate(self, job: BlockJob, tokens: int) -> bool:
        fresh = self._blocks_for(job.computed + tokens) - len(job.blocks)
        if fresh > self.cache.free_blocks:
            return False
        if fresh > 0:
            job.blocks.extend(self._take(fresh))
        return True

    def _take(self, count: int) -> list[int]:
        score = self.eviction_score()
        # The published hook looks at no more than 4 N entries of the free queue.
        limit = 4 * max(1, len(self.waiting))
        return self.cache.take(count, score, limit)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _schedule(self, job: BlockJob, tokens: int, work: StepWork) -> None:
        """The job computes `tokens` in this step; blocks that fill up are visible from here on."""
        decode = tokens == 1 and job.generated > 0
        work.add(job, tokens, 0.0 if decode else chunk_pairs(job.computed, tokens))
        job.computed += tokens
        full = min(job.computed // self.block_tokens, len(job.blocks))
        while job.named < full:
            if job.named == len(job.symbols):
                job.symbols.append(self._symbols.fresh())
            self.cache.name(job.blocks[job.named], job.symbols[job.named])
            job.named += 1

    def _preempt(self, job: BlockJob, work: StepWork) -> None:
        self.release(job)
        job.computed = 0
        job.preemptions += 1
        self.preempted.insert(0, job)

    def complete(self, work: StepWork) -> None:
        return

    def release(self, job: Job) -> None:
        assert isinstance(job, BlockJob)
        self.cache.release(job.blocks)
        job.blocks = []
        job.named = 0
