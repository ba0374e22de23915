"""Measures the default policy with one of its parts removed or changed, on kinds of `bench.arena` and on W1.

    python -m bench.ablation [--only NAME ...] [--kinds KIND ...] [--csv FILE]

Each variant is a copy of `peek/policy/default` in which a few lines are replaced.  An error is raised if a
line to replace no longer exists.  The copies run uncompiled, which changes no order.

The kinds run with the tuning seeds on both simulated engines, in cells with a queue; `bench.arena` defines
columns and utility.  W1 is the paper's four cells at heavy load on both engines: mean and p99 TTFT, divided
by the default policy's.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

import numpy as np

import peek.policy.default
from bench.arena.cells import STOCK, UTILITY, Cell, row, run_cell, show
from bench.arena.kinds import KINDS, LATER, LOADS, TUNING
from bench.builds import require_compiled
from peek.simulation.cells import cell
from peek.simulation.cost import cost_model_for
from peek.simulation.simulate import CACHES, simulate

Edit = tuple[str, str, str]
"""A module, a text in it, and the text that replaces it."""


def _divided(by: str) -> list[Edit]:
    """Divide an edge's tokens by another function of `node.count`, or by nothing if `by` is empty."""
    share = "group.node.depth) * self.unit) / count"
    return [
        ("frontier", " / float(node.count)", by.format("float(node.count)")),
        ("frontier", share, share.replace(" / count", by.format("count"))),
    ]


def _constant(module: str, name: str, value: str) -> list[Edit]:
    return [(module, rf"{name}: Final = ", f"{name}: Final = {value}  # ")]


def _size(formula: str) -> list[Edit]:
    line = "math.sqrt(length * max(max(1.0, work), (length - cached) / MOST_SHARERS))"
    return [("frontier", line, formula)]


def _cohort(fades: str) -> list[Edit]:
    return [("frontier", "* (age_s / ages.oldest_s)", f"* {fades}")]


def _power(value: str) -> list[Edit]:
    return [("__init__", "return 2.0 + 8.0 * self.bias", f"return {value}")]


VARIANTS: Final[dict[str, list[Edit]]] = {
    "as it is": [],
    "at_risk left out": [("frontier", "min(1.0 + risk, MOST_LEVERAGE) * lightness", "lightness")],
    "leverage not bounded": _constant("frontier", "MOST_LEVERAGE", "1e9"),
    "edges divided by the root of count": _divided(" / math.sqrt({})"),
    "edges not divided": _divided(""),
    "size left out": _size("1.0"),
    "size: the prompt": _size("length"),
    "size: tokens to compute": _size("max(max(1.0, work), (length - cached) / MOST_SHARERS)"),
    "sharing makes nothing smaller": _constant("frontier", "MOST_SHARERS", "1.0"),
    "sharing not bounded": _constant("frontier", "MOST_SHARERS", "1e9"),
    "sharing bounded in a burst, too": _cohort("0.0"),
    "sharing by the root of ages": _cohort("math.sqrt(age_s / ages.oldest_s)"),
    "answers not learned": [
        ("expectations", "ratio = min(max(length / whole.mean", "ratio = 1.0 or min(max(length / whole.mean")
    ],
    "turns not learned": _constant("expectations", "MOST_TURNS", "1.0"),
    "turns bounded by 2": _constant("expectations", "MOST_TURNS", "2.0"),
    "turns bounded by 8": _constant("expectations", "MOST_TURNS", "8.0"),
    "requests at once not counted": _constant("expectations", "MOST_AT_ONCE", "1.0"),
    "requests at once not bounded": _constant("expectations", "MOST_AT_ONCE", "1e9"),
    "no turns for overdue requests": [("__init__", "float = 500_000.0", "float = 1e18")],
    "age itself": [
        (
            "frontier",
            "ages.mean_s * _raised(1.0 + age_s / (float(PATIENCE) * ages.mean_s), PATIENCE)",
            "age_s",
        ),
    ],
    "patience 4": _constant("frontier", "PATIENCE", "4"),
    "patience 16": _constant("frontier", "PATIENCE", "16"),
    "power 4": _power("4.0"),
    "power 5": _power("5.0"),
    "power 7": _power("7.0"),
    "power by the depth of the queue": [
        ("policy", "now, self.power,", "now, max(2, min(self.power, len(tree).bit_length() - 1)),"),
    ],
    "gamma 0.3": _constant("frontier", "GAMMA", "0.3"),
    "gamma 0.5": _constant("frontier", "GAMMA", "0.5"),
}


def write(folder: Path, name: str, edits: list[Edit]) -> str:
    """Write a variant into `folder`; return its label."""
    source = Path(peek.policy.default.__file__).parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in source.glob("*.py")}
    for module, old, new in edits:
        assert old in texts[module], f"{name}: peek/policy/default/{module}.py has no {old!r} any more"
        texts[module] = texts[module].replace(old, new)
    package = "variant_" + re.sub(r"\W+", "_", name)
    (folder / package).mkdir()
    for module, text in texts.items():
        renamed = re.sub(r"\bpeek\.policy\.default\b", package, text)
        (folder / package / f"{module}.py").write_text(renamed, encoding="utf-8")
    return f"{package}.policy:PeekPolicy"


def run_w1(job: tuple[str, str, list[str]]) -> dict[str, dict[str, float]]:
    """Run a cell of the paper under each policy; return the figures of TTFT in seconds, by label."""
    name, cache, labels = job
    workload = cell(name, "heavy", TUNING[0], "vllm" if cache == "blocks" else "sglang")
    model = cost_model_for(name)
    return {label: simulate(workload, label, cache, cost=model)["ttft_s"] for label in labels}


def over(runs: list[dict[str, Any]], label: str, base: str, column: str) -> float:
    """Return the geometric mean over all runs of a column's ratio between `label` and `base`."""
    return float(np.exp(np.mean([np.log(run[label][column] / run[base][column]) for run in runs])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=[*KINDS, *LATER], metavar="KIND")
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    arguments = parser.parse_args()
    require_compiled()
    with tempfile.TemporaryDirectory() as folder:
        names = list(dict.fromkeys(["as it is", *arguments.only]))
        labels = {name: write(Path(folder), name, VARIANTS[name]) for name in names}
        sys.path.insert(0, folder)
        ours = list(labels.values())
        cells = [Cell(*each) for each in product(arguments.kinds, LOADS, TUNING, CACHES)]
        with Pool() as pool:
            w1 = pool.map(run_w1, [(name, cache, ours) for name in ("w1a", "w1b", "w1c", "w1d")
                                   for cache in CACHES], chunksize=1)  # fmt: skip
            stock = pool.map(run_cell, [(each, STOCK) for each in cells], chunksize=1)
            queued = [n for n, found in enumerate(stock) if found["fcfs+lru"]["ttft"] >= 1.0]
            own = pool.map(run_cell, [(cells[n], ours) for n in queued], chunksize=1)
    kinds = [stock[n] | found for n, found in zip(queued, own, strict=True)]
    base = labels["as it is"]
    lines = [["changed", *UTILITY, "utility", "W1 mean", "W1 p99", f"beaten of {len(kinds)}"]]
    for name, label in labels.items():
        line = row(kinds, label)
        figures = [line[column] for column in (*UTILITY, "utility")]
        figures += [over(w1, label, base, column) for column in ("mean", "p99")]
        lines.append([name, *(f"{figure:.3f}" for figure in figures), f"{line['beaten']:.0f}"])
    show(lines, arguments.csv)


if __name__ == "__main__":
    main()
