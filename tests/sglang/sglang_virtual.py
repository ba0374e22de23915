"""SGLang's real radix cache, policy, `PrefillAdder` and batches in virtual time.

`VirtualSglang` takes clock, arrivals and records from the simulated engine; every decision is SGLang's,
played by the stepper (`Scheduler.get_next_batch_to_run` and the result processors, overlap off).  What the
stepper leaves fixed and a long run needs is added here: the decay of `new_token_ratio`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang_lab import World, make_request
from sglang_stepper import Stepper

from peek.simulation.cost import StepTimes, chunk_pairs
from peek.simulation.engines import (
    CHUNK_TOKENS,
    INIT_RATIO,
    MAX_PREFILL_TOKENS,
    MIN_RATIO,
    RATIO_DECAY,
    Job,
    SimEngine,
    StepWork,
)
from peek.simulation.workload import SimRequest, Workload

EMPTY_TURNS = 3


class VirtualStepper(Stepper):
    """The stepper, told the time, that writes down what each batch computes."""

    def __init__(self, engine: VirtualSglang, **limits: Any) -> None:
        super().__init__(engine.world, ratio=INIT_RATIO, **limits)
        self.engine = engine
        self.work = StepWork()

    @property
    def now(self) -> float:
        return self.engine.now

    def _queue(self, request: Any, entry: float) -> None:
        super()._queue(request, entry)
        job = self.engine.jobs.get(request.rid)
        if job is not None and job in self.engine.running:
            self.engine.running.remove(job)
            job.preemptions += 1

    def _decode(self) -> bool:
        before = self.ratio
        decodes = super()._decode()
        if decodes and self.ratio == before:
            self.ratio = max(MIN_RATIO, self.ratio - RATIO_DECAY)
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


class VirtualSglang(SimEngine):
    """Clock, arrivals and records of the simulated engine around SGLang's own scheduling parts.

    `world`: its cache and policy, with whatever was put beside it.
    """

    def __init__(self, workload: Workload, cost: StepTimes, world: World) -> None:
        super().__init__(workload, None, cost)
        self.world = world
        self.stepper = VirtualStepper(
            self,
            chunk=CHUNK_TOKENS,
            max_running=workload.max_running,
            max_prefill_tokens=MAX_PREFILL_TOKENS,
        )
        beside = getattr(world.policy, "peek", None)
        if beside is not None and beside.foretold.shadow is not None:
            beside.foretold.shadow.clock = lambda: self.now

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        tokens = np.frombuffer(request.key, dtype="<i4").tolist()
        # Not 0.0, which a request that never entered the queue has.
        entry = max(arrival_s, 1e-9)
        real = make_request(request.request_id, tokens, request.output_tokens, arrival=entry)
        real.routing_key = request.tenant or None
        named = {"peek_session": request.session, "peek_ttft_target_s": request.ttft_target_s}
        real.sampling_params.custom_params = {name: value for name, value in named.items() if value} or None
        self.stepper.add(real)
        return Job(request, arrival_s, [])

    def extends(self, work: StepWork, rid: str, start: int, tokens: int) -> None:
        """`rid` computes `tokens` of its prefill behind `start`; the first chunk of one is its admission."""
        job = self.jobs[rid]
        job.computed = start
        if job not in self.running:
            job.note_admission(self.now, start)
            self.running.append(job)
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

    def planner_key(self, job: Job) -> object:
        raise NotImplementedError  # the planner beside the real policy has its own
