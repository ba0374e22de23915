# ruff: noqa: T201
"""What one `calc_priority` of SGLang costs: stock LPM, and `peek` in its place.

    OMP_NUM_THREADS=1 python tests/sglang/bench_cost.py [--waiting 128 1000] [--repeat 15]

4,096-token prompts over 100 shared prefixes of 3,072 tokens, half of them cached, or with nothing shared
and nothing cached.  CPU time, medians.

    lpm       stock; beyond 128 waiting it sorts nothing
    lifted    stock LPM without that limit
    peek      in its place, with one request gone, its prompt cached, and another one come; what the hook
              behind the search for prefills costs is in it
    stands    the same queue again, and the order stands
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_lab import CORES, VERSION, make_request, make_world, tokens_for, torch
from sglang_small import attach

import peek

PROMPT, SHARED, GROUPS = 4096, 3072, 100


def prompts(rnd: random.Random, count: int, shared: bool) -> tuple[list[list[int]], list[list[int]]]:
    prefixes = [[rnd.randrange(3, 30000) for _ in range(SHARED)] for _ in range(GROUPS)]
    own = PROMPT - SHARED if shared else PROMPT - 1
    heads = prefixes if shared else [[30000 + i] for i in range(count)]
    texts = [heads[i % len(heads)] + [rnd.randrange(3, 30000) for _ in range(own)] for i in range(count)]
    return prefixes, texts


def world_with(prefixes: list[list[int]], policy: str, core: str | None) -> Any:
    world = make_world(1_000_000, policy=policy, core=core)
    for prefix in prefixes[: GROUPS // 2]:
        cache_prompt(world, prefix)
    return world


def cache_prompt(world: Any, tokens: list[int]) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    value = torch.arange(len(tokens), dtype=torch.int64)
    world.tree.insert(InsertParams(key=RadixKey(tokens_for(tokens)), value=value))


def median_ms(call: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return 1e3 * statistics.median(times)


def measure(waiting: int, core: str | None, repeat: int, shared: bool, policy: str) -> None:
    prefixes, texts = prompts(random.Random(3), waiting + repeat, shared)
    made = [make_request(f"r{i}", text, arrival=1.0 + i) for i, text in enumerate(texts)]
    requests, others = made[:waiting], made[waiting:]

    stock = world_with(prefixes, "lpm", core)
    gc.collect()
    gc.freeze()  # millions of token ids: whoever happens to start a collection would pay for looking at them
    lpm = median_ms(lambda: stock.policy.calc_priority(list(requests)), repeat)
    stock.policy._determine_active_policy = lambda queue: stock.policy.policy
    lifted = median_ms(lambda: stock.policy.calc_priority(list(requests)), repeat)

    world = world_with(prefixes, "fcfs", core)
    beside = attach(world, policy)
    queue = list(requests)
    first = median_ms(lambda: world.policy.calc_priority(queue), 1)

    times = []
    for other in others:
        gone = queue.pop(0)
        cache_prompt(world, texts[int(gone.rid[1:])])
        told = median_ms(partial(beside.adapter.turned, [gone], queue), 1)
        queue.append(other)
        times.append(told + median_ms(lambda: world.policy.calc_priority(queue), 1))
    mine = statistics.median(times)
    stands = median_ms(lambda: world.policy.calc_priority(queue), repeat)
    assert beside.shield.fallbacks == 0
    assert beside.adapter.planner.stats.plans >= repeat
    print(
        f"{waiting:7}  {'yes' if shared else 'no':6}  {core or '-':6}"
        f"  {lpm:8.2f}  {lifted:8.2f}  {mine:8.2f}  {mine / lifted:7.2f}  {stands:8.3f}"
        f"  {first / waiting * 1e3:8.0f} us",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiting", type=int, nargs="*", default=[128, 1000])
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--policy", default="peek")
    arguments = parser.parse_args()
    print(f"SGLang {VERSION}, peek {peek.__version__} {peek.backend()}; ms")
    print("waiting  shared  core         lpm    lifted      peek    ratio    stands  first, each")
    for core in CORES:
        for waiting in arguments.waiting:
            for shared in (True, False):
                measure(waiting, core, arguments.repeat, shared, arguments.policy)


if __name__ == "__main__":
    main()
