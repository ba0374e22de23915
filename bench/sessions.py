"""Runs recorded sessions in a closed loop; compares each policy with the best stock policy of each column.

    python -m bench.sessions FILE.sessions.jsonl.xz [FILE ...] [--sessions 150]

Columns, engines and loads are those of `bench.arena.cells`, with two sizes of cache: twelve cells per file,
except cells without a queue.  The output is CSV on standard output.  `, unnamed` after a policy means that
requests do not name their sessions.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

from bench.arena.cells import STOCK, Figures, figures_of, has_queue, table
from bench.arena.kinds import ARENAS, LOADS, at_load
from bench.builds import require_compiled
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.trace import read_sessions
from peek.simulation.workload import Workload

UNNAMED: Final = ", unnamed"
OURS: Final = (
    "peek:objective=tail",
    "peek",
    f"peek{UNNAMED}",
    "peek:objective=mean",
    "peek:objective=target",
)
SEED: Final = 901


def run_cell(job: tuple[Workload, float, str]) -> dict[str, Figures]:
    """Return the figures of each policy in a cell; without a queue those of the stock policies only."""
    recorded, load, cache = job
    workload = at_load(recorded, load, cache)
    cost = cost_model_for("w1c")
    found = {label: figures_of(simulate(workload, label, cache, cost=cost)) for label in STOCK}
    if not has_queue(found):
        return found
    names = {each.request_id: each.session for each in workload.requests}
    nameless = replace(workload, requests=[replace(each, session="") for each in workload.requests])
    for label in OURS:
        spans: dict[str, list[float]] = {}

        def watch(jobs: list[Any], spans: dict[str, list[float]] = spans) -> None:
            for each in jobs:
                spans.setdefault(names[each.request_id], []).extend((each.arrival_s, each.finished_s))

        asked = nameless if label.endswith(UNNAMED) else workload
        run = simulate(asked, label.removesuffix(UNNAMED), cache, cost=cost, watch=watch)
        found[label] = figures_of(run)
        if any(names.values()):
            lasted = [max(times) - min(times) for times in spans.values()]
            found[label]["jct"] = sum(lasted) / len(lasted)
    return found


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
    writer.writerows(table(groups.items(), [*STOCK, *OURS]))


if __name__ == "__main__":
    main()
