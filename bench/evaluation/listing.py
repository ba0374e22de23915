"""The complete tables of the evaluation: files in docs/data, and on a terminal.

    python -m bench.evaluation.listing losses              every figure that `peek` loses
    python -m bench.evaluation.listing cells sglang w1c    rows that contain these words

The pages have summaries and link to the files.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.evaluation import plans
from bench.evaluation.cells import Cell, Results, title
from bench.evaluation.plans import HEADLINE, POLICIES, SEEDS
from bench.evaluation.results import RESULTS, read
from bench.evaluation.tables import CROWDS, compared
from bench.evaluation.traffic import TRAFFIC

MEANS = (
    "hit", "rps", "ttft", "ttft_p50", "ttft_p99", "e2e", "e2e_p99",
    "tpot_ms", "itl_ms", "wait_max", "preemptions", "in_time", "job", "watched", "watched_p99",
    "cpu_us",
)  # fmt: skip
SPREAD = ("ttft", "ttft_p99")
"""Figures that are listed with their smallest and largest value of any seed."""
PAPER = ("rps", "hit", "ttft", "e2e", "tpot", "itl")
Row = list[str]


# -- cells ----------------------------------------------------------------------------------------------


def cells(fresh: Results, paper: Results) -> Iterator[Row]:
    """Yield a row for each policy of each cell: first the fresh seeds, then the paper's with its figures."""
    yield [
        *("engine", "stream", "seeds", "policy"),
        *MEANS,
        *(f"{name}_{end}" for name in SPREAD for end in ("low", "high")),
        *(f"paper_{name}" for name in PAPER),
        *("paper_outstanding", "paper_answer_tokens"),
    ]
    order = {stream: place for place, stream in enumerate(HEADLINE)}
    for results, which in ((fresh, "fresh"), (paper, "paper's")):
        for cell in sorted(
            results.ran.values(), key=lambda cell: (order.get(cell.stream, len(order)), cell.stream)
        ):
            for policy in POLICIES:
                if cell.has(policy):
                    yield cell_row(cell, policy, which)


def cell_row(cell: Cell, policy: str, which: str) -> Row:
    """Return a row in the columns of `cells`; an absent figure is empty."""
    runs = [cell.runs[policy][seed] for seed in cell.seeds]
    means = [written(cell.mean(policy, name)) if name in runs[0] else "" for name in MEANS]
    ends = [written(pick(run[name] for run in runs)) for name in SPREAD for pick in (min, max)]
    theirs = cell.paper(policy) if set(cell.seeds) <= set(SEEDS) else None
    stated = [written(getattr(theirs, name) or 0.0) if theirs else "" for name in PAPER]
    clients = ["", ""]
    if theirs:  # Little's law, and what is left of E2E after the first token
        clients = [
            written(theirs.e2e * theirs.rps),
            written(1e3 * (theirs.e2e - theirs.ttft) / theirs.tpot),
        ]
    return [cell.engine, cell.stream, f"{len(runs)} {which}", policy, *means, *ends, *stated, *clients]


def written(value: float) -> str:
    """Write a number with four digits."""
    return f"{value:.4g}"


# -- losses, and requests that others crowd out ---------------------------------------------------------


def losses(fresh: Results, paper: Results) -> Iterator[Row]:
    """Yield every lost figure: against the best stock policy, then against the engines' default."""
    del paper
    yield [
        *("against", "stream", "engine", "figure", "peek_s", "other_s"),
        *("change_percent", "seed_low", "seed_high", "policy"),
    ]
    for against, among in (("best stock policy", plans.STOCKS), ("default", (plans.DEFAULT,))):
        for found in compared(fresh, HEADLINE, plans.ALL, among):
            if found.lost:
                cell, figure, versus = found.cell, found.figure, found.versus
                times = (written(cell.mean(policy, figure)) for policy in ("peek", versus.other))
                changes = (versus.ratio, min(versus.seeds), max(versus.seeds))
                yield [
                    *(against, cell.title, cell.engine_name, figure, *times),
                    *(f"{100 * (ratio - 1):+.1f}" for ratio in changes),
                    versus.other,
                ]


