"""Compares a quick run with the stored reference: exit status 1 if a headline cell's hit has moved.

    python bench/serving/check.py build/eval.jsonl            compare
    python bench/serving/check.py bench/serving/results.jsonl --store    make these the reference

An engine that was not there is named and not compared; the simulated engines, and all runs of an engine that
was there, must be.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from plans import QUICK, SIMULATED

REFERENCE = Path(__file__).resolve().parent / "reference.json"
TOLERANCE = 0.03
"""Hit may move by so much: 3 points."""


def hits(path: Path) -> dict[str, float]:
    """Hit of every run of the quick plan, by a readable name."""
    wanted = {
        (engine, stream, policy, seed)
        for batch in QUICK
        for engine in batch.engines
        for stream in batch.streams
        for policy in batch.policies
        for seed in batch.seeds
    }
    found = {}
    for line in path.read_text().splitlines():
        run = json.loads(line)
        if (run["engine"], run["stream"], run["policy"], run["seed"]) not in wanted:
            continue
        name = f"{run['engine']} | {run['stream']} | {run['policy']} | {run['seed']}"
        found[name] = round(run["hit"], 4)
    return found


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
    absent = [name for name in reference if name not in found]
    moved = [name for name in reference if name in found and abs(found[name] - reference[name]) > TOLERANCE]
    for name in moved:
        print(f"moved: {name}: hit {reference[name]:.3f} -> {found[name]:.3f}")
    for engine in sorted({name.split(" | ")[0] for name in absent}):
        count = sum(name.startswith(engine + " |") for name in absent)
        print(f"not compared: {count} runs of {engine}")
    # An engine is there or not; a run that was cut short is no verdict.
    begun = {name.split(" | ")[0] for name in found} | set(SIMULATED)
    blind = [name for name in absent if name.split(" | ")[0] in begun]
    print(f"{len(reference) - len(absent)} of {len(reference)} runs compared, {len(moved)} moved")
    return 1 if moved or blind else 0


if __name__ == "__main__":
    sys.exit(main())
