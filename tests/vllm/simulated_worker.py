# ruff: noqa: T201
"""vLLM's real scheduler, blocks and queue in virtual time, with the step times of the simulated engine.

    OMP_NUM_THREADS=1 python tests/vllm/simulated_worker.py [--workload w1c] [--load heavy] [--seed 42]

prints, for each policy, what the real scheduler and the simulated block engine (`peek simulate --cache
blocks`) make of the same requests.  Nothing is fitted: both count tokens in the same cost model, the
decisions are vLLM's here and the simulated engine's there.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from vllm_lab import BLOCK, Scheduler, fake_output, make_request, make_scheduler, make_vllm_config, vllm

import peek
from peek.adapters.vllm import PeekScheduler
from peek.simulation.cells import CELL_NAMES, LOADS, cell
from peek.simulation.cost import CostModel, chunk_pairs, cost_model_for
from peek.simulation.engines import MAX_BATCHED_TOKENS, Job, SimEngine, StepWork
from peek.simulation.simulate import figures, simulate
from peek.simulation.workload import SimRequest, Workload

MAX_MODEL_LEN = 8192


class RealScheduler(SimEngine):
    """Clock, arrivals and records of the simulated engine; every decision is vLLM's scheduler's.

    `options`: further ones of the adapter.
    """

    def __init__(self, workload: Workload, label: str, cost: CostModel, **options: Any) -> None:
        super().__init__(workload, None, cost)
        stock = label == "fcfs+lru"
        self.scheduler = make_scheduler(
            Scheduler if stock else PeekScheduler,
            num_blocks=workload.arena_tokens // BLOCK + 1,  # one is vLLM's null block
            config=make_vllm_config(
                max_num_seqs=workload.max_running,
                max_num_batched_tokens=MAX_BATCHED_TOKENS,
                max_model_len=MAX_MODEL_LEN,
                options=None if stock else {"policy": label, "strict": True, "tenants": "named", **options},
            ),
        )
        if not stock:
            self.scheduler.peek.adapter.clock = lambda: self.now
        self._scheduled: Any = None

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        tokens = np.frombuffer(request.key, dtype="<i4").tolist()
        real = make_request(request.request_id, tokens, request.output_tokens, arrival_time=arrival_s)
        named = {
            "peek_tenant": request.tenant,
            "peek_session": request.session,
            "peek_ttft_target_s": request.ttft_target_s,
        }
        real.sampling_params.extra_args = {name: value for name, value in named.items() if value} or None
        self.scheduler.add_request(real)
        return Job(request, arrival_s, [])

    def step(self) -> StepWork:
        work = StepWork()
        self._scheduled = scheduled = self.scheduler.schedule()
        for name in scheduled.preempted_req_ids or ():
            job = self.jobs[name]
            job.preemptions += 1
            self.running.remove(job)
        for new in scheduled.scheduled_new_reqs:
            self._admitted(new.req_id, new.num_computed_tokens)
        again = scheduled.scheduled_cached_reqs
        for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if self.jobs[name] not in self.running:
                self._admitted(name, computed)
        for name, tokens in scheduled.num_scheduled_tokens.items():
            job = self.jobs[name]
            decode = tokens == 1 and job.generated > 0
            work.add(job, tokens, 0.0 if decode else chunk_pairs(job.computed, tokens))
            job.computed += tokens
        if not work.jobs:
            self.scheduler.update_from_output(scheduled, fake_output(self.scheduler, scheduled))
        return work

    def _admitted(self, name: str, computed: int) -> None:
        job = self.jobs[name]
        job.computed = computed
        job.note_admission(self.now, computed)
        self.running.append(job)

    def complete(self, work: StepWork) -> None:
        self.scheduler.update_from_output(self._scheduled, fake_output(self.scheduler, self._scheduled))

    def release(self, job: Job) -> None:
        assert job.request_id not in self.scheduler.requests, "vLLM has not finished it"

    def planner_key(self, job: Job) -> object:
        raise NotImplementedError  # the planner beside the real scheduler has its own


def real(workload: Workload, label: str) -> dict[str, Any]:
    """The figures of one run on the real scheduler."""
    return figures(workload, RealScheduler(workload, label, cost_model_for(workload.name)).run())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=CELL_NAMES, default="w1c")
    parser.add_argument("--load", choices=LOADS, default="heavy")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--policy", nargs="*", default=["fcfs+lru", "peek"])
    arguments = parser.parse_args()
    workload = cell(arguments.workload, arguments.load, arguments.seed, "vllm")
    print(f"vLLM {vllm.__version__}, peek {peek.backend()}; {workload.name} {workload.load}, {workload.seed}")
    print("policy          engine     hit   mean TTFT s  p99 TTFT s  req/s  preempted   wall s")
    for label in arguments.policy:
        for name, run in (("real", real), ("simulated", lambda w, p: simulate(w, p, "blocks"))):
            started = time.perf_counter()
            result = run(workload, label)
            ttft = result["ttft_s"]
            wall_s = time.perf_counter() - started
            print(
                f"{label:15} {name:9} {result['cache_hit']:.3f} {ttft['mean']:13.1f} {ttft['p99']:11.1f}"
                f" {result['throughput_rps']:6.3f} {result['preemptions']:10} {wall_s:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
