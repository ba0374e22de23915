"""Measures memory over a long run: a million requests come and go, about a thousand wait at any time.

    python -m bench.soak [pairs]

There are four runs on the compiled build: the pending tree alone, with plain and with chained keys, a planner
with the default policy, and a planner with everything switched on (published lanes, demand eviction, prefills
in flight).  Resident memory is sampled; the exit status is 1 if it grows by 2 MiB or more after a warm-up of
a fifth.  The garbage collector is off, so a reference cycle that is left behind counts as a leak.
"""

from __future__ import annotations

import argparse
import gc
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

import peek
from bench.builds import require_compiled
from bench.planners import make_planner
from peek.simulation.caches import RadixCache
from peek.timing import random_key

WINDOW = 1_000
PLAN_EVERY = 1_000
MAX_GROWTH = 2 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")

Step = Callable[[int, bytes], None]


def keys() -> Iterator[bytes]:
    """Yield prompts without end: one of 64 prefixes of 32 to 512 tokens, then 1 to 256 tokens of its own."""
    rng = np.random.default_rng(0)
    prefixes = [random_key(rng, int(n)) for n in rng.integers(32, 513, size=64)]
    tokens = random_key(rng, 1 << 20)
    while True:
        which, lengths, starts = (rng.integers(low, high, size=1_000).tolist() for low, high in _DRAWS)
        for prefix, length, start in zip(which, lengths, starts, strict=True):
            yield prefixes[prefix] + tokens[4 * start : 4 * (start + length)]


_DRAWS = ((0, 64), (1, 257), (0, (1 << 20) - 256))
"""Ranges of a request's prefix, of the length of its own part, and of where that starts in the tokens."""


def tree_alone(chained: bool) -> Step:
    tree = peek.PendingTree(chained)

    def step(i: int, key: bytes) -> None:
        tree.insert(f"request-{i}", _chained(i) if chained else key, f"adapter-{i % 3}")
        if i >= WINDOW:
            tree.remove(f"request-{i - WINDOW}")

    return step


def _chained(i: int) -> bytes:
    """Return 16 symbols of one of 63 prefixes, each in one namespace only, then 16 that are unique."""
    shared = 16 * (i % 63)
    own = 1_008 + 16 * (i % 60_000_000)
    return struct.pack("<32i", *range(shared, shared + 16), *range(own, own + 16))


def planner(plans: peek.Planner) -> Step:
    """Return a step in which requests leave in the planned order; the cache holds up to 100,000 tokens."""
    cache = RadixCache(1)
    order: deque[str] = deque()
    waiting: dict[str, bytes] = {}
    running: deque[str] = deque()

    def step(i: int, key: bytes) -> None:
        request_id = f"request-{i}"
        waiting[request_id] = key
        plans.add(peek.PendingRequest(request_id, key, 1e-3 * i))
        if len(waiting) <= WINDOW:
            return
        if not order:
            order.extend(plans.plan(cache, 1e-3 * i)[:PLAN_EVERY])
        admitted = order.popleft()
        plans.remove(admitted, admitted=i % 50 != 0)
        running.append(admitted)
        if len(running) > 8:
            plans.prefilled(running.popleft())
        cache.insert(waiting.pop(admitted), "")
        if cache.cached_tokens > 200 * 500:
            cache.evict(2_000, plans.eviction_score if plans.evicts else None)

    return step


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def soak(name: str, step: Step, pairs: int) -> bool:
    """Run a step `pairs` times and print samples of memory; return whether memory stayed flat."""
    sample_every = max(1, pairs // 20)
    samples: list[int] = []
    prompts = keys()
    started = perf_counter()
    for i in range(pairs):
        step(i, next(prompts))
        if (i + 1) % sample_every == 0:
            samples.append(resident())
    seconds = perf_counter() - started
    warm = samples[len(samples) // 5 :]
    growth = max(warm) - warm[0]
    print(f"{name}: {pairs} pairs in {seconds:.0f} s; MiB every {sample_every} pairs:")
    print("  " + " ".join(f"{sample / 2**20:.1f}" for sample in samples))
    verdict = "flat" if growth < MAX_GROWTH else "GROWS"
    print(f"  growth after warm-up {growth / 2**20:.2f} MiB, limit {MAX_GROWTH >> 20}: {verdict}", flush=True)
    return growth < MAX_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "pairs", type=int, nargs="?", default=1_000_000, help="arrivals and departures of each run"
    )
    pairs = parser.parse_args().pairs
    require_compiled()
    gc.disable()
    everything = make_planner(peek.PeekConfig.from_label("clpm+gm+dl+pe"), gated=True)
    runs = {
        "pending tree": tree_alone(chained=False),
        "pending tree, chained": tree_alone(chained=True),
        "planner, peek": planner(peek.Planner()),
        "planner, clpm+gm+dl+pe, gate": planner(everything),
    }
    flat = [soak(name, step, pairs) for name, step in runs.items()]
    return 0 if all(flat) else 1


if __name__ == "__main__":
    sys.exit(main())
