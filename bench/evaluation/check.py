"""Compares a quick run with the reference: exit status 1 if a figure moved, a lead is lost or runs lack.

    python -m bench.evaluation.check build/eval.csv            compare
    python -m bench.evaluation.check bench/evaluation/results.csv --store    make these the reference

It compares the figures of every run (`TOLERANCE`), and checks that `peek` still beats longest prefix match
without its limit wherever it does in the reference.  An engine that is absent is named and not compared.  The
simulated engines, and all runs of a present engine, are required.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.evaluation.plans import QUICK, SIMULATED, runs_of
from bench.evaluation.record import library
from bench.evaluation.results import KEYS, RESULTS, read

REFERENCE = Path(__file__).with_name("reference.json")
TOLERANCE = {"hit": 0.03, "ttft": 0.05, "ttft_p99": 0.05}
"""Most that a hit may move, in absolute terms, and another figure, as a part of the reference."""
OURS, RIVAL = "peek", "lpm-nolimit+lru"

Figures = dict[str, dict[str, float]]
"""Figures of each run, by a readable name that begins with the engine and ends with the policy."""


def figures(path: Path) -> Figures:
    """Return the compared figures of the quick plan's runs in a results file."""
    wanted = set(runs_of(QUICK))
    runs = {tuple(record[key] for key in KEYS): record for record in read(path)}
    name = "{engine} | {stream} | {seed} | {policy}"
    return {
        name.format(**runs[run]): {figure: runs[run][figure] for figure in TOLERANCE}
        for run in sorted(wanted & runs.keys())
    }


def moved(found: Figures, reference: Figures) -> Iterator[str]:
    """Yield a line for every figure that has moved."""
    for name in reference.keys() & found.keys():
        for figure, tolerance in TOLERANCE.items():
            was, is_now = reference[name][figure], found[name][figure]
            allowed = tolerance if figure == "hit" else tolerance * was
            if abs(is_now - was) > allowed:
                yield f"moved: {name}: {figure} {was:.4g} -> {is_now:.4g}"


def wins(of: Figures) -> set[tuple[str, str]]:
    """Return the runs and figures in which `OURS` is ahead of `RIVAL`."""
    pairs = ((name, name.removesuffix(OURS) + RIVAL) for name in of if name.endswith(f"| {OURS}"))
    return {
        (name, figure)
        for name, rival in pairs
        if rival in of
        for figure in ("ttft", "ttft_p99")
        if of[name][figure] < of[rival][figure]
    }


def compare(found: Figures, reference: Figures) -> int:
    """Print what differs, and the verdict as the last line; return the exit status."""
    absent = Counter(name.split(" | ")[0] for name in reference if name not in found)
    begun = {*(name.split(" | ")[0] for name in found), *SIMULATED}
    faults = [*moved(found, reference)]
    faults += [
        f"lost: {name}: no longer ahead of {RIVAL} in {figure}"
        for name, figure in wins(reference) - wins(found)
        if name in found and name.removesuffix(OURS) + RIVAL in found
    ]
    print(*sorted(faults), sep="\n", end="\n" if faults else "")
    verdict = f"{len(reference) - absent.total()} of {len(reference)} runs compared, {len(faults)} faults"
    without = [engine for engine in absent if engine not in begun]
    cut = [f"{count} of {engine}" for engine, count in sorted(absent.items()) if engine in begun]
    verdict += f"; not here: {', '.join(sorted(without))}" if without else ""
    print(verdict + (f"; CUT SHORT, not run: {', '.join(cut)}" if cut else ""))
    return 1 if faults or cut else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    found = figures(arguments.results)
    if not arguments.store:
        pages = sorted({run["peek"] for run in read(RESULTS) if run["policy"] == OURS})
        print(f"the pages show {OURS} of the library {', '.join(pages) or 'none'}; this one is {library()}")
        return compare(found, json.loads(arguments.reference.read_text()))
    lines = (f" {json.dumps(name)}: {json.dumps(run)}" for name, run in found.items())
    arguments.reference.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} runs are the reference now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
