"""Policies on the kinds of traffic of `bench.kinds`, against the best stock policy of each column.

    python -m bench.judge [--policies peek peek:objective=mean ...] [--by kind] [--csv FILE] [--figure FILE]

Every kind, load and seed runs on both simulated engines, with the step times of the evaluation and 50,000
tokens of KV cache.  Cells in which arrival order has a mean TTFT below a second have no queue, so any order
is right; they are counted and left out of the averages.  By this policies are chosen; it was written first:

    utility     geometric mean of mean TTFT, p99 TTFT, mean E2E, mean job time and share of requests that miss
                2 s, each over the best stock policy's of that column; lower is better

A share is taken two points higher, so that 0 has a ratio.  `beaten` counts the cells in which one stock
policy is better by more than 2 % in both mean and p99 TTFT.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from itertools import groupby, product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.kinds import ARENAS, JUDGING, KINDS, LOADS, TUNING, at_load, build
from peek import backend
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate

STOCK: Final = ("fcfs+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru")
OURS: Final = (
    "peek", "peek:objective=tail", "peek:mean_bias=0.25", "peek:mean_bias=0.75", "peek:objective=mean",
    "peek:objective=target",
)  # fmt: skip
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
    """The figures of each policy in a cell; seconds and shares."""
    cell, labels = job
    workload = at_load(build(cell.kind, cell.seed, cell.arena_tokens), cell.load, cell.cache)
    return {
        label: _figures(simulate(workload, label, cell.cache, cost=cost_model_for("w1c"))) for label in labels
    }


def _figures(run: dict[str, Any]) -> Figures:
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


def ratios(found: dict[str, Figures], label: str) -> Figures:
    """Each column of a policy over that of the best stock policy in the same cell."""
    own = found[label]
    over: Figures = {}
    for column in COLUMNS:
        if column in own:
            best = min(found[stock][column] for stock in STOCK)
            added = MARGIN if column == "missed" else 0.0
            over[column] = (own[column] + added) / (best + added)
    return over


def is_beaten(found: dict[str, Figures], label: str) -> bool:
    """Whether a stock policy is better in both mean and p99 TTFT."""
    mean, p99 = (found[label][column] * (1.0 - MARGIN) for column in ("ttft", "p99"))
    return any(found[stock]["ttft"] < mean and found[stock]["p99"] < p99 for stock in STOCK)


def row(cells: Sequence[dict[str, Figures]], label: str) -> dict[str, float]:
    """A policy over several cells: geometric means of the ratios, their utility, and shares in time."""
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
    """Rows of text, headed."""
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


def draw(cells: Sequence[dict[str, Figures]], labels: Sequence[str], path: Path) -> None:
    """Each policy at its ratios of mean and p99 TTFT; the places on the dial are joined."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rc("svg", fonttype="none", hashsalt="peek")
    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    lines = {label: row(cells, label) for label in labels}
    dial = sorted((label for label in lines if label in DIAL), key=lambda label: DIAL[label])
    axes.plot([lines[each]["ttft"] for each in dial], [lines[each]["p99"] for each in dial], color="#d9480f")
    for label, line in lines.items():
        ours = label not in STOCK
        axes.plot(line["ttft"], line["p99"], "o" if ours else "s", color="#d9480f" if ours else "#6b7280")
        axes.annotate(
            label.removesuffix("+lru").removeprefix("peek:"), (line["ttft"], line["p99"]), fontsize=8,
            xytext=(-7 if ours else 7, 0), textcoords="offset points", ha="right" if ours else "left",
            va="center", fontweight="bold" if label == "peek" else None,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="mean TTFT, times the best stock policy's",
             ylabel="p99 TTFT, times the best stock policy's")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(mpl.ticker.FixedLocator([1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5]))
        axis.set_minor_locator(mpl.ticker.NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.grid(color="#e5e7eb")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(0.25, 0.15)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


DIAL: Final = {
    "peek:objective=tail": 0.0, "peek:mean_bias=0.25": 0.25, "peek": 0.5, "peek:mean_bias=0.75": 0.75,
    "peek:objective=mean": 1.0,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=list(OURS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--by", choices=["kind", "load", "cache"], default=None)
    parser.add_argument("--tuning", action="store_true", help="the seeds to try things on")
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    parser.add_argument("--figure", type=Path, default=None, help="draw mean against p99, as SVG")
    arguments = parser.parse_args()
    assert backend() == "compiled", "build it first: make build"
    seeds = TUNING if arguments.tuning else JUDGING
    cells = [Cell(*each) for each in product(arguments.kinds, LOADS, seeds, CACHES, ARENAS[:1])]
    labels = [*STOCK, *arguments.policies]
    with Pool() as pool:
        found = dict(
            zip(cells, pool.map(run_cell, [(cell, labels) for cell in cells], chunksize=1), strict=True)
        )
    queued = [cell for cell in cells if found[cell]["fcfs+lru"]["ttft"] >= 1.0]
    print(f"{len(queued)} of {len(cells)} cells have a queue")
    groups = [("all", [found[cell] for cell in queued])]
    if arguments.by:
        by = sorted(queued, key=lambda cell: str(getattr(cell, arguments.by)))
        groups += [
            (str(key), [found[cell] for cell in group])
            for key, group in groupby(by, key=lambda cell: getattr(cell, arguments.by))
        ]
    lines = table(groups, labels)
    for number, line in enumerate(lines):
        print("| " + " | ".join(line) + " |")
        if not number:
            print("|---" * len(line) + "|")
    if arguments.figure:
        draw(groups[0][1], labels, arguments.figure)
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
