"""Fits one constant, for one real engine, on one cell: the KV arena of W1 and W2.

    PYTHONPATH=.:tests/sglang python -m bench.evaluation.fit --engine sglang     (in the engine's environment)

W1 A heavy is played under the stock and the published policy with the arenas of `GRID`, over the paper's
seeds.  Each hit is taken as a power law of the arena, which evens out the noise between runs.  The result has
the least squares of log ratios to the paper's hits.  It then holds for every other W1 and W2 cell, every
policy and the simulated twin.  The clock is fitted apart (`bench.neutral.clock`).
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.cells import Cell
from bench.evaluation.plans import FAMILY, FULL_STACK, PAPER_W1, SEEDS, stock_of
from bench.evaluation.record import record
from bench.evaluation.results import FIT
from bench.evaluation.streams import build

STREAM = {family: streams[0] for family, streams in PAPER_W1.items()}
GRID = (36_000, 40_000, 44_000)
"""Arenas in tokens; the result must lie inside."""


def hits(engine: str, arena_tokens: int) -> list[float]:
    """Return the hit of the stock policy, then of the published one, over the paper's; means of seeds."""
    family = FAMILY[engine]
    cell = Cell(engine, STREAM[family])
    found = []
    for policy in (stock_of(engine), FULL_STACK):
        for seed in SEEDS:
            workloads = build(cell.stream, seed, family, None)
            sized = [replace(workload, arena_tokens=arena_tokens) for workload in workloads]
            cell.add(record(engine, cell.stream, sized, policy))
        ours, paper = cell.figures(policy), cell.paper(policy)
        assert ours is not None, "it was run"
        assert paper is not None, "the paper has every heavy W1 cell"
        found.append(ours.hit / paper.hit)
    print(f"arena {arena_tokens}: {' '.join(f'{value:.4g}' for value in found)}", flush=True)
    return found


def nearest(points: np.ndarray, sources: Sequence[np.ndarray]) -> np.ndarray:
    """Return the constants at which the ratios of all sources, of equal weight each, come nearest to 1.

    Args:
        points: constants that were tried, a row for each point.
        sources: for each source, ratios to its figures: a row for each point, a column for each figure.
    """
    terms = np.column_stack([np.ones(len(points)), np.log(points)])
    weights = np.concatenate([np.full(each.shape[1], each.shape[1] ** -0.5) for each in sources])
    laws, *_ = np.linalg.lstsq(terms, np.log(np.hstack(sources)) * weights, rcond=None)
    place, *_ = np.linalg.lstsq(laws[1:].T, -laws[0], rcond=None)
    found: np.ndarray = np.exp(place)
    if (found < points.min(axis=0)).any() or (found > points.max(axis=0)).any():
        raise SystemExit(f"{found} is outside of the grid")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=sorted(FAMILY), required=True)
    engine = parser.parse_args().engine
    require_compiled()
    logging.disable(logging.WARNING)
    ratios = np.array([hits(engine, arena) for arena in GRID])
    (arena_tokens,) = nearest(np.array(GRID, float)[:, None], [ratios])
    known = json.loads(FIT.read_text()) | {FAMILY[engine]: int(round(arena_tokens, -3))}
    FIT.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    print(json.dumps(known))


if __name__ == "__main__":
    main()
