"""Runs policies in the cells of the arena and compares each with the best stock policy of each column.

Every kind, load and seed runs on both simulated engines, with the step times of the evaluation and an arena
of 50,000 tokens.  Cells in which arrival order has a mean TTFT below a second have no queue, so any order is
right; they are counted and left out of the averages.  Policies are chosen by utility, defined beforehand:

    utility     geometric mean of mean TTFT, p99 TTFT, mean E2E, mean job time and share of requests that miss
                2 s, each divided by the best stock policy's of that column; lower is better

Names of tenants are ignored, as in the engines by default (`tenants`).  Two points are added to a share, so
that a share of 0 has a ratio.  `beaten` counts the cells in which one stock policy is better by more than 2 %
in both mean and p99 TTFT.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.arena.kinds import ARENAS, LOADS, at_load, build
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate

STOCK: Final = ("fcfs+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru")
COLUMNS: Final = ("ttft", "p99", "e2e", "slowdown", "jct", "missed")
UTILITY: Final = ("ttft", "p99", "e2e", "jct", "missed")
MARGIN: Final = 0.02


class Cell(NamedTuple):
    """One workload on one engine."""

    kind: str
    load: float
    seed: int
    cache: str
    arena_tokens: int = ARENAS[0]


Figures = dict[str, float]


def run_cell(job: tuple[Cell, Sequence[str]]) -> dict[str, Figures]:
    """Return the figures of each policy in a cell: times in seconds, and shares."""
    cell, labels = job
    named = at_load(build(cell.kind, cell.seed, cell.arena_tokens), cell.load, cell.cache)
    workload = replace(named, requests=[replace(request, tenant="") for request in named.requests])
    return {
        label: figures_of(simulate(workload, label, cell.cache, cost=cost_model_for("w1c")))
        for label in labels
    }


def figures_of(run: dict[str, Any]) -> Figures:
    """Return the columns of a run, from the figures of `simulate`."""
    found = {
        "ttft": run["ttft_s"]["mean"],
        "p99": run["ttft_s"]["p99"],
        "e2e": run["e2e_s"]["mean"],
        "slowdown": run["slowdown"]["mean"],
        "missed": 1.0 - run["goodput"][0]["share"],
        "in 10 s": run["goodput"][1]["share"],
        "hit": run["cache_hit"],
    }
    return found | ({"jct": run["job_s"]["mean"]} if "job_s" in run else {})


def run_all(
    kinds: Iterable[str], seeds: Iterable[int], labels: Sequence[str]
) -> dict[Cell, dict[str, Figures]]:
    """Run all cells of some kinds and seeds, as many at a time as there are processors."""
    cells = [Cell(*each) for each in product(kinds, LOADS, seeds, CACHES, ARENAS[:1])]
    with Pool() as pool:
        found = pool.map(run_cell, [(cell, labels) for cell in cells], chunksize=1)
    return dict(zip(cells, found, strict=True))


def has_queue(found: dict[str, Figures]) -> bool:
    """Whether a cell has a queue, so that an order can matter."""
    return found["fcfs+lru"]["ttft"] >= 1.0


def ratios(found: dict[str, Figures], label: str) -> Figures:
    """Divide each column of a policy by that of the best stock policy in the same cell."""
    own = found[label]
    over: Figures = {}
    for column in COLUMNS:
        if column in own:
            best = min(found[stock][column] for stock in STOCK)
            added = MARGIN if column == "missed" else 0.0
            over[column] = (own[column] + added) / (best + added)
    return over


def is_beaten(found: dict[str, Figures], label: str) -> bool:
    """Whether one stock policy is better by more than `MARGIN` in both mean and p99 TTFT."""
    mean, p99 = (found[label][column] * (1.0 - MARGIN) for column in ("ttft", "p99"))
    return any(found[stock]["ttft"] < mean and found[stock]["p99"] < p99 for stock in STOCK)


def row(cells: Sequence[dict[str, Figures]], label: str) -> dict[str, float]:
    """Return a policy's row over several cells: geometric means of ratios, utility, shares in time."""
    over = [ratios(found, label) for found in cells]
    line = {
        column: float(np.exp(np.mean([np.log(each[column]) for each in over if column in each])))
        for column in COLUMNS
        if any(column in each for each in over)
    }
    line["utility"] = float(np.exp(np.mean([np.log(line[column]) for column in UTILITY if column in line])))
    line["in 2 s"] = 1.0 - float(np.mean([found[label]["missed"] for found in cells]))
    behind = [min(found[stock]["missed"] for stock in STOCK) - found[label]["missed"] for found in cells]
    line["points"], line["worst"] = 100.0 * float(np.mean(behind)), 100.0 * min(behind)
    line["p99/spf"] = float(np.exp(np.mean([np.log(f[label]["p99"] / f["spf+lru"]["p99"]) for f in cells])))
    line["ttft/spf"] = float(
        np.exp(np.mean([np.log(f[label]["ttft"] / f["spf+lru"]["ttft"]) for f in cells]))
    )
    line["beaten"] = sum(is_beaten(found, label) for found in cells)
    return line


def table(
    groups: Iterable[tuple[str, Sequence[dict[str, Figures]]]], labels: Sequence[str]
) -> list[list[str]]:
    """Return the table as rows of text, the heading first."""
    lines: list[list[str]] = []
    for name, cells in groups:
        for label in labels:
            line = row(cells, label)
            if not lines:
                lines.append(["cells", "policy", *COLUMNS, "utility", "in 2 s", "points", "worst", "ttft/spf",
                              "p99/spf", "beaten"])  # fmt: skip
            lines.append([f"{name} ({len(cells)})", label, *(
                f"{line[column]:.1f}" if column in ("points", "worst")
                else f"{line[column]:.0f}" if column == "beaten"
                else f"{line[column]:.3f}" if column in line else ""
                for column in lines[0][2:]
            )])  # fmt: skip
    return lines


def show(lines: Sequence[Sequence[str]], path: Path | None) -> None:
    """Print a table, the heading first, as Markdown; write it to `path`, too, if that is given."""
    for number, line in enumerate(lines):
        print("| " + " | ".join(line) + " |")
        if not number:
            print("|---" * len(line) + "|")
    if path:
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(lines)
