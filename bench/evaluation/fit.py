"""Fits the one free constant of the step times, for one real engine, on one stock cell.

    PYTHONPATH=tests/sglang python -m bench.evaluation.fit --engine sglang     (in the engine's environment)

`mfu`, the part of the peak that prefill reaches, is set so that the engine's own policy on W1 A heavy has the
paper's throughput, over three seeds, to three digits.  It is then the same for every other cell, policy and
the engine's simulated twin.  The result goes into fit.json, with what the fit leaves unexplained.
"""

from __future__ import annotations

import argparse
import json
import logging
from statistics import fmean
from typing import Any

from bench.builds import require_compiled
from bench.evaluation.plans import FAMILY, SEEDS, stock_of
from bench.evaluation.record import record
from bench.evaluation.results import FIT, Cell
from bench.evaluation.streams import build

STREAM = "w1a:heavy"
TPOT_MS = {"sglang": 45.9, "vllm": 43.5}
"""The paper's, of stock on this stream."""
LOW, HIGH, DIGITS = 0.2, 0.9, 3


def measure(engine: str, mfu: float) -> dict[str, float]:
    """Means over the seeds of the stock engine's figures."""
    workloads = [build(STREAM, seed, FAMILY[engine], None) for seed in SEEDS]
    runs = [record(engine, STREAM, workload, stock_of(engine), mfu) for workload in workloads]
    return {name: fmean(run[name] for run in runs) for name in ("rps", "hit", "ttft", "e2e", "tpot_ms")}


def fit(engine: str) -> dict[str, Any]:
    """What fit.json has of an engine: the constant, and the paper's figures and ours with it."""
    goal = Cell(engine, STREAM).paper(stock_of(engine))
    assert goal is not None
    low, high = LOW, HIGH
    while high - low > 0.5 * 10**-DIGITS:
        middle = (low + high) / 2
        slow = measure(engine, middle)["rps"] < goal.rps
        low, high = (middle, high) if slow else (low, middle)
    mfu = round((low + high) / 2, DIGITS)
    paper = {**goal._asdict(), "hit": goal.hit / 100, "tpot_ms": TPOT_MS[FAMILY[engine]]}
    ours = {name: round(value, 4) for name, value in measure(engine, mfu).items()}
    return {"engine": engine, "policy": stock_of(engine), "mfu": mfu, "paper": paper, "ours": ours}


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
