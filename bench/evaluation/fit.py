"""Fits two constants of the model, for one real engine, on one cell: the KV arena and the speed of prefill.

    PYTHONPATH=.:tests/sglang python -m bench.evaluation.fit --engine sglang     (in the engine's environment)

The constants are the arena in tokens, and `mfu`, the part of the peak that prefill reaches.  W1 A heavy is
played under the stock and the published policy at the points of `GRID`, over the paper's seeds.  Each figure
of `FITTED` is taken as a power law of both constants, which evens out the noise between runs.  The result has
the least squares of relative distance from the paper.  Both constants then hold for every other W1 and W2
cell, every policy and the simulated twin, `mfu` for every stream.  The report has the residuals.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.cells import Cell
from bench.evaluation.plans import FAMILY, FULL_STACK, PAPER_W1, SEEDS, stock_of
from bench.evaluation.record import record
from bench.evaluation.results import FIT
from bench.evaluation.streams import build

STREAM = {family: streams[0] for family, streams in PAPER_W1.items()}
GRID = {
    "sglang": ((36_000, 40_000, 44_000), (0.40, 0.46, 0.52)),
    "vllm": ((36_000, 40_000, 44_000), (0.52, 0.60, 0.68)),
}
"""Arenas in tokens, and mfu; the result must lie inside."""
FITTED = ("hit", "rps")


def played(engine: str, arena_tokens: int, mfu: float) -> list[float]:
    """Return the figures of `FITTED`, of the stock policy, then of the published one; means over seeds."""
    family = FAMILY[engine]
    found = []
    for policy in (stock_of(engine), FULL_STACK):
        cell = Cell(engine, STREAM[family])
        for seed in SEEDS:
            workloads = build(cell.stream, seed, family, None)
            sized = [replace(workload, arena_tokens=arena_tokens) for workload in workloads]
            cell.add(record(engine, cell.stream, sized, policy, mfu))
        ours = cell.figures(policy)
        assert ours is not None, "it was run"
        found += [getattr(ours, figure) for figure in FITTED]
    print(f"arena {arena_tokens}, mfu {mfu}: {' '.join(f'{value:.4g}' for value in found)}", flush=True)
    return found


def goals(engine: str) -> list[float]:
    """Return the paper's figures, in the order of `played`."""
    cell = Cell(engine, STREAM[FAMILY[engine]])
    return [getattr(cell.paper(policy), name) for policy in (stock_of(engine), FULL_STACK) for name in FITTED]


def nearest(
    points: Sequence[tuple[float, float]], figures: Sequence[Sequence[float]], goal: Sequence[float]
) -> list[float]:
    """Return where the power laws through `figures` at `points` come closest to `goal` (relative squares)."""
    terms = np.column_stack([np.ones(len(points)), np.log(points)])
    laws, *_ = np.linalg.lstsq(terms, np.log(figures), rcond=None)
    place, *_ = np.linalg.lstsq(laws[1:].T, np.log(goal) - laws[0], rcond=None)
    return [float(value) for value in np.exp(place)]


def fit(engine: str) -> dict[str, Any]:
    """Return an engine's entry of fit.json."""
    family = FAMILY[engine]
    points = list(product(*GRID[family]))
    arena_tokens, mfu = nearest(points, [played(engine, *point) for point in points], goals(engine))
    for value, tried in zip((arena_tokens, mfu), GRID[family], strict=True):
        assert min(tried) <= value <= max(tried), f"{value:g} is outside of the grid {tried}"
    constants = {"arena_tokens": int(round(arena_tokens, -3)), "mfu": round(mfu, 3)}
    return {"engine": engine, "stream": STREAM[family], **constants}


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=sorted(FAMILY), required=True)
    engine = parser.parse_args().engine
    logging.disable(logging.WARNING)
    known = json.loads(FIT.read_text()) if FIT.exists() else {}
    known[FAMILY[engine]] = fit(engine)
    FIT.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    print(json.dumps(known[FAMILY[engine]], indent=2))


if __name__ == "__main__":
    main()
