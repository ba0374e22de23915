"""Measures what an order gains if clients wait for their answers, in short runs and in long ones.

    python -m bench.arena.windows [--outstanding 48] [--csv FILE]

Each client sends its next request when it has its answer, so the number of outstanding requests is constant.
By Little's law the mean wait is then the number of waiting requests over the throughput: in the long run an
order shortens the mean only by computing less.  In a short run an order can leave large requests for the
end, where they delay no later request.  Kinds without sessions run on both simulated engines, as in
`bench.arena`.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Final, NamedTuple

from bench.arena.kinds import JUDGING, OUTSTANDING, REQUESTS, build
from bench.builds import require_compiled
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate

KINDS: Final = ("alone", "mixed", "templates", "documents")
LENGTHS: Final = (REQUESTS, 8 * REQUESTS)
POLICIES: Final = (
    "fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", "peek:objective=tail", "peek", "peek:objective=mean"
)  # fmt: skip


class Run(NamedTuple):
    """One line of the table; times in seconds, throughput in requests a second."""

    kind: str
    engine: str
    requests: int
    outstanding: int
    policy: str
    mean_s: float
    p99_s: float
    e2e_s: float
    in_2_s: float
    throughput_rps: float


def run(job: tuple[str, str, int, int, str]) -> Run:
    """Run one kind of traffic with as many requests and outstanding ones as `job` says."""
    kind, engine, requests, outstanding, policy = job
    built = build(kind, JUDGING[0], wanted=requests)
    window = replace(
        built,
        requests=[replace(request, arrival_s=0.0, tenant="") for request in built.requests],
        client_concurrency=outstanding,
        warmup=requests // 8,
    )
    found = simulate(window, policy, engine, cost=cost_model_for("w1c"))
    return Run(
        kind, engine, requests, outstanding, policy,
        round(found["ttft_s"]["mean"], 3), round(found["ttft_s"]["p99"], 2), round(found["e2e_s"]["mean"], 3),
        round(found["goodput"][0]["share"], 3), round(found["throughput_rps"], 3),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outstanding", type=int, default=OUTSTANDING, help="requests of all clients")
    parser.add_argument("--csv", type=Path, help="write the table")
    args = parser.parse_args()
    require_compiled()
    jobs = list(product(KINDS, CACHES, LENGTHS, [args.outstanding], POLICIES))
    with Pool() as pool:
        rows = pool.map(run, jobs, chunksize=1)
    print("| " + " | ".join(Run._fields) + " |\n" + "|---" * len(Run._fields) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows([Run._fields, *rows])


if __name__ == "__main__":
    main()
