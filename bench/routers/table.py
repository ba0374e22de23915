"""The table of measured routers: `python -m bench.routers.table RUNS.csv`.

Times and rates are a router's divided by those of `peek-epp` in the same round, so on the same requests.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
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


def read(path: Path) -> list[Row]:
    with path.open(newline="") as source:
        return [
            {name: float(text) if name in NUMBERS else text for name, text in row.items()}
            for row in csv.DictReader(source)
        ]


def line(name: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"


def table(rows: Sequence[Row]) -> str:
    """A line for each router, a column for each cell, ratios in bold where they are better than ours."""
    ours = {(row["cell"], row["round"]): row for row in rows if row["arm"] == PEEK}
    cells = list(dict.fromkeys(cell for cell, _ in ours))
    lines = [line("router", cells), "|" + "---|" * (len(cells) + 1)]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        some = [row for row in rows if row["arm"] == arm and (row["cell"], row["round"]) in ours]
        of_cells = [[row for row in some if row["cell"] == cell] for cell in cells]
        lines.append(line(arm, [figures(each, ours) if each else "" for each in of_cells]))
    return "\n".join(lines)


def figures(some: Sequence[Row], ours: dict[tuple[str, float], Row]) -> str:
    """Of one router in one cell: share of cached tokens, mean TTFT, p99, and where nothing else says how many
    are sent, requests a second."""
    said = [f"{fmean(row['hit'] for row in some):.2f}".lstrip("0")]
    for name, better in (("ttft", min), ("ttft_p99", min), ("rps", max)):
        if name == "rps" and some[0]["rate"]:
            continue
        if some[0]["arm"] == PEEK:
            said.append(f"{median(row[name] for row in some):.2f}" + (" s" if better is min else "/s"))
            continue
        ratios = [row[name] / ours[row["cell"], row["round"]][name] for row in some]
        middle = median(ratios)
        text = spread(ratios) if name == "ttft" else f"{middle:.2f}"
        said.append(f"**{text}**" if middle != 1.0 and better(middle, 1.0) == middle else text)
    return "; ".join(said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", metavar="RUNS.csv", type=Path)
    print(table(read(parser.parse_args().runs)))
