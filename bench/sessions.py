"""Recorded sessions in a closed loop: how long whole sessions take under each policy.

    python -m bench.sessions FILE.sessions.jsonl.xz [--sessions 150] [--rates 2 4 6] [--arenas 60000 160000]

CSV on standard output: job time, TTFT, E2E, hit and first tokens within 2 s.  `, unnamed` behind a policy is
the same without the sessions' names.
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

from peek import backend
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate
from peek.simulation.trace import read_sessions
from peek.simulation.workload import Workload

POLICIES: Final = (
    "fcfs+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru", "peek", "peek, unnamed",
    "peek:objective=mean", "peek:objective=target",
)  # fmt: skip


def figures(job: tuple[Workload, int, str, str]) -> list[str]:
    """One row: job mean and p99, TTFT mean and p99, E2E mean, hit, share within 2 s."""
    workload, arena_tokens, cache, policy = job
    label, _, unnamed = policy.partition(", ")
    timed: dict[str, float] = {}
    run: dict[str, Any]
    requests = workload.requests
    if unnamed:
        sessions = {each.request_id: each.session for each in requests}
        requests = [replace(each, session="") for each in requests]

        def watch(jobs: list[Any]) -> None:
            spans: dict[str, list[float]] = {}
            for each in jobs:
                spans.setdefault(sessions[each.request_id], []).extend((each.arrival_s, each.finished_s))
            lasted = sorted(max(times) - min(times) for times in spans.values())
            timed.update(mean=sum(lasted) / len(lasted), p99=lasted[int(0.99 * (len(lasted) - 1))])

    else:
        watch = None  # type: ignore[assignment]
    run = simulate(
        replace(workload, requests=requests, arena_tokens=arena_tokens), label, cache,
        cost=cost_model_for("w1c"), watch=watch,
    )  # fmt: skip
    job_s = timed or run["job_s"]
    return [f"{value:.4g}" for value in (
        job_s["mean"], job_s["p99"], run["ttft_s"]["mean"], run["ttft_s"]["p99"], run["e2e_s"]["mean"],
        run["cache_hit"], run["goodput"][0]["share"],
    )]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sessions", type=int, default=150)
    parser.add_argument("--rates", nargs="*", type=float, default=[2.0, 4.0, 6.0])
    parser.add_argument("--arenas", nargs="*", type=int, default=[60_000, 160_000])
    parser.add_argument("--seed", type=int, default=901)
    arguments = parser.parse_args()
    assert backend() == "compiled", "build it first: make build"
    loads = {
        rate: read_sessions(arguments.file, rate=rate, seed=arguments.seed, limit=arguments.sessions)
        for rate in arguments.rates
    }
    cells = list(product(CACHES, arguments.arenas, arguments.rates, POLICIES))
    jobs = [(loads[rate], arena_tokens, cache, policy) for cache, arena_tokens, rate, policy in cells]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["engine", "arena", "sessions/s", "policy", "job mean s", "job p99 s", "TTFT mean s",
                     "TTFT p99 s", "E2E mean s", "hit", "in 2 s"])  # fmt: skip
    with Pool() as pool:
        for cell, found in zip(cells, pool.imap(figures, jobs), strict=True):
            writer.writerow([*cell, *found])


if __name__ == "__main__":
    main()
