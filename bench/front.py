"""Compares policies with the best stock policies in mean and p99 TTFT.

    python -m bench.front [--engines simulated-radix simulated-blocks] [--seeds 31 53 97] [--data FOLDER]

Step times are the evaluation's.  A real engine, `vllm` or `sglang`, needs its environment's interpreter and
its folder in tests/ on the path.  Each cell shows mean and p99 TTFT, averaged over the seeds, in per cent of
difference to the best stock mean and the best stock p99.  These two mostly belong to different policies.  `!`
marks a policy that some stock policy beats on both by more than 2 %.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np

from bench.evaluation.plans import ALL, FAMILY, SIMULATED
from bench.evaluation.policies import EngineMissing
from bench.evaluation.record import record
from bench.evaluation.streams import build
from bench.recorded import RecordingMissing

STOCK = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru")
OURS = ("peek", "peek:objective=tail", "peek:objective=mean")
STREAMS = (
    "w1a:heavy",
    "w1c:moderate",
    "w1c:heavy",
    "w1d:heavy",
    "w1a:heavy:window",
    "w1c:heavy:window",
    "w2b:heavy",
    "w3b:heavy",
    "w3c:heavy",
    "w4:heavy",
    "w4-shared:heavy",
    "w5-short:heavy",
    "w5-long:heavy",
    "azure-code:1.0",
    "agents-1:32k",
)
MARGIN = 0.02

Point = tuple[float, float]
"""Mean and p99 TTFT in seconds."""


def mean_point(engine: str, stream: str, label: str, seeds: list[int], data: Path | None) -> Point:
    points = []
    for seed in seeds:
        entry = record(engine, stream, build(stream, seed, FAMILY[engine], data), label)
        points.append((entry["ttft"], entry["ttft_p99"]))
    mean, p99 = np.mean(points, axis=0)
    return float(mean), float(p99)


def row(engine: str, stream: str, arguments: argparse.Namespace) -> str:
    def point(label: str) -> Point:
        return mean_point(engine, stream, label, arguments.seeds, arguments.data)

    stock = [point(label) for label in STOCK]
    best_mean, best_p99 = (min(column) for column in zip(*stock, strict=True))
    cells = [f"{best_mean:.1f} / {best_p99:.0f}"]
    for label in arguments.policies:
        mean, p99 = point(label)
        beaten = any(m < mean * (1 - MARGIN) and p < p99 * (1 - MARGIN) for m, p in stock)
        mark = " !" if beaten else ""
        cells.append(f"{100 * (mean / best_mean - 1):+.0f} / {100 * (p99 / best_p99 - 1):+.0f}{mark}")
    name = f"{stream.replace(':', ' ')}, {engine.removeprefix('simulated-')}"
    return "| " + " | ".join([name, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engines", nargs="*", choices=ALL, default=list(SIMULATED))
    parser.add_argument("--policies", nargs="*", default=list(OURS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[31, 53, 97])
    parser.add_argument("--streams", nargs="*", default=list(STREAMS))
    parser.add_argument("--data", type=Path, default=None, help="folder with the recorded traffic")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # engines warn a lot about a machine without a GPU
    print("| cell | best stock, s | " + " | ".join(arguments.policies) + " |")
    print("|---" * (len(arguments.policies) + 2) + "|")
    for stream in arguments.streams:
        for engine in arguments.engines:
            try:
                print(row(engine, stream, arguments), flush=True)
            except (RecordingMissing, EngineMissing) as error:
                print(f"left out: {engine} {stream}: {error}", flush=True)


if __name__ == "__main__":
    main()
