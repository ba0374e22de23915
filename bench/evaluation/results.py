"""The file of stored runs: one CSV line for each, with the versions that made it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.evaluation.plans import FAMILY, Sweep, runs_of
from peek.simulation.cost import H100

FIT = Path(__file__).with_name("fit.json")
"""The arenas fitted to the paper's hits, by engine family, see fit.py."""
RESULTS = Path(__file__).with_name("results.csv")
"""The runs from which the pages are made."""

Record = dict[str, Any]
"""One run of one policy over one stream on one engine, as `record.py` makes it."""

KEYS = ("engine", "stream", "seed", "policy")
"""Columns that identify a run, as in `Sweep.runs`."""
FACTS = ("version", "peek", "fit")
"""What made a run: the engine's version, this library's with its sources' digest, and `fit_of`."""
FIGURES = (
    "hit", "ideal", "belady", "rps", "ttft", "ttft_p50", "ttft_p99", "e2e", "e2e_p99", "tpot_ms", "itl_ms",
    "wait_max", "preemptions", "unfinished", "in_time", "job", "watched",
    "watched_p99", "cpu_us", "cpu_us_p99",
)  # fmt: skip
"""Figures of a run: shares, requests/s, seconds, ms, counts, and CPU time in microseconds.

An absent figure is empty.  `in_time`: share of requests with a first token within 2 s, and 0.1 s for each
later one.  `job`: mean time from a session's first arrival to its last end.  `watched`: mean TTFT of the
requests that a stream keeps apart.
"""
COLUMNS = (*KEYS, *FACTS, *FIGURES)
DIGITS = 5


def fitted_arena(family: str) -> int:
    """Return the KV arena of W1 and W2 on engines of this family, in tokens, from fit.json."""
    return int(json.loads(FIT.read_text())[family])


def fit_of(engine: str) -> str:
    """Return what is fitted in an engine's runs: arena of W1 and W2, mfu and mbu, as `39000/0.75/0.8`."""
    return f"{fitted_arena(FAMILY[engine])}/{H100.mfu}/{H100.mbu}"


def read(path: Path) -> list[Record]:
    """Return the runs of a results file, none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_record(row) for row in csv.DictReader(file)]


def _record(row: dict[str, str]) -> Record:
    known: Record = {name: row[name] for name in (*KEYS, *FACTS)}
    known["seed"] = int(row["seed"])
    return known | {name: float(row[name]) for name in FIGURES if row.get(name)}


def line_of(record: Record) -> str:
    """Return a run as a line of a results file."""
    values = (record.get(name, "") for name in COLUMNS)
    cells = [f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value) for value in values]
    return ",".join(f'"{cell}"' if "," in cell else cell for cell in cells) + "\n"


def write(path: Path, records: Iterable[Record]) -> None:
    """Write all runs in a fixed order."""
    ordered = sorted(records, key=lambda record: [record[key] for key in KEYS])
    path.write_text(",".join(COLUMNS) + "\n" + "".join(map(line_of, ordered)))


def missing(records: Iterable[Record], plan: Iterable[Sweep], fits: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the runs (`KEYS`) of a plan, in its order, that `records` lack or have with another fit.

    `fits`: by engine that counts, its fit as text.
    """
    done = {tuple(run[key] for key in KEYS) for run in records if run["fit"] == fits.get(run["engine"])}
    return [run for run in runs_of(plan) if run[0] in fits and run not in done]
