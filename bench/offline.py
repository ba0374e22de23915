"""Makes the tables of docs/offline.md: expected hits of every offline workload and of the three weak spots.

    PYTHONPATH=tests python -m bench.offline > table.md

Figures are deterministic, as they come from a simulated LRU cache without a clock.  `sorted()` sorts by token
ids.  Workloads of real text need shared/data/text next to the checkout; without it only the weak spots run.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial

from support.offline_batches import branching, grouped, rollouts
from support.offline_texts import TEXTS, WORKLOADS, workload

from peek.offline import reorder

Prompts = list[list[int]]

WEAK_SPOTS: dict[str, tuple[Callable[[random.Random], Prompts], int]] = {
    "300 common tokens, then 1,000 groups": (
        partial(grouped, n=20_000, groups=1000, prefix=448, tail=64, system=300),
        60_000,
    ),
    "rollouts, 8 of each prompt": (partial(rollouts, prompts=1500, copies=8, length=512), 60_000),
    "branching every 16 tokens": (
        partial(branching, n=4000, trees=20, levels=3, edge=16, fan=4, tail=48),
        20_000,
    ),
}
"""By name, the function that draws the prompts, and the tokens of the cache."""


def line(name: str, prompts: Prompts, cache_tokens: int) -> str:
    """Make a workload's row: as it came, `sorted()`, the published form, the default; then on SGLang."""
    full = reorder(prompts, cache_tokens=cache_tokens)
    paper = reorder(prompts, cache_tokens=cache_tokens, mode="paper")
    tokens = sum(map(len, prompts))
    figures = (
        f"{len(prompts):,} | {tokens / 1e6:.2f} M | {cache_tokens // 1000}K | {full.expected_hit_before:.3f}"
    )
    published = f"{paper.expected_hit_after:.3f}" + (f" ({paper.guard})" if paper.guard else "")
    default = f"**{full.expected_hit_after:.3f}**" + (f" ({full.guard})" if full.guard else "")
    plain = sorted(prompts)
    by_sorted = reorder(plain, cache_tokens=cache_tokens).expected_hit_before
    ours = f"{by_sorted:.3f} | {published} | {default} | {on_sglang(prompts, plain, cache_tokens)}"
    return f"| {name} | {figures} | {ours} |"


def on_sglang(prompts: Prompts, plain: Prompts, cache_tokens: int) -> str:
    """Make SGLang's cells, `sorted()` and default: 16 prompts are in flight, and none can hit another's."""
    by_sorted = reorder(plain, cache_tokens=cache_tokens, engine="sglang").expected_hit_before
    default = reorder(prompts, cache_tokens=cache_tokens, engine="sglang").expected_hit_after
    return f"{by_sorted:.3f} | {default:.3f}"


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    head = "workload | prompts | tokens | cache | as it came | sorted() | published (guard) | default (guard)"
    print(f"| {head} | SGLang, sorted() | SGLang, default |")
    print("|" + "---|" * 10)
    for name, (make, cache_tokens) in WEAK_SPOTS.items():
        print(line(name, make(random.Random(0)), cache_tokens))
    if not TEXTS.is_dir():
        print(f"no {TEXTS}: the workloads of real text are left out", file=sys.stderr)
        return
    for name in WORKLOADS:
        print(line(name, *workload(name)))


if __name__ == "__main__":
    main()
