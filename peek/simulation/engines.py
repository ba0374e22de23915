"""The simulated engines: continuous batching in virtual time, after vLLM's scheduler and after SGLang's.

`SimEngine` has what both kinds share; `BlockEngine` and `RadixEngine` implement `step`, which admits,
allocates, evicts and preempts.  Only the cost model moves the clock, so a run depends on its arguments alone.

The planner cannot tell these engines from real ones: it gets an adapter's calls, and reads a `CacheView`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np

from peek.errors import WorkloadError
from peek.planner import Plan, Planner
from peek.policy.stock import DfsWeight, FirstCome, Hrrn, LongestPrefix, ShortestPrefill
from peek.protocols import CacheView
from peek.request import PendingRequest
from peek.simulation.caches import BlockCache, RadixCache, RadixNode, SymbolTable
from peek.simulation.cost import StepTimes, chunk_pairs
from peek.simulation.workload import CIRCLE, Progress, SimRequest, Workload, followers, pending
from peek.trie.continuations import Continuations


class Job:
    """One request on its way through an engine of either kind; times are negative before the event."""

    def __init__(self, request: SimRequest, arrival_s: float, symbols: Sequence[int] = ()) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival_s = arrival_s
        self.key = request.key
        # with a `BlockEngine`
        self.symbols = list(symbols)  # names of the request's blocks
        self.blocks: list[int] = []  # the blocks it holds
        self.named: int = 0  # number of leading blocks that are full and named
        # with a `RadixEngine`
        self.node: RadixNode | None = None  # the locked tree node
        self.private: int = 0  # tokens held outside the tree
        self.prefilled = False  # whether the whole prompt is computed
        self.answer = request.answer  # the answer's symbols as far as known
        self.leaf: int = 0  # the `uid` of its tree node once it has ended
        self.prompt_tokens: int = request.num_tokens
        self.output_tokens: int = request.output_tokens  # length of the answer, unknown to the engine
        self.allowed_tokens: int = request.output_tokens  # its upper bound, which the engine knows
        self.computed: int = 0  # tokens of prompt and answer that are in the KV cache
        self.generated: int = 0
        self.cached_at_admission: int = -1
        self.last_uncached: int = -1
        self.prefill_tokens: int = 0
        self.preemptions: int = 0
        self.admitted_s: float = -1.0
        self.first_token_s: float = -1.0
        self.finished_s: float = -1.0

    @property
    def total_tokens(self) -> int:
        """Number of tokens known so far: those of the prompt and the generated ones."""
        return self.prompt_tokens + self.generated

    def note_admission(self, now: float, cached: int) -> None:
        """Record an admission with a hit of `cached` tokens, once `computed` is set; the first one counts."""
        self.last_uncached = self.total_tokens - self.computed
        if self.cached_at_admission < 0:
            self.cached_at_admission = cached
            self.admitted_s = now


@dataclass
class StepWork:
    """What one step computes: the terms of the cost model, and the jobs that take part in it."""

    computed_tokens: int = 0
    attention_pairs: float = 0.0
    kv_tokens: int = 0
    jobs: list[Job] = field(default_factory=list)

    def add(self, job: Job, tokens: int, pairs: float) -> None:
        """Add `tokens` tokens of `job` to the step; prefill has attention `pairs` > 0, a decode token 0."""
        self.jobs.append(job)
        self.computed_tokens += tokens
        if pairs > 0.0:
            self.attention_pairs += pairs
            job.prefill_tokens += tokens
        else:
            self.kv_tokens += job.computed


class SimEngine(ABC):
    """Base of both engine kinds, which set `cache`: runs a workload under a planner, None for stock order."""

    def __init__(
        self, workload: Workload, planner: Planner | None, cost: StepTimes, progress: Progress = None
    ) -> None:
        self.workload = workload
        self.planner = planner
        self.cost = cost
        self.progress = progress
        self.now: float = 0.0
        self.steps: int = 0
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.jobs: dict[str, Job] = {}
        self._placed: Plan | None = None  # the plan whose order the queue has now
        self._just_arrived: list[Job] = []
        self._arrivals: list[tuple[float, int, SimRequest]] = []
        self._followers: dict[str, list[SimRequest]] = {}
        self._held_back: deque[SimRequest] = deque()
        self._continuations = Continuations(workload.unit_tokens)
        self._finished: int = 0
        self._rank: int = 0

    # -- what an engine kind implements ------------------------------------------------------------

    cache: CacheView

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        """Make the job of an arriving request."""
        return Job(request, arrival_s)

    @abstractmethod
    def planner_key(self, job: Job) -> object:
        """Return the job's prompt in the symbols of the cache."""

    @abstractmethod
    def step(self) -> StepWork:
        """Schedule one step: decide what each job computes, and take the memory for it."""

    @abstractmethod
    def complete(self, work: StepWork) -> None:
        """End a step: the computed tokens of its jobs are in the cache now."""

    @abstractmethod
    def release(self, job: Job) -> None:
        """Give back the memory of a job."""

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> list[Job]:
        """Run until all requests are finished; return all jobs in order of arrival."""
        self._followers = followers(self.workload)
        for request in self.workload.requests:
            if request.after is None:
                self.schedule_arrival(request, request.arrival_s)
        while self._finished < len(self.workload.requests):
            self.admit_arrivals()
            if not self.turn():  # nothing to compute: move the clock to the next arrival
                if not self._arrivals:
                    raise self.too_small(self.stuck()) if self.stuck() else WorkloadError(CIRCLE)
                self.now = max(self.now, self._arrivals[0][0])
        return list(self.jobs.values())

    def turn(self) -> bool:
        """Run one step and move the clock by its time; return False if there was nothing to compute."""
        work = self.begin_step()
        if work.jobs:
            self.end_step(work)
        return bool(work.jobs)

    def begin_step(self) -> StepWork:
        """Schedule a step and move the clock to its end; `end_step` follows if there is work for any job."""
        work = self.step()
        self.steps += 1
        if work.jobs:
            self.now += self.cost.step_s(work.computed_tokens, work.attention_pairs, work.kv_tokens)
        return work

    def end_step(self, work: StepWork) -> None:
        """End a step now: each of its jobs gets one more token if all its known tokens are computed."""
        self.complete(work)
        for job in work.jobs:
            if job.computed < job.total_tokens:
                continue
            if job.generated == 0:
                job.first_token_s = self.now
            job.generated += 1
            if job.generated >= job.output_tokens:
                self.finish(job)

    def schedule_arrival(self, request: SimRequest, at_s: float) -> None:
        """Schedule the arrival of a request at `at_s`.  O(log scheduled arrivals)."""
        self._rank += 1
        heappush(self._arrivals, (at_s, self._rank, request))

    def admit_arrivals(self) -> None:
        """Queue the requests whose arrival time has come, as far as the client's cap allows."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            at_s, _, request = heappop(self._arrivals)
            limit = self.workload.client_concurrency
            if limit is not None and len(self.jobs) - self._finished >= limit:
                self._held_back.append(request)
            else:
                self.accept(request, at_s)

    def accept(self, request: SimRequest, at_s: float) -> Job:
        """Queue `request`, which arrived at `at_s`; return its job."""
        job = self.jobs[request.request_id] = self.make_job(request, at_s)
        self.enqueue(job)
        return job

    def stuck(self) -> list[Job]:
        """Return the jobs that wait for memory or seats, the next to be admitted first."""
        return self.waiting

    def too_small(self, jobs: list[Job]) -> MemoryError:
        """Make the error for an arena that cannot hold even the first of `jobs`."""
        name = jobs[0].request_id
        return MemoryError(f"the arena of {self.workload.arena_tokens} tokens cannot hold request {name}")

    def finish(self, job: Job) -> None:
        """End a job that has its last token, and schedule the requests that come after it."""
        job.finished_s = self.now
        if self.planner is not None:
            self.planner.answered(job.generated, job.request_id)
            if job.request.tenant:
                self.planner.generated(job.request.tenant, job.generated)
        self.running.remove(job)
        self.release(job)
        self._finished += 1
        for request in self._followers.pop(job.request_id, []):
            self.schedule_arrival(request, max(request.arrival_s, self.now + request.think_s))
        if self._held_back:
            self.accept(self._held_back.popleft(), self.now)
        if self.progress is not None:
            self.progress(self._finished)

    # -- the planner -------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Queue `job`, for the first time or again; the planner is told in the next cycle."""
        self.waiting.append(job)
        self._placed = None
        self._just_arrived.append(job)

    def withdraw(self, job: Job) -> None:
        """Take a withdrawn job out of the queue; the planner is told at once.  O(waiting)."""
        self.waiting.remove(job)
        self._placed = None
        if job in self._just_arrived:
            self._just_arrived.remove(job)
        elif self.planner is not None:
            self.planner.remove(job.request_id, admitted=False)

    def leave(self, count: int) -> None:
        """Take the first `count` jobs, now admitted, off the queue; the planner is told at once."""
        if self.planner is not None:
            for job in self.waiting[:count]:
                self.planner.remove(job.request_id, True, job.last_uncached)
        del self.waiting[:count]

    def plan(self) -> None:
        """Run a cycle if there is a planner: tell it of arrivals, and take its order."""
        planner = self.planner
        if planner is None:
            return
        for job in self._just_arrived:
            planner.add(self._pending(job))
        self._just_arrived.clear()
        if self.waiting:
            plan = planner.plan(self.view(), self.planner_now())
            if plan is not self._placed:
                self._placed = plan
                self.waiting = [self.jobs[name] for name in plan]

    def _pending(self, job: Job) -> PendingRequest:
        """Translate a job for the planner, which gets it as an adapter would give it."""
        request = pending(job.request, self.planner_key(job), job.arrival_s, self.workload.unit_tokens)
        if not request.session:
            key, namespace = job.request.key, request.namespace
            request.session = self._continuations.session_of(job.request_id, key, namespace)
        return request

    def view(self) -> CacheView:
        """Return the cache view that the planner reads."""
        return self.cache

    def planner_now(self) -> float:
        """Return the time on the planner's clock in seconds; `Job.arrival_s` is on the same clock."""
        return self.now

    def eviction_score(self) -> Callable[[int], float] | None:
        """Return the planner's demand by cached block or node; None leaves eviction to recency."""
        planner = self.planner
        return planner.eviction_score if planner is not None and planner.evicts else None


