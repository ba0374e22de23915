"""Fits the simulator's clock to two sources, NVIDIA's tables and the paper.

    python -m bench.neutral.clock [--aisimulate build/aisimulate/bin/aisimulate] [--csv FILE]

The fitted constants are `mfu` and `mbu` of `peek.simulation.cost`.  The tables are those of `aisimulate`
(its module says how to get it): single steps of Qwen3-32B on one H100, prefills of one prompt and decode
steps of a batch.  From the paper there is the throughput of W1 A heavy on both engines, stock and published
policy.  Ours is that of the simulated engines, with clients and arenas as in the evaluation.  Each ratio is
taken as a power law of both constants.  The fit has the least squares of log ratios, where each source has
half the weight.

The output has each figure of both sources, and ours over it with the constants in use, for W1 B to D, too.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.cells import Cell
from bench.evaluation.fit import nearest
from bench.evaluation.plans import FAMILY, FULL_STACK, PAPER_W1, SEEDS, SIMULATED, W1_HEAVY, stock_of
from bench.evaluation.record import play
from bench.evaluation.streams import build
from bench.neutral.aisimulate import theirs
from peek.simulation.cost import H100, CostModel, Hardware, chunk_pairs, model_named
from peek.simulation.simulate import figures
from peek.simulation.workload import SimRequest, Workload, unique_tokens

MODEL: Final = model_named("qwen3-32b")
PREFILLS: Final = ((1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192))
DECODES: Final = ((1, 512), (16, 512), (64, 512), (128, 512), (64, 2048), (64, 4096), (16, 8192))
"""Number of requests, and tokens of each one's prompt."""
ANSWER: Final = 1025
GRID: Final = tuple(product((0.6, 0.7, 0.8), (0.7, 0.8, 0.9)))
"""Pairs of mfu and mbu; the fit must lie inside."""


class Step(NamedTuple):
    """One kind of step, and its time by the tables."""

    kind: str
    requests: int
    prompt_tokens: int
    seconds: float

    def ours_s(self, hardware: Hardware) -> float:
        """Return its time by our formula; an answer is half done in the mean decode step."""
        cost = CostModel(hardware, MODEL)
        if self.kind == "prefill":
            return cost.step_s(self.prompt_tokens, chunk_pairs(0, self.prompt_tokens), 0)
        return cost.step_s(self.requests, 0.0, self.requests * (self.prompt_tokens + ANSWER // 2))


def by_tables(program: Path) -> list[Step]:
    """Return the steps as `aisimulate` times them."""

    def served(requests: int, length: int, answer_tokens: int) -> tuple[float, float]:
        prompts = [
            SimRequest(str(place), 0.0, unique_tokens("step", place, length), length, answer_tokens)
            for place in range(requests)
        ]
        workload = Workload(
            name="steps", load="", seed=0, requests=prompts, warmup=0, max_running=256, arena_tokens=400_000
        )
        told = theirs(program, workload, [each.request_id for each in prompts])
        return told.mean_s, told.makespan_s

    steps = [Step("prefill", *shape, served(*shape, 2)[0]) for shape in PREFILLS]
    for shape in DECODES:
        short_s, long_s = served(*shape, 2)[1], served(*shape, ANSWER)[1]
        steps.append(Step("decode", *shape, (long_s - short_s) / (ANSWER - 2)))
    return steps


def at(mfu: float, mbu: float) -> Hardware:
    """Return an H100 that reaches these parts of its data sheet."""
    return replace(H100, mfu=mfu, mbu=mbu)


class Rate(NamedTuple):
    """The throughput of a W1 stream under a policy in the paper, and the simulated engine that plays it."""

    engine: str
    stream: str
    policy: str

    @property
    def paper(self) -> float:
        """Requests a second in the paper."""
        found = Cell(self.engine, self.stream).paper(self.policy)
        assert found is not None, "the paper has every heavy W1 cell"
        return found.rps


def ratio(job: tuple[Rate, Hardware]) -> float:
    """Return our throughput over the paper's, the mean over its seeds."""
    rate, hardware = job
    found = []
    for seed in SEEDS:
        (workload,) = build(rate.stream, seed, FAMILY[rate.engine], None)
        played, _ = play(rate.engine, workload, rate.policy, CostModel(hardware))
        found.append(figures(workload, list(played.jobs.values()))["throughput_rps"])
    return float(np.mean(found)) / rate.paper


RATES: Final = [
    Rate(engine, PAPER_W1[FAMILY[engine]][cell], policy)
    for cell in range(len(W1_HEAVY))
    for engine in SIMULATED
    for policy in (stock_of(engine), FULL_STACK)
]
CALIBRATED: Final = RATES[: 2 * len(SIMULATED)]
"""Those of W1 A; the others are foretold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--aisimulate", type=Path, default=Path("build/aisimulate/bin/aisimulate"))
    parser.add_argument("--csv", type=argparse.FileType("w"), default=sys.stdout)
    arguments = parser.parse_args()
    require_compiled()
    logging.disable(logging.WARNING)
    steps = by_tables(arguments.aisimulate)
    tables = np.array([[step.ours_s(at(*point)) / step.seconds for step in steps] for point in GRID])
    with Pool() as pool:
        tried = pool.map(ratio, [(rate, at(*point)) for point in GRID for rate in CALIBRATED], 1)
        mfu, mbu = nearest(np.array(GRID), [tables, np.array(tried).reshape(len(GRID), -1)])
        print(f"mfu {mfu:.3f}, mbu {mbu:.3f}; in use are {H100.mfu} and {H100.mbu}", file=sys.stderr)
        rates = pool.map(ratio, [(rate, H100) for rate in RATES], 1)
    out = csv.writer(arguments.csv, lineterminator="\n")
    out.writerow(["source", "figure", "requests", "prompt_tokens", "theirs", "ours / theirs"])
    for step in steps:
        out.writerow(["tables", *step[:3], f"{step.seconds:.4g}", f"{step.ours_s(H100) / step.seconds:.3f}"])
    for rate, ours in zip(RATES, rates, strict=True):
        out.writerow(["paper", " ".join(rate), "", "", rate.paper, f"{ours:.3f}"])


if __name__ == "__main__":
    main()
