"""The results file as the report sees it: means over the seeds that every policy of a stream has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.evaluation.paper import BASELINE, Figures, published
from bench.evaluation.plans import FAMILY, FULL, LIMITED, NAMES, STOCK
from bench.evaluation.text import change, title

Record = dict[str, Any]
"""One run of one policy over one stream on one engine, as `record.py` makes it."""

STOCKS = (*STOCK, *LIMITED)
KEYS = ("engine", "stream", "seed", "policy")
"""What makes a run, as in `Sweep.runs`."""


def read(path: Path) -> list[Record]:
    """The records of a results file, none if it is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def stock_of(engine: str) -> str:
    """The policy that the paper calls stock on an engine of this family."""
    return BASELINE[FAMILY[engine]]


class Cell:
    """What was run of one stream on one engine; `runs` has the records by policy and seed."""

    def __init__(self, engine: str, stream: str) -> None:
        self.engine = engine
        self.stream = stream
        self.title = title(stream)
        self.name = NAMES[engine]
        """Of the engine."""
        self.stock = stock_of(engine)
        self.runs: dict[str, dict[int, Record]] = {}

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds under which all policies were run: every mean is over the same ones."""
        return sorted(set.intersection(*(set(by_seed) for by_seed in self.runs.values())))

    @property
    def seeds_text(self) -> str:
        return f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"

    def has(self, *policies: str) -> bool:
        return bool(self.runs) and all(policy in self.runs for policy in policies)

    def mean(self, policy: str, figure: str) -> float:
        by_seed = self.runs[policy]
        return fmean(by_seed[seed][figure] for seed in self.seeds)

    def means(self, policy: str, *figures: str) -> list[float]:
        return [self.mean(policy, figure) for figure in figures]

    def figures(self, policy: str) -> Figures | None:
        """Ours, as the paper states its own; None if it was not run."""
        if not self.has(policy):
            return None
        rps, hit, ttft, e2e = self.means(policy, "rps", "hit", "ttft", "e2e")
        return Figures(rps, 100.0 * hit, ttft, e2e)

    def paper(self, policy: str) -> Figures | None:
        return published(FAMILY[self.engine], self.stream, policy)

    def gain(self, policy: str, other: str) -> tuple[float, float]:
        """`policy` against `other`: points of hit, and times its mean TTFT."""
        (hit, ttft), (hit_0, ttft_0) = (self.means(name, "hit", "ttft") for name in (policy, other))
        return 100 * (hit - hit_0), ttft / ttft_0

    def best(self, figure: str, among: Sequence[str] = STOCKS) -> tuple[str, float]:
        """The best of the policies that were run: largest throughput and hit, smallest of everything else."""
        sign = -1.0 if figure in ("rps", "hit") else 1.0
        policy = min(filter(self.has, among), key=lambda name: sign * self.mean(name, figure))
        return policy, self.mean(policy, figure)

    def by_seed(self, policy: str, other: str, figure: str) -> str:
        """`policy` against `other` in per cent, seed by seed; nothing where there is one only."""
        if len(self.seeds) < 2:
            return ""
        ours, theirs = self.runs[policy], self.runs[other]
        return ", ".join(change(ours[s][figure], theirs[s][figure])[:-2] for s in self.seeds)


class Results:
    """All cells of a results file."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.versions: dict[str, str] = {}
        self._cells: dict[tuple[str, str], Cell] = {}
        for record in records:
            key = record["engine"], record["stream"]
            runs = self._cells.setdefault(key, Cell(*key)).runs
            runs.setdefault(record["policy"], {})[record["seed"]] = record
            self.versions[record["engine"]] = record["version"]

    def cell(self, engine: str, stream: str) -> Cell:
        """One without runs if there were none."""
        return self._cells.get((engine, stream)) or Cell(engine, stream)

    def cells(self, streams: Iterable[str], engines: Sequence[str], *policies: str) -> Iterator[Cell]:
        """Those in which something, and all of `policies`, was run; stream by stream."""
        for stream in streams:
            for engine in engines:
                cell = self.cell(engine, stream)
                if cell.has(*policies):
                    yield cell

    def by_engine(
        self, engines: Sequence[str], streams: Iterable[str], *policies: str
    ) -> Iterator[tuple[str, list[Cell]]]:
        """The same engine by engine, with the engine's name; those without a cell are left out."""
        for engine in engines:
            if found := list(self.cells(streams, (engine,), *policies)):
                yield NAMES[engine], found

    def of(self, engine: str) -> list[Cell]:
        return [cell for cell in self._cells.values() if cell.engine == engine]

    def missing(self) -> list[str]:
        """What the full plan names and the file lacks, a line for each engine and kind of gap."""
        planned: dict[tuple[str, str], dict[str, set[int]]] = {}
        for sweep in FULL:
            for engine, stream, _, policy in sweep.runs():
                planned.setdefault((engine, stream), {})[policy] = set(sweep.seeds)
        gaps: dict[tuple[str, str], list[str]] = {}
        for (engine, stream), policies in planned.items():
            ran = self.cell(engine, stream).runs
            absent = [f"`{policy}`" for policy in policies if policy not in ran]
            if len(absent) == len(policies):
                gaps.setdefault((engine, "not run"), []).append(title(stream))
                continue
            if absent:
                line = f"{title(stream)} ({', '.join(absent)})"
                gaps.setdefault((engine, "some policies not run"), []).append(line)
            if any(set(ran[policy]) < seeds for policy, seeds in policies.items() if policy in ran):
                gaps.setdefault((engine, "fewer than three seeds"), []).append(title(stream))
        return [f"{engine}, {what}: {'; '.join(streams)}" for (engine, what), streams in sorted(gaps.items())]
