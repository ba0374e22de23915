"""Measures how short the mean can be with a short tail: shortest first, under a known bound on waiting.

    python -m bench.arena.bounded [--factors 1.0 1.1 1.3 1.6] [--csv FILE]

No policy knows beforehand how long the longest wait will be.  `Bounded` is told the best stock policy's p99
in the same cell.  It lets no request wait longer than that p99 times a factor, if arrival order could keep
this bound, and serves the shortest request first within it.  This rule is greedy, so an order with a shorter
mean may exist.  It looks at what is cached, not at what the waiting requests share, so kinds with much
sharing among them are left out.  Seeds and columns are those of `bench.arena`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Final

import numpy as np

from bench.arena.cells import STOCK, Cell, Figures, has_queue, row, run_all, run_cell, show
from bench.arena.kinds import JUDGING
from bench.builds import require_compiled
from peek import AdmissionPolicy, PendingRequest
from peek.policy.base import Cycle

KINDS: Final = ("alone", "chat", "code", "lora", "mixed", "rag")
COLUMNS: Final = ("ttft", "p99", "e2e", "missed", "in 2 s")
DIAL: Final = ("peek:objective=tail", "peek")

PLANNED: Final = 24
"""Number of places that are worked out at a time; where an engine admits more in a step, the others follow in
order of arrival."""

LOOKS_BACK_S: Final = 60.0
"""Seconds over which the engine's pace is a mean."""


def shortest_within(work: list[float], slack: list[float], most: int) -> list[int]:
    """Order jobs shortest first, as far as none is late that would not be late in arrival order.

    Args:
        work: what each job takes, in order of arrival.
        slack: time until each job has to be done, in the same unit; no earlier than that of jobs before it.
        most: number of places that are worked out; all others follow in order of arrival.
    """
    left = list(range(len(work)))
    order: list[int] = []
    done = 0.0
    while left and len(order) < most:
        spare, ahead, best = np.inf, done, left[0]
        for job in left:
            if work[job] < work[best] and work[job] <= spare:
                best = job
            ahead += work[job]
            spare = min(spare, slack[job] - ahead)
        left.remove(best)
        order.append(best)
        done += work[best]
    return order + left


class Bounded(AdmissionPolicy):
    """Shortest first, but nobody waits longer than `wait_s` if arrival order could keep that."""

    @dataclass(frozen=True)
    class Options:
        wait_s: float = 20.0

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(reads_tree=False, options=options)
        self.seen = [(0.0, 0)]
        """Seconds and tokens admitted by then, of late."""

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.seen = [each for each in self.seen if each[0] >= cycle.now - LOOKS_BACK_S]
        self.seen.append((cycle.now, int(cycle.work_done)))
        since, before = self.seen[0]
        pace = (int(cycle.work_done) - before) / max(cycle.now - since, 1e-9)
        work = [float(max(1, request.num_tokens - request.cached_len)) for request in queue]
        until = cycle.now - self.options.wait_s
        slack = [(request.arrival_time - until) * pace for request in queue]
        return [queue[place] for place in shortest_within(work, slack, PLANNED)]


def label_of(found: dict[str, Figures], factor: float) -> str:
    """The label of `Bounded` for a cell, from the figures of the stock policies there."""
    return f"{__name__}:Bounded:wait_s={factor * min(found[stock]['p99'] for stock in STOCK):g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--factors", nargs="*", type=float, default=[1.0, 1.1, 1.3, 1.6])
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    arguments = parser.parse_args()
    require_compiled()
    runs = run_all(KINDS, JUDGING, [*STOCK, *DIAL])
    found: dict[Cell, dict[str, Figures]] = {cell: run for cell, run in runs.items() if has_queue(run)}
    jobs = [(cell, [label_of(run, each) for each in arguments.factors]) for cell, run in found.items()]
    with Pool() as pool:
        own = pool.map(run_cell, jobs, chunksize=1)
    names = [f"bounded by {factor:g}" for factor in arguments.factors]
    for (cell, labels), run in zip(jobs, own, strict=True):
        found[cell] |= {name: run[label] for name, label in zip(names, labels, strict=True)}
    lines = [["kind", "policy", *COLUMNS]]
    for kind in KINDS:
        cells = [run for cell, run in found.items() if cell.kind == kind]
        for label in ("spf+lru", *DIAL, *names):
            figures = row(cells, label)
            lines.append([f"{kind} ({len(cells)})", label, *(f"{figures[column]:.3f}" for column in COLUMNS)])
    show(lines, arguments.csv)


if __name__ == "__main__":
    main()
