"""The simulated engine: continuous batching in virtual time.

`SimEngine` owns what both engine kinds share: the clock, arrivals, the client, the waiting queue as
the planner sees it, and the record of every request.  A kind (`BlockEngine` after vLLM's scheduler,
`RadixEngine` after SGLang's) implements one method, `step`: admit, allocate, evict, preempt, and say
what the step computes.  Time passes by the cost model only, so a run depends on its arguments alone.

The planner cannot tell this engine from a real one: it gets the calls that an adapter makes, and the cache
through `CacheView`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from peek.planner import Plan, Planner
from peek.simulation.cost import StepTimes
from peek.simulation.workload import SimRequest, Workload, pending

if TYPE_CHECKING:
    from peek.protocols import CacheView


class Job:
    """One request on its way through the engine.

    Tokens count prompt and output alike: `computed` of `prompt_tokens + generated` are in the KV
    cache.  The answer ends with `output_tokens`; all that the engine may know is `allowed_tokens`, no
    fewer.  Times are virtual seconds, negative until they happened.
    """

    def __init__(self, request: SimRequest, arrival_s: float, symbols: list[int]) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival_s = arrival_s
        self.symbols = symbols
        self.prompt_tokens: int = request.num_tokens
        self.output_tokens: int = request.output_tokens
        self.allowed_tokens: int = request.output_tokens
        self.computed: int = 0
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
        """Tokens known so far: the prompt and what was generated."""
        return self.prompt_tokens + self.generated

    def note_admission(self, now: float, cached: int) -> None:
        """Admitted with `cached` tokens in the cache; only the first admission counts as a hit."""
        self.last_uncached = self.total_tokens - cached
        if self.cached_at_admission < 0:
            self.cached_at_admission = cached
            self.admitted_s = now


class StepWork:
    """What one step computes, for the cost model and for whoever gets a token out of it."""

    def __init__(self) -> None:
        self.computed_tokens: int = 0
        self.attention_pairs: float = 0.0
        self.kv_tokens: int = 0
        self.jobs: list[Job] = []

    def add(self, job: Job, tokens: int, pairs: float) -> None:
        """`job` computes `tokens` more; more than one (or the first) is prefill."""
        self.jobs.append(job)
        self.computed_tokens += tokens
        if pairs > 0.0:
            self.attention_pairs += pairs
            job.prefill_tokens += tokens
        else:
            self.kv_tokens += job.computed


class SimEngine(ABC):
    """Runs one workload under one planner.

    Args:
        workload: requests and engine limits.
        planner: None runs the stock engine, untouched.
        cost: step times.
        progress: called with the number of finished requests now and then.
    """

    def __init__(
        self,
        workload: Workload,
        planner: Planner | None,
        cost: StepTimes,
        progress: Callable[[int], None] | None = None,
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
        self._placed: Plan | None = None
        """The plan that the queue is in the order of."""
        self._just_arrived: list[Job] = []
        self._just_admitted: dict[str, Job] = {}
        self._arrivals: list[tuple[float, int, SimRequest]] = []
        self._followers: dict[str, list[SimRequest]] = {}
        self._held_back: deque[SimRequest] = deque()
        self._outstanding: int = 0
        self._finished: int = 0
        self._rank: int = 0

    # -- to be written by an engine kind -----------------------------------------------------------

    @abstractmethod
    def cache_view(self) -> CacheView:
        """The prefix cache, for the planner."""

    @abstractmethod
    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        """Translate a request on arrival."""

    @abstractmethod
    def planner_key(self, job: Job) -> object:
        """The job's prompt in the cache's symbols."""

    @abstractmethod
    def step(self) -> StepWork:
        """Schedule one step: decide who computes what; memory is taken here."""

    @abstractmethod
    def complete(self, work: StepWork) -> None:
        """The step's end: every job's computed tokens are in the cache now."""

    @abstractmethod
    def release(self, job: Job) -> None:
        """The job is finished: its memory may go."""

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> list[Job]:
        """Run to the end; all jobs in order of arrival."""
        self._submit(self.workload.requests)
        while self._finished < len(self.workload.requests):
            self.admit_arrivals()
            if not self.turn():
                self._sleep()
        return list(self.jobs.values())

    def turn(self) -> bool:
        """One step and the time it takes; False if there was nothing to compute."""
        work = self.step()
        self.steps += 1
        if not work.jobs:
            return False
        self.now += self.cost.step_s(work.computed_tokens, work.attention_pairs, work.kv_tokens)
        self.complete(work)
        self._collect_tokens(work)
        return True

    def _submit(self, requests: Sequence[SimRequest]) -> None:
        for request in requests:
            if request.after is None:
                self.schedule_arrival(request, request.arrival_s)
            else:
                self._followers.setdefault(request.after, []).append(request)

    def schedule_arrival(self, request: SimRequest, at_s: float) -> None:
        """The request will arrive at `at_s`.  O(log arrivals to come)."""
        self._rank += 1
        heappush(self._arrivals, (at_s, self._rank, request))

    def admit_arrivals(self) -> None:
        """Requests whose time has come join the queue, as far as the client's cap allows."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            at_s, _, request = heappop(self._arrivals)
            limit = self.workload.client_concurrency
            if limit is not None and self._outstanding >= limit:
                self._held_back.append(request)
                continue
            self.accept(request, at_s)

    def accept(self, request: SimRequest, at_s: float) -> Job:
        """`request`, which arrived at `at_s`, joins the queue now."""
        job = self.make_job(request, at_s)
        self.jobs[job.request_id] = job
        self.enqueue(job)
        self._outstanding += 1
        return job

    def _sleep(self) -> None:
        """Nothing to compute: on to the next arrival."""
        if not self._arrivals:
            raise self.too_small(self.stuck())
        self.now = max(self.now, self._arrivals[0][0])

    def stuck(self) -> list[Job]:
        """Jobs that want to run and cannot, the first in line first."""
        return self.waiting

    def too_small(self, jobs: list[Job]) -> MemoryError:
        """The error when the arena cannot hold even the first of `jobs`."""
        name = jobs[0].request_id if jobs else "?"
        return MemoryError(f"the arena of {self.workload.arena_tokens} tokens cannot hold request {name}")

    def _collect_tokens(self, work: StepWork) -> None:
        """Each job whose known tokens are all computed yields one token."""
        for job in work.jobs:
            if job.computed < job.total_tokens:
                continue
            if job.generated == 0:
                job.first_token_s = self.now
            job.generated += 1
            if job.generated >= job.output_tokens:
                self.finish(job)

    def finish(self, job: Job) -> None:
        """The job has its last token."""
        job.finished_s = self.now
        if self.planner is not None:
            self.planner.answered(job.generated, job.request_id)
            if job.request.tenant:
                self.planner.generated(job.request.tenant, job.generated)
        self.running.remove(job)
        self.release(job)
        self._finished += 1
        self._outstanding -= 1
        for request in self._followers.pop(job.request_id, []):
            self.schedule_arrival(request, max(request.arrival_s, self.now + request.think_s))
        if self._held_back:
            self.accept(self._held_back.popleft(), self.now)
        if self.progress is not None:
            self.progress(self._finished)

    # -- the planner -------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """`job` waits, for the first time or again; the planner hears of it in the next cycle."""
        self.waiting.append(job)
        self._placed = None
        if self._just_admitted.pop(job.request_id, None) is None:
            self._just_arrived.append(job)

    def withdraw(self, job: Job) -> None:
        """A job that waits is gone; the planner hears of it at once.  O(waiting)."""
        self.waiting.remove(job)
        self._placed = None
        if job in self._just_arrived:
            self._just_arrived.remove(job)
        elif self.planner is not None:
            self.planner.remove(job.request_id, admitted=False)

    def leave(self, count: int) -> None:
        """The first `count` waiting jobs were admitted; the planner hears of it in the next cycle."""
        for job in self.waiting[:count]:
            self._just_admitted[job.request_id] = job
        del self.waiting[:count]

    def plan(self) -> None:
        """One cycle, if there is a planner: tell it who came and went, and take its order."""
        planner = self.planner
        if planner is None:
            return
        for job in self._just_admitted.values():
            planner.remove(job.request_id, True, job.last_uncached)
        for job in self._just_arrived:
            planner.add(pending(job.request, self.planner_key(job), job.arrival_s, self.workload.unit_tokens))
        self._just_admitted.clear()
        self._just_arrived.clear()
        if self.waiting:
            plan = planner.plan(self.cache_view(), self.planner_now())
            if plan is not self._placed:
                self._placed = plan
                self.waiting = [self.jobs[name] for name in plan]

    def planner_now(self) -> float:
        """The time on the planner's clock, which is that of `Job.arrival_s`."""
        return self.now

    def eviction_score(self) -> Callable[[int], float] | None:
        """The planner's view of who is needed, None to leave eviction to recency."""
        if self.planner is None or not self.planner.evicts:
            return None
        return self.planner.eviction_score
