"""Compares the gain that shadow mode predicts with the real one, on the engines' own schedulers.

    OMP_NUM_THREADS=1 PYTHONPATH=.:tests/vllm path/to/vllm/python -m bench.shadow vllm [--streams w1a:heavy]
    OMP_NUM_THREADS=1 PYTHONPATH=.:tests/sglang path/to/sglang/python -m bench.shadow sglang

Each stream is played twice in modelled time: in shadow mode, and with `peek` on.  Hits are in per cent of the
prompt tokens of all requests, with warm-up.  The last column has two CPU times per step of the engine, in ms:
of the virtual engine, and of `schedule` (vLLM, with `peek`) or `calc_priority` (SGLang).
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.builds import require_compiled
from bench.evaluation.plans import SEEDS
from bench.evaluation.record import time_calls
from bench.evaluation.streams import as_tokens, build
from peek.adapters.shadow import Shadow
from peek.simulation.cost import cost_model_for
from peek.simulation.engines import Job, SimEngine
from peek.simulation.workload import Workload

STREAMS = ("w1a:heavy", "w1b:heavy", "w1c:moderate", "w1c:heavy", "w1d:heavy", "w2b:heavy", "w5-short:heavy")


@dataclass
class Played:
    """One run: its hit in per cent, the shadow if there was one, and CPU times in seconds."""

    hit: float
    shadow: Shadow | None
    steps: int
    virtual_s: float
    engine_s: float


def play(engine: str, workload: Workload, mode: str) -> Played:
    """Play a workload on the engine's own scheduler, with `peek` in this mode."""
    module: Any = import_module(f"bench.evaluation.{engine}_engine")
    real: SimEngine = module.RealEngine(workload, "peek", cost_model_for(workload.name), mode=mode)
    readings = time_calls(*real.decision)  # type: ignore[attr-defined]
    beside = real.scheduler.peek if engine == "vllm" else real.world.policy.peek  # type: ignore[attr-defined]
    spent = Spent(beside)
    jobs = real.run()
    following = beside.foretold.shadow
    account = None if following is None else following.account
    engine_s = sum(readings[1::2]) - sum(readings[::2])
    return Played(hit(jobs), account, real.steps, spent.seconds, engine_s)


class Spent:
    """Measures the CPU time, in seconds, of an attachment's calls to its shadow."""

    def __init__(self, beside: Any) -> None:
        self.seconds = 0.0
        self._tell = beside.foretold.tell
        beside.foretold.tell = self.tell

    def tell(self, *args: Any) -> None:
        started = time.thread_time()
        self._tell(*args)
        self.seconds += time.thread_time() - started


def hit(jobs: list[Job]) -> float:
    """Return the hit in per cent of all prompt tokens."""
    return 100.0 * sum(job.cached_at_admission for job in jobs) / sum(job.prompt_tokens for job in jobs)


def row(engine: str, stream: str, seed: int, data: Path | None) -> str:
    """Make the table's line for a stream."""
    workload = as_tokens(build(stream, seed, engine, data)[0])
    on, shadowed = play(engine, workload, "on"), play(engine, workload, "shadow")
    account = shadowed.shadow
    assert account is not None
    foretold = 100.0 * (account.hit_tokens - account.stock_hit_tokens) / account.prompt_tokens
    gain = on.hit - shadowed.hit
    per_step = 1000.0 / shadowed.steps
    return (
        f"| {stream} | {seed} | {shadowed.hit:.1f} | {on.hit:.1f} | {gain:+.2f} | {foretold:+.2f} |"
        f" {foretold - gain:+.2f} | {shadowed.virtual_s * per_step:.2f}, {shadowed.engine_s * per_step:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--streams", nargs="*", default=STREAMS)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--data", type=Path, default=None, help="folder with recorded traffic")
    arguments = parser.parse_args()
    require_compiled()
    logging.disable(logging.WARNING)
    print("| stream | seed | stock | with peek | gain | foretold | off by | ms a step |")
    print("|---|---|---|---|---|---|---|---|")
    for stream in arguments.streams:
        for seed in arguments.seeds:
            print(row(arguments.engine, stream, seed, arguments.data), flush=True)


if __name__ == "__main__":
    main()
