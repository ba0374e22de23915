"""Compares policies on the kinds of traffic of the arena.

    python -m bench.arena --policy my_package.my_module:MyPolicy [--policy peek ...] [--tuning] [--by kind]
    python -m bench.arena --write FOLDER           the traffic itself, for an engine of your own
    python -m bench.arena --store [--later]        the table, the figure and the leaderboard of the pages

A policy is a label or the import path of a class, as everywhere.  The stock policies always run, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.arena.cells import STOCK, Cell, Figures, has_queue, run_all, show, table
from bench.arena.kinds import JUDGING, KINDS, LATER, LOADS, TUNING, at_load, build
from bench.builds import ROOT, require_compiled
from peek.simulation.simulate import CACHES
from peek.simulation.workload import Workload

DIAL: Final = (
    "peek:objective=tail", "peek:mean_bias=0.25", "peek", "peek:mean_bias=0.75", "peek:objective=mean",
)  # fmt: skip
"""Policies on the dial, from short tail to short mean."""
OURS: Final = (*DIAL, "peek:objective=target")

TABLE: Final = ROOT / "docs/data/policies_judge.csv"
FIGURE: Final = ROOT / "docs/figures/dial.svg"
PAGE: Final = ROOT / "docs/policies.md"
MARK: Final = "<!-- leaderboard -->"
LATER_TABLE: Final = ROOT / "docs/data/policies_later.csv"
LATER_MARK: Final = "<!-- later kinds -->"

SHOWN: Final = {
    "mean TTFT": "ttft", "p99": "p99", "E2E": "e2e", "job time": "jct", "missed": "missed",
    "utility": "utility", "in 2 s": "in 2 s", "beaten": "beaten",
}  # fmt: skip


def overall(lines: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the rows of a table that are over all cells, by column."""
    heads, *rows = lines
    return [dict(zip(heads, line, strict=True)) for line in rows if line[0].startswith("all ")]


def leaderboard(lines: Sequence[Sequence[str]]) -> str:
    """Return the rows of a table that are over all cells, best utility first, as Markdown."""
    text = ["| policy | " + " | ".join(SHOWN) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    for each in sorted(overall(lines), key=lambda each: float(each["utility"])):
        figures = (
            each[column] if column == "beaten" else f"{float(each[column]):.2f}" for column in SHOWN.values()
        )
        text.append(f"| `{each['policy'].removesuffix('+lru')}` | " + " | ".join(figures) + " |")
    return "\n".join(text) + "\n"


def between(page: str, board: str, mark: str = MARK) -> str:
    """Return the page with this leaderboard between its marks."""
    before, _, after = page.split(mark)
    return f"{before}{mark}\n\n{board}\n{mark}{after}"


def write(folder: Path, kinds: Sequence[str], seeds: Sequence[int]) -> Iterator[Path]:
    """Write a gzipped file of JSON lines per kind, load and seed, at loads of the vLLM-like engine."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, load, seed in product(kinds, LOADS, seeds):
        path = folder / f"{kind}-{load:g}-{seed}.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as stream:
            for line in lines_of(at_load(build(kind, seed), load, "blocks")):
                stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        yield path


def lines_of(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the requests of a workload as README.md describes them."""
    for each in workload.requests:
        yield {
            "id": each.request_id,
            "arrival_s": round(each.arrival_s, 6),
            "after": each.after,
            "think_s": each.think_s,
            "namespace": each.namespace,
            "tenant": each.tenant,
            "session": each.session,
            "tokens": np.frombuffer(each.key, "<i4").tolist(),
            "output_length": each.output_tokens,
        }


def draw(lines: Sequence[Sequence[str]], path: Path) -> None:
    """Draw each policy of a table at its ratios of mean and p99 TTFT, with a line through the dial."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rc("svg", fonttype="none", hashsalt="peek")
    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    found = {each["policy"]: (float(each["ttft"]), float(each["p99"])) for each in overall(lines)}
    axes.plot(*zip(*(found[label] for label in DIAL if label in found), strict=True), color="#d9480f")
    for label, (mean, p99) in found.items():
        colour = "#6b7280" if label in STOCK else "#d9480f"
        axes.plot(mean, p99, "s" if label in STOCK else "o", color=colour)
        axes.annotate(
            label.removesuffix("+lru").removeprefix("peek:"), (mean, p99), fontsize=8,
            xytext=(-7 if label in DIAL else 7, 0), textcoords="offset points",
            ha="right" if label in DIAL else "left", va="center",
            fontweight="bold" if label == "peek" else None,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--policy", action="append", default=[], help="repeat it; the dial of `peek` if left out"
    )
    parser.add_argument("--kinds", nargs="*", default=[], choices=[*KINDS, *LATER])
    parser.add_argument("--later", action="store_true", help="the kinds that nothing was tuned on")
    parser.add_argument("--by", choices=["kind", "load", "cache"], default=None)
    parser.add_argument("--tuning", action="store_true", help="the seeds to try things on")
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    parser.add_argument("--figure", type=Path, default=None, help="draw mean against p99, as SVG")
    parser.add_argument(
        "--write", type=Path, default=None, metavar="FOLDER", help="write the traffic, run nothing"
    )
    parser.add_argument(
        "--store", action="store_true", help=f"write {TABLE.name}, {FIGURE.name} and {PAGE.name}"
    )
    arguments = parser.parse_args()
    seeds = TUNING if arguments.tuning else JUDGING
    kinds = arguments.kinds or list(LATER if arguments.later else KINDS)
    if arguments.write:
        for path in write(arguments.write, kinds, seeds):
            print(path, flush=True)
        return
    if arguments.store and (arguments.policy or arguments.tuning or arguments.kinds):
        parser.error("--store takes no other policies, kinds or seeds")
    require_compiled()
    labels = [*STOCK, *(arguments.policy or OURS)]
    found = {cell: run for cell, run in run_all(kinds, seeds, labels).items() if has_queue(run)}
    print(f"{len(found)} of {len(kinds) * len(LOADS) * len(seeds) * len(CACHES)} cells have a queue")
    lines = table(grouped(found, "kind" if arguments.store else arguments.by), labels)
    figure, path, mark = arguments.figure, arguments.csv, MARK
    if arguments.store:
        figure, path, mark = (None, LATER_TABLE, LATER_MARK) if arguments.later else (FIGURE, TABLE, MARK)
    show(lines, path)
    if figure:
        draw(lines, figure)
    if arguments.store:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(between(page, leaderboard(lines), mark), encoding="utf-8")


def grouped(
    found: dict[Cell, dict[str, Figures]], by: str | None
) -> list[tuple[str, list[dict[str, Figures]]]]:
    """Return all cells and, if asked for, the cells of each kind, load or engine."""
    groups = [("all", list(found.values()))]
    if by:
        cells = sorted(found, key=lambda cell: str(getattr(cell, by)))
        for key, group in groupby(cells, key=lambda cell: getattr(cell, by)):
            groups.append((str(key), [found[cell] for cell in group]))
    return groups


if __name__ == "__main__":
    main()
