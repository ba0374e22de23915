"""The table of measured routers: `python -m bench.routers.table RUNS.csv`.

Times and rates are a router's divided by those of `peek-epp` in the same round, so on the same requests: the
lowest, the median and the highest of the rounds.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from bench.servers.table import spread

Row = dict[str, Any]
"""One run of one router."""

PEEK: Final = "peek-epp"
TEXTS: Final = ("version", "peek", "backend", "device", "paced", "cell", "arm")
NUMBERS: Final = (
    "servers", "round", "rate", "requests", "failed", "hit", "most", "ttft", "ttft_p50", "ttft_p99",
    "e2e", "wall_s", "rps",
)  # fmt: skip
FIELDS: Final = (*TEXTS, *NUMBERS)
RATIOS: Final = {"ttft": "mean TTFT", "ttft_p99": "p99", "rps": "requests/s"}


def read(path: Path) -> list[Row]:
    with path.open(newline="") as source:
        return [
            {name: float(text) if name in NUMBERS else text for name, text in row.items()}
            for row in csv.DictReader(source)
        ]


def table(rows: Sequence[Row]) -> str:
    """A line for each router of each cell."""
    head = ["traffic", "router", "hit", "busiest", "TTFT, s", *RATIOS.values(), "failed"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    ours = {(row["cell"], row["round"]): row for row in rows if row["arm"] == PEEK}
    for cell in dict.fromkeys(cell for cell, _ in ours):
        for arm in dict.fromkeys(row["arm"] for row in rows if row["cell"] == cell):
            some = [row for row in rows if (row["cell"], row["arm"]) == (cell, arm)]
            pairs = [(row, ours[cell, row["round"]]) for row in some if (cell, row["round"]) in ours]
            means = [f"{fmean(row[name] for row in some):.2f}" for name in ("hit", "most", "ttft")]
            ratios = [
                "" if arm == PEEK else spread([their[name] / our[name] for their, our in pairs])
                for name in RATIOS
            ]
            failed = f"{sum(row['failed'] for row in some):.0f}"
            lines.append("| " + " | ".join([cell, arm, *means, *ratios, failed]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
