# ruff: noqa: T201
"""What planning adds to a `schedule()` call of vLLM's real scheduler.

    OMP_NUM_THREADS=1 python tests/vllm/bench_cost.py [--steps 200] [--profile] [--waiting 1000 20000]

4,096-token prompts in blocks of 16, 64 requests running, 100 shared prefixes of 3,072 tokens or none.
Stock and peek run in turns, step by step, in one process, and CPU time is what counts: a busy machine
changes little.  Six situations:

    full    every slot is taken, as in most steps of a busy engine
    blocks  slots are free but no block is: the queue is looked at in every step, and nobody enters
    churn   in every step one request ends, one enters and one arrives
    burst   all arrive before one step; the dearest step until all are planned is what counts
    lora    all that wait are of a LoRA adapter that has no slot: the scan passes over each in every step
    grammar all that wait have a grammar that is not compiled: the same
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import statistics
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm_lab import BLOCK, RequestStatus, Scheduler, fake_output, make_request, make_scheduler, vllm

import peek
from peek.adapters.vllm import PeekScheduler

PROMPT = 4096
SHARED = 3072
RUNNING = 64
SITUATIONS = ("full", "blocks", "churn", "burst", "lora", "grammar")
PASSED_OVER = ("lora", "grammar")
MOST_RATIO = 1.5
"""What a step in which the scan passes over everybody may cost, to stock."""
TARGETS_MS = {200: 0.3, 1000: 0.3, 20000: 2.0}
UNCHANGED_MS = 0.05
BURST_MS = 30.0


@dataclass
class Side:
    """One scheduler with its own copies of the same requests."""

    engine: Any
    number: int = 0
    times: list[float] = field(default_factory=list)


def prompt(rnd: random.Random, prefixes: list[list[int]]) -> list[int]:
    own = PROMPT - (SHARED if prefixes else 0)
    head = rnd.choice(prefixes) if prefixes else []
    return head + [rnd.randrange(3, 1000) for _ in range(own)]


def build(cls: Any, policy: str, situation: str, prompts: list[list[int]]) -> Side:
    per_request = PROMPT // BLOCK + 1
    engine = make_scheduler(
        cls,
        # "blocks": what the running ones leave is less than one prompt, and enough for 60 steps
        num_blocks=RUNNING * per_request + 250 if situation == "blocks" else 60000,
        max_num_seqs=RUNNING if situation != "blocks" else 4 * RUNNING,
        max_num_batched_tokens=2**19,
        options=None if cls is Scheduler else {"policy": policy, "strict": True},
    )
    side = Side(engine)
    if situation == "lora":
        engine.lora_config = SimpleNamespace(max_loras=1)
    for i, tokens in enumerate(prompts):
        if i == RUNNING:
            step(side)
            assert len(engine.running) == RUNNING, len(engine.running)
            engine.max_num_running_reqs += situation in PASSED_OVER  # a seat is free
        slot = "has a slot" if i < RUNNING else "has none"
        arrive(side, tokens, slot if situation == "lora" else None, situation == "grammar" and i >= RUNNING)
    step(side)
    while cls is not Scheduler and situation != "burst" and engine.waiting.entered:
        engine.peek.adapter.sync()
    gc.collect()
    gc.freeze()  # as vLLM does once it has started: else the collector looks at millions of token ids
    return side


def arrive(side: Side, tokens: list[int], lora: str | None = None, grammar: bool = False) -> None:
    request = make_request(
        f"r{side.number}",
        tokens,
        3000,
        arrival_time=side.number * 1e-3,
        lora=lora,
        grammar=grammar,
    )
    side.engine.add_request(request)
    side.number += 1


def step(side: Side, profiler: Any = None) -> float:
    engine = side.engine
    if profiler is not None:
        profiler.enable()
    started = time.thread_time()
    scheduled = engine.schedule()
    took = time.thread_time() - started
    if profiler is not None:
        profiler.disable()
    engine.update_from_output(scheduled, fake_output(engine, scheduled))
    return took


def measure(
    policy: str, situation: str, waiting: int, sharing: bool, steps: int, profiler: Any
) -> list[float]:
    """Median ms of stock and peek, and of their difference step by step."""
    rnd = random.Random(7)
    prefixes = [[rnd.randrange(3, 1000) for _ in range(SHARED)] for _ in range(100)] if sharing else []
    # the running ones share nothing, so that each holds blocks of its own
    prompts = [prompt(rnd, []) for _ in range(RUNNING)] + [prompt(rnd, prefixes) for _ in range(waiting)]
    if situation == "burst":
        return measure_burst(policy, prompts)
    sides = [build(Scheduler, policy, situation, prompts), build(PeekScheduler, policy, situation, prompts)]
    steps = min(steps, 45) if situation == "blocks" else steps
    for i in range(steps + 10):
        late = prompt(rnd, prefixes) if situation == "churn" else []
        for side in sides if i % 2 else reversed(sides):
            if situation == "churn":
                oldest = side.engine.running[0].request_id
                side.engine.finish_requests(oldest, RequestStatus.FINISHED_ABORTED)
                arrive(side, late)
            took = step(side, profiler if side is sides[1] and i >= 10 else None)
            if i >= 10:
                side.times.append(took)
    assert sides[1].engine.peek.shield.fallbacks == 0
    left = [len(side.engine.waiting) for side in sides]
    assert min(left) >= 0.9 * waiting, left
    stock, mine = (side.times for side in sides)
    added = [b - a for a, b in zip(stock, mine, strict=True)]
    return [1e3 * statistics.median(times) for times in (stock, mine, added)]


def measure_burst(policy: str, prompts: list[list[int]]) -> list[float]:
    """ms of the dearest step of stock and peek, and of their dearest difference, once all but the first few
    have arrived at once."""
    sides = [build(cls, policy, "burst", prompts[:RUNNING]) for cls in (Scheduler, PeekScheduler)]
    for tokens in prompts[RUNNING:]:
        for side in sides:
            arrive(side, tokens)
    gc.collect()
    gc.freeze()
    while True:
        for side in sides:
            oldest = side.engine.running[0].request_id
            side.engine.finish_requests(oldest, RequestStatus.FINISHED_ABORTED)
            side.times.append(step(side))
        if not sides[1].engine.waiting.entered:
            break
    stock, mine = (side.times for side in sides)
    return [1e3 * max(times) for times in (stock, mine, [b - a for a, b in zip(stock, mine, strict=True)])]


def target(waiting: int, sharing: bool, situation: str) -> str:
    if situation in PASSED_OVER:
        return f"{MOST_RATIO:g}"
    if situation == "burst":
        return f"+{BURST_MS:g} ms"
    if situation != "churn":
        return f"+{UNCHANGED_MS:g} ms"
    return f"+{TARGETS_MS.get(waiting, 2.0):g} ms" if sharing else "1.02"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--waiting", type=int, nargs="*", default=[200, 1000, 20000])
    parser.add_argument("--policy", default="peek")
    parser.add_argument("--situation", choices=SITUATIONS, nargs="*", default=SITUATIONS)
    parser.add_argument("--profile", action="store_true", help="where peek's steps spend their time")
    arguments = parser.parse_args()
    print(f"vLLM {vllm.__version__}, peek {peek.__version__} {peek.backend()}, policy {arguments.policy}")
    print("waiting  sharing  situation  stock ms  peek ms  added ms  ratio  target")
    for waiting in arguments.waiting:
        for sharing in (True, False):
            for situation in arguments.situation:
                profiler = cProfile.Profile(time.thread_time) if arguments.profile else None
                stock, mine, added = measure(
                    arguments.policy, situation, waiting, sharing, arguments.steps, profiler
                )
                print(
                    f"{waiting:7}  {'yes' if sharing else 'no':7}  {situation:9}  {stock:8.3f}  {mine:7.3f}"
                    f"  {added:8.3f}  {mine / stock:5.2f}  {target(waiting, sharing, situation)}",
                    flush=True,
                )
                if profiler is not None:
                    pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
