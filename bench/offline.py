"""Tables of docs/offline.md: expected hits of every offline workload and of the three weak spots.

    python bench/offline.py > table.md

Deterministic: a simulated LRU cache, no clock.  The workloads of real text need shared/data/text next to the
checkout; without it only the synthetic ones are shown.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # offline_batches, offline_texts

from support.offline_batches import branching, grouped, rollouts
from support.offline_texts import TEXTS, WORKLOADS, Batch, workload

from peek.offline import reorder

WEAK_SPOTS = {
    "300 common tokens, then 1,000 groups": (
        lambda rnd: grouped(rnd, 20_000, 1000, 448, 64, system=300),
        60_000,
    ),
    "rollouts, 8 of each prompt": (lambda rnd: rollouts(rnd, 1500, 8, 512), 60_000),
    "branching every 16 tokens": (
        lambda rnd: branching(rnd, 4000, trees=20, levels=3, edge=16, fan=4, tail=48),
        20_000,
    ),
}


def row(name: str, batch: Batch, cache_tokens: int) -> str:
    """One workload: as it came, the published form, the default."""
    full = reorder(batch, cache_tokens=cache_tokens)
    paper = reorder(batch, cache_tokens=cache_tokens, mode="paper")
    tokens = sum(map(len, batch))
    figures = (
        f"{len(batch):,} | {tokens / 1e6:.2f} M | {cache_tokens // 1000}K | {full.expected_hit_before:.3f}"
    )
    published = f"{paper.expected_hit_after:.3f}" + (f" ({paper.guard})" if paper.guard else "")
    default = f"**{full.expected_hit_after:.3f}**" + (f" ({full.guard})" if full.guard else "")
    return f"| {name} | {figures} | {published} | {default} |"


def main() -> None:
    """Print the table."""
    print("| workload | prompts | tokens | cache | as it came | published (guard) | default (guard) |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, cache_tokens) in WEAK_SPOTS.items():
        print(row(name, make(random.Random(0)), cache_tokens))
    if not TEXTS.is_dir():
        print(f"no {TEXTS}: the workloads of real text are left out", file=sys.stderr)
        return
    for name in WORKLOADS:
        print(row(name, *workload(name)))


if __name__ == "__main__":
    main()
