"""All cells as CSV, in a page with a table that sorts and filters itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from bench.evaluation.cells import Cell, Results
from bench.evaluation.plans import HEADLINE, POLICIES, SEEDS

MEANS = (
    "hit", "rps", "ttft", "ttft_p50", "ttft_p99", "e2e", "e2e_p99",
    "tpot_ms", "itl_ms", "wait_max", "preemptions", "watched", "watched_p99",
    "cpu_us",
)  # fmt: skip
SPREAD = ("ttft", "ttft_p99")
"""Figures whose smallest and largest of any seed are there, too."""
PAPER = ("rps", "hit", "ttft", "e2e", "tpot", "itl")
HEAD = (
    *("engine", "stream", "seeds", "policy"),
    *MEANS,
    *(f"{name}_{end}" for name in SPREAD for end in ("low", "high")),
    *(f"paper_{name}" for name in PAPER),
)


def rows(fresh: Results, paper: Results) -> Iterator[list[str]]:
    """A line for each policy of each cell: first the fresh seeds, then the paper's with its figures."""
    for results, which in ((fresh, "fresh"), (paper, "paper's")):
        order = {stream: place for place, stream in enumerate(HEADLINE)}
        for cell in sorted(
            results.ran.values(), key=lambda cell: (order.get(cell.stream, len(order)), cell.stream)
        ):
            for policy in POLICIES:
                if cell.has(policy):
                    yield row(cell, policy, which)


def place(cell: Cell) -> tuple[int, str, str]:
    """Where a cell stands in the table: the headline's first."""
    known = HEADLINE.index(cell.stream) if cell.stream in HEADLINE else len(HEADLINE)
    return known, cell.stream, cell.engine


def row(cell: Cell, policy: str, which: str) -> list[str]:
    """In the columns of `HEAD`; what there is none of is empty."""
    runs = [cell.runs[policy][seed] for seed in cell.seeds]
    means = [written(cell.mean(policy, name)) if name in runs[0] else "" for name in MEANS]
    ends = [written(pick(run[name] for run in runs)) for name in SPREAD for pick in (min, max)]
    theirs = cell.paper(policy) if set(cell.seeds) <= set(SEEDS) else None
    stated = [written(getattr(theirs, name) or 0.0) if theirs else "" for name in PAPER]
    return [cell.engine, cell.stream, f"{len(runs)} {which}", policy, *means, *ends, *stated]


def written(value: float) -> str:
    """With four digits."""
    return f"{value:.4g}"


def as_csv(fresh: Results, paper: Results) -> str:
    """All rows below `HEAD`."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(HEAD)
    out.writerows(rows(fresh, paper))
    return text.getvalue()


def as_page(text: str) -> str:
    """The page, with the CSV inside of it: opened from a folder, it may not read another file."""
    page = Path(__file__).with_name("pages") / "evaluation_cells.md"
    return page.read_text().replace("{csv}\n", text)
