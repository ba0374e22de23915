"""Stores the results of a run, if it is a full one.

    python -m bench.evaluation.store build/eval-full.csv [--into bench/evaluation/results.csv]

A run that lacks an engine, recorded data or anything else of the full plan is not stored: exit status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from bench.evaluation.plans import ALL, FULL
from bench.evaluation.results import RESULTS, fit_of, missing, read, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--into", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    records = read(arguments.run)
    absent = missing(records, FULL, {engine: fit_of(engine) for engine in ALL})
    if absent:
        gaps = Counter(engine for engine, *_ in absent)
        print(f"not stored, the full plan has more runs: {', '.join(f'{n} of {e}' for e, n in gaps.items())}")
        return 1
    write(arguments.into, records)
    print(f"{len(records)} runs are in {arguments.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
