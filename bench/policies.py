"""Tables of docs/policies.md: mean / p99 TTFT and hit of every policy, as Markdown.

    python -m bench.policies [--seeds 42,142,242] [--cells w1a:heavy,...] > table.md

Deterministic: virtual time only.  Each figure is the mean over the seeds.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from peek.simulation.cells import cell
from peek.simulation.simulate import CACHES, simulate

CELLS = "w1a:heavy,w1c:moderate,w1c:heavy,w1d:heavy,w5-long:heavy"
POLICIES = (
    "fcfs+lru,lpm+lru,lpm-nolimit+lru,dfs-weight+lru,hrrn+lru,spf+lru,"
    "clpm,clpm+gm,clpm+gm+pe,clpm+gm+dl+pe,peek"
)
ENGINES = {"radix": "sglang", "blocks": "vllm"}


def line(label: str, cells: list[tuple[str, str]], seeds: list[int], cache: str) -> str:
    """One policy over all cells."""
    columns = []
    for name, load in cells:
        runs = [simulate(cell(name, load, seed, ENGINES[cache]), label, cache) for seed in seeds]
        mean = fmean(run["ttft_s"]["mean"] for run in runs)
        p99 = fmean(run["ttft_s"]["p99"] for run in runs)
        hit = fmean(run["cache_hit"] for run in runs)
        columns.append(f"{mean:.1f} / {p99:.0f} ({hit:.3f})")
    return f"| `{label}` | " + " | ".join(columns) + " |"


def main() -> None:
    """Print one table for each engine kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--seeds", default="42,142,242")
    parser.add_argument("--policies", default=POLICIES)
    arguments = parser.parse_args()
    cells = [(name, load) for name, _, load in (text.partition(":") for text in arguments.cells.split(","))]
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for cache in CACHES:
        print(f"\n### `--cache {cache}`\n")
        print("| policy | " + " | ".join(f"{name} {load}" for name, load in cells) + " |")
        print("|---|" + "---|" * len(cells))
        for label in arguments.policies.split(","):
            print(line(label, cells, seeds, cache), flush=True)


if __name__ == "__main__":
    main()