def crowded_out(fresh: Results, paper: Results) -> Iterator[Row]:
    """Yield the TTFT of requests that others crowd out, and of all, under every policy."""
    del paper
    figures = ("watched", "watched_p99", "ttft", "ttft_p99")
    yield ["stream", "engine", "policy", *figures]
    for cell in fresh.cells(CROWDS, plans.ALL, "peek"):
        for policy in filter(cell.has, POLICIES):
            yield [
                *(cell.title, cell.engine_name, policy),
                *(written(cell.mean(policy, name)) for name in figures),
            ]


# -- batches and streams --------------------------------------------------------------------------------


def batches(fresh: Results, paper: Results) -> Iterator[Row]:
    """Yield each batch under each policy; throughput is divided by that of arrival order."""
    del paper
    yield ["batch", "engine", "policy", "throughput", "hit", "e2e", "e2e_p99"]
    for cell in fresh.cells((*plans.BATCH, *plans.CONTROL), plans.SIMULATED, *plans.OFFLINE):
        for policy in plans.OFFLINE:
            faster = cell.ratio(policy, plans.DEFAULT, "rps")
            figures = (cell.mean(policy, name) for name in ("hit", "e2e", "e2e_p99"))
            yield [cell.title, cell.engine_name, policy, *map(written, (faster, *figures))]


def streams(fresh: Results, paper: Results) -> Iterator[Row]:
    """Yield the contents of the streams of traffic.py."""
    del fresh, paper
    yield ["stream", "who", "a second", "prefixes x tokens", "own tokens", "answer"]
    for kind, found in TRAFFIC.items():
        for source in found.sources:
            shared = f"{source.prefixes} x {source.prefix:,}" if source.prefixes else ""
            if source.copies:
                shared = f"{source.prefix:,}, new for every {source.copies} requests"
            if source.drift_s:
                shared += (
                    f" in the mean, behind {source.head} of all; favourites move every {source.drift_s:g} s"
                )
            own = f"{source.own:,}"
            if source.turns > 1:
                own += f", + {source.turn:,} a turn, {source.turns} turns, {source.pause_s:g} s between two"
            watched = " (kept apart)" if source.name == found.watched else ""
            rate = f"{source.per_s:g}" if source.per_s else f"{found.count:,}, {found.jobs} at a time"
            if source.burst > 1:
                rate += f", {source.burst} at a time"
            yield [title(kind), source.name + watched, rate, shared, own, f"{source.output:,}"]


# -- all of them ----------------------------------------------------------------------------------------

LISTINGS: dict[str, Callable[[Results, Results], Iterable[Row]]] = {
    "cells": cells,
    "losses": losses,
    "crowded_out": crowded_out,
    "batches": batches,
    "streams": streams,
}


def parted(runs: Iterable[dict[str, object]]) -> tuple[Results, Results]:
    """Return the runs on fresh seeds, and the runs on the paper's."""
    records = list(runs)
    return (
        Results(run for run in records if run["seed"] not in SEEDS),
        Results(run for run in records if run["seed"] in SEEDS),
    )


def as_csv(rows: Iterable[Row]) -> str:
    """Return the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def chosen(rows: Iterable[Row], words: Iterable[str]) -> list[Row]:
    """Return the heading, and the rows that have all of these words."""
    head, *others = rows
    wanted = [word.lower() for word in words]
    return [head, *(row for row in others if all(word in " ".join(row).lower() for word in wanted))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", choices=LISTINGS)
    parser.add_argument("words", nargs="*", help="a row must have all of them")
    parser.add_argument("--runs", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = chosen(LISTINGS[arguments.table](*parted(read(arguments.runs))), arguments.words)
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    for row in found:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