# -- after vLLM ---------------------------------------------------------------------------------------


BLOCK_TOKENS: Final = 16
MAX_BATCHED_TOKENS: Final = 8192  # vLLM's default budget of a step on an H100 server, in tokens


def block_tokens_of(workload: Workload) -> int:
    """Tokens of a block, which holds whole units: 16 if a unit is a token, one unit if it is longer."""
    return -(-BLOCK_TOKENS // workload.unit_tokens) * workload.unit_tokens


class BlockEngine(SimEngine):
    """A vLLM-like engine: one batch of prefill chunks and decodes a step, blocks, preemption.

    Source: `vllm/v1/core/sched/scheduler.py` and `block_pool.py`.  Running requests come first, each with one
    decode token or its next prefill chunk.  When blocks run out, the youngest is preempted: it loses its
    blocks and returns to the head of the queue.  In a step without preemption, waiting requests are admitted
    in queue order until budget, seats or blocks run out.  Full blocks are visible as soon as they are
    scheduled, so siblings that are admitted in the same step already hit.
    """

    def __init__(
        self,
        workload: Workload,
        planner: Planner | None,
        cost: StepTimes,
        progress: Progress = None,
        max_batched_tokens: int = MAX_BATCHED_TOKENS,
        symbols: SymbolTable | None = None,
    ) -> None:
        """Make an empty engine; engines share `symbols` if equal blocks must have equal names in all."""
        super().__init__(workload, planner, cost, progress)
        self.block_tokens: int = block_tokens_of(workload)
        n_blocks = workload.arena_tokens // self.block_tokens
        self.cache: BlockCache = BlockCache(n_blocks, self.block_tokens)
        self.max_batched_tokens: int = max_batched_tokens
        self.preempted: list[Job] = []
        self._symbols = SymbolTable() if symbols is None else symbols
        self._block_bytes: int = 4 * (self.block_tokens // workload.unit_tokens)

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        text = request.key + request.answer
        return Job(request, arrival_s, self._symbols.intern(text, self._block_bytes, request.namespace))

    def fresh_symbol(self) -> int:
        """Return a name that no prompt contains, for a block of generated tokens."""
        return self._symbols.fresh()

    def planner_key(self, job: Job) -> object:
        # The last token is always computed, so a block that ends with the prompt cannot be hit.  A prompt
        # without any other block gets one symbol of its own, so that it shares nothing.
        useful = job.symbols[: (job.prompt_tokens - 1) // self.block_tokens]
        return np.array(useful or [self.fresh_symbol()], dtype=np.int32)

    @staticmethod
    def fits(workload: Workload, request: SimRequest) -> bool:
        """Return whether an empty arena holds a request's prompt and answer."""
        block = block_tokens_of(workload)
        return -(-(request.num_tokens + request.output_tokens - 1) // block) <= workload.arena_tokens // block

    def stuck(self) -> list[Job]:
        return [*self.preempted, *self.waiting]

    def withdraw(self, job: Job) -> None:
        if job in self.preempted:
            self.preempted.remove(job)
        else:
            super().withdraw(job)

    def step(self) -> StepWork:
        work = StepWork()
        budget = self.max_batched_tokens
        preempting = False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            tokens = min(job.total_tokens - job.computed, budget)
            while not self._allocate(job, tokens):
                preempting = True
                victim = self.running.pop()
                self.release(victim)
                victim.computed = 0
                victim.preemptions += 1
                self.preempted.insert(0, victim)
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
            job = self.preempted[0] if again else self.waiting[admitted]
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

    def _try_admit(self, job: Job, budget: int) -> int:
        """Take the blocks of a job's first chunk; return the chunk's tokens, 0 if the prompt does not fit."""
        limit = (job.total_tokens - 1) // self.block_tokens
        cached = self.cache.match(job.symbols, limit)
        hit = len(cached)
        start = (hit + self.beyond_hit(job, hit, limit)) * self.block_tokens
        tokens: int = min(job.total_tokens - start, budget)
        whole = self._blocks_for(job.total_tokens) - hit
        if whole > self.cache.free_blocks - self.cache.idle(cached):
            return 0  # vLLM's scheduler_reserve_full_isl: all known tokens must fit, not just this chunk
        fresh = self._blocks_for(start + tokens) - hit
        self.cache.use(cached)
        job.blocks = cached + self._take(fresh)
        job.named = hit
        job.computed = start
        job.note_admission(self.now, hit * self.block_tokens)
        return tokens

    def beyond_hit(self, job: Job, hit: int, limit: int) -> int:
        """Return how many blocks after a hit need no computing either, up to block `limit`: none here."""
        return 0

    def _allocate(self, job: Job, tokens: int) -> bool:
        fresh = self._blocks_for(job.computed + tokens) - len(job.blocks)
        if fresh > self.cache.free_blocks:
            return False
        if fresh > 0:
            job.blocks.extend(self._take(fresh))
        return True

    def _take(self, count: int) -> list[int]:
        # The paper's hook reads at most 4 N entries of the free queue, N the number of waiting requests.
        return self.cache.take(count, self.eviction_score(), 4 * max(1, len(self.waiting)))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _schedule(self, job: Job, tokens: int, work: StepWork) -> None:
        """Compute `tokens` tokens of the job in this step; blocks that become full are visible at once."""
        decode = tokens == 1 and job.generated > 0
        work.add(job, tokens, 0.0 if decode else chunk_pairs(job.computed, tokens))
        job.computed += tokens
        full = min(job.computed // self.block_tokens, len(job.blocks))
        while job.named < full:
            if job.named == len(job.symbols):
                job.symbols.append(self.fresh_symbol())
            self.cache.name(job.blocks[job.named], job.symbols[job.named])
            job.named += 1

    def complete(self, work: StepWork) -> None:
        """Do nothing: blocks got their names when they were scheduled."""

    def release(self, job: Job) -> None:
        self.cache.release(job.blocks)
        job.blocks = []
        job.named = 0


# -- after SGLang -------------------------------------------------------------------------------------


CHUNK_TOKENS: Final = 8192  # SGLang's default `chunked_prefill_size` on an 80 GB card, in tokens
MAX_PREFILL_TOKENS: Final = 16384
CLIP_NEW_TOKENS: Final = 4096  # upper bound of the output that admission expects of one request, in tokens

# `new_token_ratio`, the part of the allowed output that running requests are expected to generate.
INIT_RATIO: Final = 0.7
MIN_RATIO: Final = INIT_RATIO * 0.14
RATIO_DECAY: Final = (INIT_RATIO - MIN_RATIO) / 600  # per decode step
RETRACT_STEPS: Final = 20  # number of decode steps that retraction frees memory for

MATCHING: Final = (LongestPrefix, Hrrn, DfsWeight, ShortestPrefill)
"""SGLang's policies that match the queue in each cycle, up to their `queue_limit` of requests."""

REFRESHED: Final = 128
"""Number of first waiting requests whose cached prefixes SGLang refreshes if it orders without a match: first
come, first served, or beyond the limit (`_determine_active_policy`, `_touch_waiting_prefixes`, 0.5.23)."""
REFRESH_EVERY: Final = 32  # cycles from one such refresh to the next


class RadixEngine(SimEngine):
    """An SGLang-like engine: prefill batches before decode batches, a radix cache, retraction.

    Source: `sglang/srt/managers/scheduler.py` and `schedule_policy.py` (`PrefillAdder`), 0.5.9.  Whenever a
    waiting request can be admitted, a prefill batch runs next and decoding stands still.  The batch is full
    at the chunk size, the input budget or the seats, or when memory has no room beside the expected output of
    running requests: what they may still generate, times a ratio that falls while decoding finds memory.  A
    prefix enters the tree when its prefill, or chunk, ends, so siblings in one batch do not hit.  When
    decoding runs out of memory, requests with the fewest generated tokens are retracted and queue again.

    When a prompt is only begun, SGLang does not reserve memory for its rest, except under shortest prefill
    first.  If the rest finds no memory, SGLang ends with "Prefill out of memory".  Here the prompt waits
    while the other requests decode, and is the first to be retracted.
    """

    def __init__(
        self, workload: Workload, planner: Planner | None, cost: StepTimes, progress: Progress = None
    ) -> None:
        super().__init__(workload, planner, cost, progress)
        # A policy of SGLang's own also refreshes the recency of cached prefixes: of the whole queue in each
        # cycle (`MATCHING`), else of its head now and then (`REFRESHED`).
        policy = FirstCome() if planner is None else planner.policy
        matches = isinstance(policy, MATCHING)
        limit = getattr(policy, "queue_limit", None)
        self._touch_limit: int = (sys.maxsize if limit is None else limit) if matches else 0
        self._refreshes = matches or isinstance(policy, FirstCome)
        self._shortest_first = isinstance(policy, ShortestPrefill)
        self._refresh_cycles = 0
        self.unit: int = workload.unit_tokens
        self.cache: RadixCache = RadixCache(workload.unit_tokens)
        self.chunk_tokens: int = CHUNK_TOKENS
        self.max_prefill_tokens: int = MAX_PREFILL_TOKENS
        self.private_tokens: int = 0
        self._ratio: float = INIT_RATIO
        self._full = False
        self._chunked: Job | None = None
        self._next_symbol: int = -1

    @staticmethod
    def fits(workload: Workload, request: SimRequest) -> bool:
        return request.num_tokens + request.output_tokens < workload.arena_tokens

    def planner_key(self, job: Job) -> object:
        # A prompt shorter than a page has no symbol.  It gets one of its own, so that it shares nothing.
        return job.key or self.fresh_symbols(1)

    @property
    def available(self) -> int:
        """Number of tokens that are free or could be evicted."""
        return self.workload.arena_tokens - self.private_tokens - self.cache.locked_tokens

    def plan(self) -> None:
        super().plan()
        refreshed: list[Job] = []
        if len(self.waiting) <= self._touch_limit:
            refreshed = self.waiting
        elif self._refreshes:
            if self._refresh_cycles % REFRESH_EVERY == 0:
                refreshed = self.waiting[REFRESHED - 1 :: -1]  # the head last, so that it stays longest
            self._refresh_cycles += 1
        for job in refreshed:
            self._match(job)

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
            tokens = self.next_chunk(continued, chunk)
            spare = int(self.available - self._expected_output(continued))
            if spare > 0:  # leave room for the expected output; if there is none, try the whole chunk
                tokens = min(tokens, spare)
            if tokens > self.available:
                return work
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

    def next_chunk(self, job: Job, budget: int) -> int:
        """Return how many tokens the next batch computes of a prompt that one batch cannot finish.

        Under shortest prefill first, the chunk leaves room for requests at the head of the queue with fewer
        uncached tokens than the rest of `job`, as long as one token of the budget stays.  Source:
        `SchedulePolicy.shortest_prefill_chunk_limit` of `schedule_policy.py`, 0.5.23.
        """
        remaining = job.total_tokens - job.computed
        if not self._shortest_first:
            return min(remaining, budget)
        self.plan()
        reserved = 0
        for waiting in self.waiting:
            work = waiting.total_tokens - int(self._match(waiting).depth) * self.unit
            if work >= remaining or reserved + work >= budget:
                break
            reserved += work
        return min(remaining, budget - reserved)

    def _expected_output(self, apart_from: Job | None = None) -> float:
        """Return how many tokens running requests are still expected to generate, without `apart_from`."""
        total = 0.0
        for job in self.running:
            if job is not apart_from:
                total += min(job.allowed_tokens - job.generated, CLIP_NEW_TOKENS) * self._ratio
        return total

    def _admit(self, work: StepWork, room: float, chunk: int, input_budget: int) -> None:
        admitted = 0
        for waiting in self.waiting:
            if len(self.running) >= self.workload.max_running:
                self._full = True
                break
            node = self._match(waiting)
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
            self._extend(waiting, tokens, work)
            room -= tokens + output
            chunk -= tokens
            input_budget -= tokens
            if chunk <= 0 or input_budget <= 0:
                break
        self.leave(admitted)

    def _match(self, job: Job) -> RadixNode:
        """Return where the cached part of a prompt ends, without its last token; refreshes its recency."""
        limit = min(len(job.key) >> 2, (job.total_tokens - 1) // self.unit)
        return self.cache.match(job.key, job.request.namespace, limit)

    def _extend(self, job: Job, tokens: int, work: StepWork) -> None:
        """Take memory for the next `tokens` tokens of a prompt, and compute them in this step."""
        self._take(job, tokens)
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
            self._take(job, 1)
            work.add(job, 1, 0.0)
            job.computed += 1
        return work

    def _retract(self) -> None:
        """Retract requests with the fewest generated tokens until `RETRACT_STEPS` decode steps fit."""
        # The last of the list goes first: fewest generated tokens, then the longest prompt.
        by_progress = sorted(self.running, key=lambda job: (-job.generated, job.prompt_tokens))
        while len(by_progress) > 1 and self.available < RETRACT_STEPS * len(by_progress):
            self._send_back(by_progress.pop())
        generated = sum(job.generated for job in by_progress)
        allowed = sum(min(job.allowed_tokens, CLIP_NEW_TOKENS) for job in by_progress)
        self._ratio = min(1.0, (generated + RETRACT_STEPS * len(by_progress)) / (allowed + 1))

    def _send_back(self, job: Job) -> None:
        """Take `job` off the running batch and queue it again; its tokens in the tree can be evicted now."""
        self.running.remove(job)
        self._let_go(job)
        job.computed = 0
        job.prefilled = False
        job.preemptions += 1
        self.enqueue(job)

    # -- memory ------------------------------------------------------------------------------------

    def _hold_private(self, job: Job, tokens: int) -> None:
        self.private_tokens += tokens - job.private
        job.private = tokens

    def _take(self, job: Job, tokens: int) -> None:
        """Give `job` `tokens` tokens outside the tree; evict from the tree as many as are missing."""
        self._hold_private(job, job.private + tokens)
        short = self.private_tokens + self.cache.cached_tokens - self.workload.arena_tokens
        if short > 0:
            self.cache.evict(short, self.eviction_score())

    def complete(self, work: StepWork) -> None:
        for job in work.jobs:
            if not job.prefilled:
                self._publish(job)

    def _publish(self, job: Job) -> None:
        """Put the computed part of a prompt into the tree; give back the tokens that the tree already had."""
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

    def release(self, job: Job) -> None:
        # The last token is generated but never computed.  The rest of the answer stays in the tree.
        symbols = (job.computed - (len(job.key) >> 2) * self.unit) // self.unit
        if symbols > 0:  # under the symbols of a later turn's prompt, as far as they are known
            known = job.answer[: symbols << 2]
            fresh = self.fresh_symbols(symbols - (len(known) >> 2))
            job.leaf = self.cache.insert(job.key + known + fresh, job.request.namespace).uid
        self._let_go(job)
        self._full = False

    def _let_go(self, job: Job) -> None:
        if job.node is not None:
            self.cache.unlock(job.node)
            job.node = None
        self._hold_private(job, 0)

    def fresh_symbols(self, count: int) -> bytes:
        """Return `count` packed symbols that no prompt contains: negative ones."""
        first = self._next_symbol
        self._next_symbol = first - count if first - count > -(2**31) else -1
        return np.arange(first, first - count, -1, dtype=np.int64).astype(np.int32).tobytes()
