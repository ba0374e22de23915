"""Measures the gain of learned answer lengths if the answers of one template differ in length.

    python -m bench.answers [--cells w3b w2b] [--sigmas 0 0.5 1] [--seeds 31 53 97]

In the paper's cells W2 B and W3 B all answers of a template have one length, which is easiest to learn.  Here
each answer's length is drawn anew: log-normal, with a deviation of sigma and the template's length as mean.
The engines are simulated, with the step times of the evaluation.  Figures are mean and p99 TTFT of `peek`, in
per cent of difference to the best stock mean and the best stock p99; `!` marks cells in which a stock policy
beats it on both.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from random import Random
from statistics import mean

from bench.builds import require_compiled
from bench.evaluation.plans import FAMILY, SIMULATED
from bench.evaluation.record import record
from peek.simulation.cells import cell
from peek.simulation.workload import Workload

STOCK = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru")
LONGEST = 8192
"""Upper bound of an answer, tokens."""

Point = tuple[float, float]


def spread(base: Workload, sigma: float) -> Workload:
    """Return the same requests with answer lengths drawn anew."""
    rng = Random(base.seed)
    requests = []
    for request in base.requests:
        drawn = request.output_tokens * rng.lognormvariate(-sigma * sigma / 2.0, sigma)
        requests.append(replace(request, output_tokens=min(LONGEST, max(1, round(drawn)))))
    return replace(base, requests=requests)


def point(engine: str, name: str, sigma: float, seeds: list[int], policy: str) -> Point:
    """Return mean and p99 TTFT in seconds, averaged over the seeds."""
    runs = []
    for seed in seeds:
        workload = spread(cell(name, "heavy", seed, FAMILY[engine]), sigma)
        runs.append(record(engine, f"{name}:heavy", [workload], policy))
    return mean(run["ttft"] for run in runs), mean(run["ttft_p99"] for run in runs)


def row(engine: str, name: str, sigmas: list[float], seeds: list[int]) -> str:
    cells = []
    for sigma in sigmas:
        stock = [point(engine, name, sigma, seeds, policy) for policy in STOCK]
        ours = point(engine, name, sigma, seeds, "peek")
        off = [100.0 * (ours[i] / min(each[i] for each in stock) - 1.0) for i in (0, 1)]
        beaten = any(all(each[i] * 1.02 < ours[i] for i in (0, 1)) for each in stock)
        cells.append(f"{off[0]:+.0f} / {off[1]:+.0f}{' !' if beaten else ''}")
    return f"| {name}, {engine.removeprefix('simulated-')} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="*", default=["w3b", "w2b"])
    parser.add_argument("--sigmas", nargs="*", type=float, default=[0.0, 0.5, 1.0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[31, 53, 97])
    arguments = parser.parse_args()
    require_compiled()
    print("| cell, engine | " + " | ".join(f"sigma {sigma:g}" for sigma in arguments.sigmas) + " |")
    print("|---" * (len(arguments.sigmas) + 1) + "|", flush=True)
    for name in arguments.cells:
        for engine in SIMULATED:
            print(row(engine, name, arguments.sigmas, arguments.seeds), flush=True)


if __name__ == "__main__":
    main()
