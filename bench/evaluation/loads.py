"""Computes what the paper's "moderate" and "heavy" loads are on our clock, for the titles of its cells.

    python -m bench.evaluation.loads --data FOLDER     writes loads.json (two minutes)

Loads are relative to `bench.arena.kinds.capacity`, the rate that an engine serves in arrival order.  At a
load of 5 the queue grows to four fifths of all requests.  Both simulated engines are measured, the
SGLang-like one first.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.arena.kinds import capacity
from bench.evaluation.plans import FAMILY, HEADLINE, OVER_LOAD, SEEDS, SIMULATED, parts_of
from bench.evaluation.streams import build
from peek.simulation.workload import Workload

LOADS: Final = Path(__file__).with_name("loads.json")
"""By stream of the paper: its load on each simulated engine."""


def load_of(workload: Workload, cache: str) -> float:
    """Return the load of a workload on a simulated engine, in two digits."""
    return float(f"{1.0 / capacity(replace(workload, warmup=0), cache):.2g}")


def is_open(stream: str) -> bool:
    """Whether a stream is a cell of the paper whose requests arrive at a rate, whatever has been answered."""
    kind, load, form, _ = parts_of(stream)
    return load in ("moderate", "heavy") and kind[:2] != "w3" and form != "window"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the recorded data, see streams.py")
    data = parser.parse_args().data
    streams = dict.fromkeys([*HEADLINE, *(stream for curve in OVER_LOAD.values() for stream in curve)])
    found: dict[str, list[float]] = {}
    for stream in filter(is_open, streams):
        found[stream] = []
        for engine in SIMULATED:
            (workload,) = build(stream, SEEDS[0], FAMILY[engine], data)
            found[stream].append(load_of(workload, engine.removeprefix("simulated-")))
        print(stream, found[stream], flush=True)
    LOADS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
