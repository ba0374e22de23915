"""Compares a quick run with the stored reference: exit status 1 if a headline cell's hit has moved.

    python -m bench.evaluation.check build/eval.jsonl            compare
    python -m bench.evaluation.check bench/evaluation/results.jsonl --store    make these the reference

An engine that was not there is named and not compared; the simulated engines, and all runs of an engine that
was there, must be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from bench.evaluation.plans import QUICK, SIMULATED
from bench.evaluation.results import KEYS, read

REFERENCE = Path(__file__).with_name("reference.json")
TOLERANCE = 0.03
"""Hit may move by so much: 3 points."""


def hits(path: Path) -> dict[str, float]:
    """Hit of every run of the quick plan, by a readable name that begins with the engine's."""
    wanted = {run for sweep in QUICK for run in sweep.runs()}
    runs = {tuple(record[key] for key in KEYS): record for record in read(path)}
    name = "{engine} | {stream} | {policy} | {seed}"
    return {name.format(**runs[run]): round(runs[run]["hit"], 4) for run in wanted & runs.keys()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    found = hits(arguments.results)
    if arguments.store:
        REFERENCE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} runs are the reference now")
        return 0
    reference: dict[str, float] = json.loads(REFERENCE.read_text())
    absent = Counter(name.split(" | ")[0] for name in reference if name not in found)
    moved = [name for name in reference if name in found and abs(found[name] - reference[name]) > TOLERANCE]
    for name in moved:
        print(f"moved: {name}: hit {reference[name]:.3f} -> {found[name]:.3f}")
    for engine, count in sorted(absent.items()):
        print(f"not compared: {count} runs of {engine}")
    print(f"{len(reference) - absent.total()} of {len(reference)} runs compared, {len(moved)} moved")
    # An engine is there or not; a run that was cut short is no verdict.
    begun = {*(name.split(" | ")[0] for name in found), *SIMULATED}
    return 1 if moved or begun & absent.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
