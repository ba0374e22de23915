"""The table of measured servers: `python -m bench.servers.table RUNS.json ... [--store RUNS.csv]`.

Every figure is `peek`'s divided by another arm's in the same round, with the same requests.  A cell shows
the lowest, the median and the highest of the rounds.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, permutations, product
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from bench.servers.shapes import SHAPES, tensors

Run = dict[str, Any]
"""One run of one arm."""

PEEK: Final = "peek"
SAVED: Final = {
    "finished": ("completed",),
    "ttft": ("mean_ttft_ms",),
    "ttft_p50": ("median_ttft_ms",),
    "ttft_p99": ("p99_ttft_ms",),
    "e2e": ("mean_e2el_ms", "mean_e2e_latency_ms"),
    "rps": ("request_throughput",),
    "wall_s": ("duration",),
}
"""Names of figures here, with the clients' names for them.  Times in ms but for `wall_s`."""

TEXTS: Final = ("engine", "version", "peek", "backend", "device", "shape", "manner", "cell", "arm")
NUMBERS: Final = (
    "measurement", "round", "rate", *SAVED, "failed", "fallbacks", "cpu_s", "cached", "prompts", "same",
)  # fmt: skip
RATIOS: Final = {
    "ttft": "mean TTFT",
    "ttft_p50": "p50",
    "ttft_p99": "p99",
    "e2e": "E2E",
    "rps": "requests/s",
    "cpu_s": "CPU",
}
ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang"}


def figures_of(saved: dict[str, Any]) -> Run:
    """Return the kept figures of a client's results."""
    found = {ours: saved[next(name for name in names if name in saved)] for ours, names in SAVED.items()}
    answers = {"failed": sum(map(bool, saved["errors"])), "answers": saved["generated_texts"]}
    return {ours: round(value, 4) for ours, value in found.items()} | answers


def rows_of(*measurements: Sequence[Run]) -> list[Run]:
    """Return the runs as they are stored, with the number of their measurement.

    `same` counts answers that another arm of the round has, too.
    """
    runs = [run | {"measurement": number} for number, those in enumerate(measurements) for run in those]
    first: dict[tuple[Any, ...], list[str]] = {}
    for run in runs:
        if run["arm"] != PEEK:
            first.setdefault(_round(run), run["answers"])
    return [
        {name: run.get(name) for name in (*TEXTS, *NUMBERS)}
        | {"same": sum(map(str.__eq__, run["answers"], first.get(_round(run)) or run["answers"]))}
        for run in runs
    ]


def _round(run: Run) -> tuple[Any, ...]:
    return run["engine"], run["cell"], run["measurement"], run["round"]


def write(path: Path, rows: Sequence[Run]) -> None:
    with path.open("w", newline="") as sink:
        out = csv.DictWriter(sink, (*TEXTS, *NUMBERS), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def read(path: Path) -> list[Run]:
    with path.open(newline="") as source:
        rows = list(csv.DictReader(source))
    return [
        {name: text if name in TEXTS else float(text) if text else None for name, text in row.items()}
        for row in rows
    ]


def pairs(rows: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield each run of `peek` with each other arm's of the same round, in the order of the rows."""
    ours = {_round(row): row for row in rows if row["arm"] == PEEK}
    for row in rows:
        if row["arm"] != PEEK and _round(row) in ours:
            yield ours[_round(row)], row


def cached(run: Run) -> float:
    """Return the cached tokens in per cent of the prompts' tokens."""
    return 100.0 * float(run["cached"]) / float(run["prompts"])


def spread(values: Sequence[float]) -> str:
    """Write lowest, median and highest in one word, to read across a row."""
    return "-".join(f"{value:.2f}" for value in (min(values), median(values), max(values)))


def table(rows: Sequence[Run], columns: Sequence[str] = tuple(RATIOS)) -> str:
    """Return the ratios of every cell to every other arm; cached tokens as a share of the prompts'."""

    def place(pair: tuple[Run, Run]) -> tuple[str, str, str]:
        return pair[1]["engine"], pair[1]["cell"], pair[1]["arm"]

    head = ["traffic, against", *(RATIOS[name] for name in columns), "cached %"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    found = list(pairs(rows))
    order = list(dict.fromkeys(map(place, found)))
    for key, of in groupby(sorted(found, key=lambda pair: order.index(place(pair))), place):
        some = list(of)
        cells = [f"{ENGINES[key[0]]} {key[1]}, `{key[2]}`"]
        cells += [spread([our[name] / their[name] for our, their in some]) for name in columns]
        ours, theirs = (fmean(map(cached, each)) for each in zip(*some, strict=True))
        lines.append("| " + " | ".join([*cells, f"{theirs:.0f}→{ours:.0f}"]) + " |")
    return "\n".join(lines)


def agreement(rows: Sequence[Run], columns: Sequence[str]) -> str:
    """Say in how many figures the first two measurements agree; their rounds need not be as many."""
    found: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
    for (our, their), name in product(pairs([row for row in rows if row["measurement"] < 2]), columns):
        key = ENGINES[their["engine"]], their["cell"], their["arm"], name
        found.setdefault(key, ([], []))[int(our["measurement"])].append(our[name] / their[name])
    both = {key: each for key, each in found.items() if all(each)}
    apart = [key for key, each in both.items() if not any(_within(*pair) for pair in permutations(each))]
    cells = dict.fromkeys(f"{engine} {cell} against `{arm}`" for engine, cell, arm, _ in apart)
    rest = f", and not in all of {', '.join(cells)}" if apart else ""
    return f"{len(both) - len(apart)} of {len(both)} figures{rest}"


def _within(values: Sequence[float], others: Sequence[float]) -> bool:
    return min(others) <= median(values) <= max(others)


def model_said(name: str) -> str:
    """Describe a shape in words."""
    shape = SHAPES[name]
    millions = sum(map(prod, tensors(shape).values())) / 1e6
    return f"{millions:,.1f} M parameters, a pool of {shape.pool:,} tokens, {shape.seats} at once"


def said(rows: Sequence[Run]) -> str:
    """Describe what was measured, and whether the answers were the same; for at least one round."""
    engines = dict.fromkeys(f"{ENGINES[row['engine']]} {row['version']}" for row in rows)
    libraries = dict.fromkeys(f"`{row['peek']}` ({row['backend']})" for row in rows)
    devices = dict.fromkeys(f"{row['device']}, arms {row['manner']}" for row in rows)
    models = dict.fromkeys(row["shape"] for row in rows)
    ours = [row for row in rows if row["arm"] == PEEK]
    counts = Counter((row["engine"], row["cell"]) for row in ours).values()
    rounds = " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
    same, asked = (int(sum(row[name] for row in ours)) for name in ("same", "finished"))
    failed = int(sum(row["failed"] for row in rows))
    return (
        f"{', '.join(engines)}; `peek` {', '.join(libraries)}; {', '.join(devices)}; "
        f"{', '.join(map(model_said, models))}; {rounds} pairs of each."
        f" Of {asked:,} answers {same:,} are those of the engine's own order, word for word;"
        f" {failed} requests failed."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="files of bench.servers.run")
    parser.add_argument("--store", type=Path, help="file to write the rows to")
    chosen = parser.parse_args()
    rows = rows_of(*(json.loads(path.read_text()) for path in chosen.runs))
    print(f"{table(rows)}\n\n{said(rows)}")
    if chosen.store:
        write(chosen.store, rows)


if __name__ == "__main__":
    main()
