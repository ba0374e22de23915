"""SGLang's real radix cache, policy, `PrefillAdder` and batches in the simulated engine's clock.

`RealSglang` takes clock, arrivals and records from `SimEngine`; every decision is SGLang's, played by the
stepper of tests/sglang (`Scheduler.get_next_batch_to_run` and the result processors, overlap off), which
must be on Python's path.  What the stepper leaves fixed and a long run needs is added here: the decay of
`new_token_ratio`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy, CacheAwarePolicy
from sglang_lab import make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

from bench.evaluation.policies import EngineMissing, base_of, planner_for
from bench.evaluation.streams import context_tokens
from peek.simulation import radix_engine as twin
from peek.simulation.cost import CostModel, chunk_pairs
from peek.simulation.engine import Job, SimEngine, StepWork
from peek.simulation.workload import SimRequest, Workload

EMPTY_TURNS = 3
KNOWN = {str(policy.value) for kind in (CacheAwarePolicy, CacheAgnosticPolicy) for policy in kind}
STOCK = {
    "fcfs+lru": "fcfs",
    "lpm+lru": "lpm",
    "lpm-nolimit+lru": "lpm",
    "dfs-weight+lru": "dfs-weight",
    "hrrn-limit+lru": "hrrn",
    "hrrn+lru": "hrrn",
    "spf+lru": "shortest-prefill-first",
}
"""SGLang's own policies, by its names."""
UNLIMITED = ("lpm-nolimit+lru", "hrrn+lru")
"""Without its limit of 128 waiting, beyond which it keeps arrival order."""


class VirtualStepper(Stepper):
    """The stepper, told the time, that writes down what each batch computes."""

    def __init__(self, engine: RealEngine, **limits: Any) -> None:
        super().__init__(engine.world, ratio=twin.INIT_RATIO, **limits)
        self.engine = engine
        self.work = StepWork()

    @property
    def now(self) -> float:
        return self.engine.now

    def _queue(self, request: Any, entry: float) -> None:
        super()._queue(request, entry)
        job = self.engine.jobs.get(request.rid)
        if job in self.engine.running:
            self.engine.running.remove(job)
            job.preemptions += 1

    def _decode(self) -> bool:
        before = self.ratio
        decodes = super()._decode()
        if decodes and self.ratio == before:
            self.ratio = max(twin.MIN_RATIO, self.ratio - twin.RATIO_DECAY)
        return decodes

    def _launch(self, batch: Any) -> None:
        if batch.forward_mode.is_extend():
            for request, start, tokens in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
                self.engine.extends(self.work, request.rid, int(start), int(tokens))
        else:
            for request in batch.reqs:
                job = self.engine.jobs[request.rid]
                self.work.add(job, 1, 0.0)
                job.computed += 1
        super()._launch(batch)


class RealEngine(SimEngine):
    """Clock, arrivals and records of the simulated engine around SGLang's own scheduling parts."""

    def __init__(self, workload: Workload, label: str, cost: CostModel) -> None:
        super().__init__(workload, None, cost)
        name, seats = STOCK.get(label, "fcfs"), workload.max_running
        if name not in KNOWN:
            raise EngineMissing(f"this SGLang has no policy {name}")
        context = context_tokens(workload)
        self.world = make_world(workload.arena_tokens, policy=name, max_running=seats, context=context)
        own = self.world.policy
        if label in UNLIMITED:  # SGLang has no switch for it
            own._determine_active_policy = lambda _queue: own.policy
        if label not in STOCK:  # `peek` as its plug-in puts it there; a variant brings its planner
            beside = attach(self.world, base_of(label))
            if base_of(label) != label:
                beside.adapter.planner = planner_for(label, blocks=False)
        self.decision = own, "calc_priority"
        budget = twin.MAX_PREFILL_TOKENS
        self.stepper = VirtualStepper(
            self, chunk=twin.CHUNK_TOKENS, max_running=seats, max_prefill_tokens=budget
        )

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        tokens = np.frombuffer(request.key, dtype="<i4").tolist()
        entry = max(arrival_s, 1e-9)  # not 0.0, which a request that never entered the queue has
        real = make_request(request.request_id, tokens, request.output_tokens, arrival=entry)
        self.stepper.add(real)
        return Job(request, arrival_s, [])

    def extends(self, work: StepWork, rid: str, start: int, tokens: int) -> None:
        """`rid` computes `tokens` of its prefill behind `start`; the first chunk of one is its admission."""
        job = self.jobs[rid]
        if job not in self.running:
            job.note_admission(self.now, start)
            self.running.append(job)
        job.computed = start
        work.add(job, tokens, chunk_pairs(start, tokens))
        job.computed += tokens

    def step(self) -> StepWork:
        # A turn in which SGLang only sees that its batch has ended computes nothing; the next one admits.
        self.stepper.work = StepWork()
        for _ in range(EMPTY_TURNS):
            self.stepper.step()
            if self.stepper.work.jobs or self.stepper.idle:
                break
        return self.stepper.work

    def complete(self, work: StepWork) -> None:
        """The stepper has processed the results; nothing of them depends on the time."""

    def release(self, job: Job) -> None:
        assert self.stepper.records[job.request_id].finished, "SGLang has not finished it"

    def cache_view(self) -> Any:
        raise NotImplementedError  # the planner beside the real policy has its own

    def planner_key(self, job: Job) -> object:
        raise NotImplementedError
