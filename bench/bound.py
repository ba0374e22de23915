"""What the bound against arrival order costs and what it buys, by the share of the overdue lane.

    python -m bench.bound [--shares 0 0.05 0.15 0.25 0.5] [--seeds 31 53]

Simulated engines, step times of the evaluation.  For W1 heavy the change of the mean TTFT against no lane at
all, in per cent; for floods in which nobody is named the mean TTFT of the others, as so many times what it is
in arrival order.  A share of 0 stands for no lane.
"""

from __future__ import annotations

import argparse

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import FAMILY, FLOODS, SIMULATED, W1_HEAVY
from bench.evaluation.policies import SETTINGS
from bench.evaluation.record import record
from bench.evaluation.streams import build


def label_of(share: float) -> str:
    """The evaluation's name for the default policy with another share."""
    label = f"peek, share {share:g}"
    SETTINGS[label] = {"fair_share": share} if share else {"lanes": "none"}
    return label


def mean_of(engine: str, stream: str, label: str, seeds: list[int], figure: str) -> float:
    found = [
        record(engine, stream, build(stream, seed, FAMILY[engine], None), label)[figure] for seed in seeds
    ]
    return float(np.mean(found))


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.0, 0.05, 0.15, 0.25, 0.5])
    parser.add_argument("--seeds", type=int, nargs="*", default=[31, 53])
    arguments = parser.parse_args()
    print("| stream, engine | " + " | ".join(f"{share:g}" for share in arguments.shares) + " |")
    print("|---" * (len(arguments.shares) + 1) + "|")
    for stream in (*W1_HEAVY, *FLOODS):
        flood = stream in FLOODS
        seeds, figure = (arguments.seeds[:1], "watched") if flood else (arguments.seeds, "ttft")
        for engine in SIMULATED:
            base = mean_of(engine, stream, "fcfs+lru" if flood else label_of(0.0), seeds, figure)
            found = [
                mean_of(engine, stream, label_of(share), seeds, figure) / base for share in arguments.shares
            ]
            cells = [f"x {ratio:.1f}" if flood else f"{100 * (ratio - 1):+.0f} %" for ratio in found]
            name = f"{stream}, {engine.removeprefix('simulated-')}"
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
