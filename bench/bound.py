"""Measures cost and gain of the bound on waiting, by the share of the overdue lane.

    python -m bench.bound [--shares 0 0.05 0.15 0.25 0.5] [--seeds 31 53] [--plot bound.svg]

The engines are simulated, with the step times of the evaluation.  The cost is the change of mean TTFT in W1
heavy against no lane, in per cent.  The gain shows in floods without tenants' names: the mean TTFT of the
other requests, divided by that in arrival order.  A share of 0 stands for no lane.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import FAMILY, FLOODS, NAMES, SIMULATED, W1_HEAVY
from bench.evaluation.plots import TAIL, WIDTH, save
from bench.evaluation.record import record
from bench.evaluation.streams import build

Ratios = dict[tuple[str, str], list[float]]
"""By stream and engine, the ratio to the base at each share."""


def label_of(share: float) -> str:
    """Return the label of the default policy with another share; 0 for no lane."""
    return f"peek:fair_share={share:g}" if share else "peek:grace_tokens=inf"


def mean_of(engine: str, stream: str, label: str, seeds: list[int], figure: str) -> float:
    found = [
        record(engine, stream, build(stream, seed, FAMILY[engine], None), label)[figure] for seed in seeds
    ]
    return float(np.mean(found))


def table(shares: list[float], seeds: list[int]) -> Ratios:
    """Print the table, and return its ratios."""
    print("| stream, engine | " + " | ".join(f"{share:g}" for share in shares) + " |")
    print("|---" * (len(shares) + 1) + "|")
    ratios: Ratios = {}
    for stream in (*W1_HEAVY, *FLOODS):
        flood = stream in FLOODS
        used, figure = (seeds[:1], "watched") if flood else (seeds, "ttft")
        for engine in SIMULATED:
            base = mean_of(engine, stream, "fcfs+lru" if flood else label_of(0.0), used, figure)
            found = [mean_of(engine, stream, label_of(share), used, figure) / base for share in shares]
            ratios[stream, engine] = found
            cells = [f"x {ratio:.1f}" if flood else f"{100 * (ratio - 1):+.0f} %" for ratio in found]
            name = f"{stream}, {engine.removeprefix('simulated-')}"
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return ratios


def draw(ratios: Ratios, shares: list[float], path: Path) -> None:
    """Draw cost against gain: a line for each flood, a point on it for each share."""
    figure, places = plt.subplots(1, len(SIMULATED), figsize=(WIDTH, 2.7), sharey=True)
    for place, engine in zip(places, SIMULATED, strict=True):
        price = [
            100.0 * (max(ratios[stream, engine][at] for stream in W1_HEAVY) - 1.0)
            for at in range(len(shares))
        ]
        for stream, marker in zip(FLOODS, "osD", strict=True):
            waits = ratios[stream, engine]
            place.plot(price, waits, marker=marker, ms=4, lw=1.2, label=stream.partition(":")[0])
        for share, x, y in zip(shares, price, ratios[FLOODS[0], engine], strict=True):
            said = f"{share:g}" if share else "no lane"
            place.annotate(said, (x, y), xytext=(-3, -11), textcoords="offset points", ha="right")
        place.set(title=NAMES[engine], xlabel="price: worst W1 heavy cell's mean TTFT, %")
        place.margins(x=0.18)
        place.axhline(1.0, color=TAIL, lw=0.8)
    places[0].set_ylim(
        0.9, 1.05 * max(max(ratios[stream, engine]) for stream in FLOODS for engine in SIMULATED)
    )
    places[0].set_ylabel("others' mean TTFT,\ntimes arrival order's")
    places[0].legend(frameon=False, fontsize=7)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.0, 0.05, 0.15, 0.25, 0.5])
    parser.add_argument("--seeds", type=int, nargs="*", default=[31, 53])
    parser.add_argument("--plot", type=Path, default=None)
    arguments = parser.parse_args()
    require_compiled()
    ratios = table(arguments.shares, arguments.seeds)
    if arguments.plot is not None:
        draw(ratios, arguments.shares, arguments.plot)


if __name__ == "__main__":
    main()
