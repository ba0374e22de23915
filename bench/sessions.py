"""Runs recorded sessions in a closed loop; compares each policy with the best stock policy of each column.

    python -m bench.sessions FILE.sessions.jsonl.xz [FILE ...] [--sessions 150]

Columns, engines and loads are those of `bench.arena.cells`, with two sizes of cache: twelve cells per file,
except cells without a queue.  The output is CSV on standard output.  In the row "peek, unnamed" requests do
not name their sessions.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.arena.cells import STOCK, Figures, figures_of, has_queue, table
from bench.arena.kinds import ARENAS, LOADS, at_load
from bench.builds import require_compiled
from peek.simulation.cost import cost_model_for
from peek.simulation.engines import Job
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.trace import read_sessions
from peek.simulation.workload import Workload

OURS: Final = ("peek:objective=tail", "peek", "peek:objective=mean", "peek:objective=target")
UNNAMED: Final = "peek, unnamed"
SEED: Final = 901


def run_cell(job: tuple[Workload, float, str]) -> dict[str, Figures]:
    """Return the figures of each policy in a cell; only of the stock policies where nothing waits."""
    recorded, load, cache = job
    workload = at_load(recorded, load, cache)

    def run(asked: Workload, label: str, watch: Callable[[list[Job]], None] | None = None) -> Figures:
        return figures_of(simulate(asked, label, cache, cost=cost_model_for("w1c"), watch=watch))

    found = {label: run(workload, label) for label in STOCK}
    if has_queue(found):
        found |= {label: run(workload, label) for label in OURS}
        nameless = replace(workload, requests=[replace(each, session="") for each in workload.requests])
        jobs: list[Job] = []
        found[UNNAMED] = run(nameless, "peek", jobs.extend)
        found[UNNAMED]["jct"] = mean_job_s(jobs, workload)
    return found


def mean_job_s(jobs: Sequence[Job], workload: Workload) -> float:
    """Return the mean seconds from a session's first arrival to its last answer; the workload names them."""
    sessions = {each.request_id: each.session for each in workload.requests}
    spans: dict[str, list[float]] = {}
    for job in jobs:
        spans.setdefault(sessions[job.request_id], []).extend((job.arrival_s, job.finished_s))
    return fmean(max(times) - min(times) for times in spans.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--sessions", type=int, default=150, help="of each file, its first ones")
    arguments = parser.parse_args()
    require_compiled()
    groups: dict[str, list[dict[str, Figures]]] = {}
    jobs: list[tuple[Workload, float, str]] = []
    for path, arena, load, cache in product(arguments.files, ARENAS, LOADS, CACHES):
        recorded = read_sessions(path, rate=1.0, seed=SEED, limit=arguments.sessions)
        jobs.append((replace(recorded, arena_tokens=arena), load, cache))
    with Pool() as pool:
        for (workload, *_), found in zip(jobs, pool.imap(run_cell, jobs), strict=True):
            if has_queue(found):
                groups.setdefault(workload.name, []).append(found)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows(table(groups.items(), [*STOCK, *OURS, UNNAMED]))


if __name__ == "__main__":
    main()
