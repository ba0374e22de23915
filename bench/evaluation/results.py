"""The results file as the report sees it, beside the paper, and how the report writes what is in it.

Means are over the seeds that every policy of a stream has.  The paper's are three-seed means from its
appendix tables, which paper.json has by engine family, stream and policy, each as `Figures`; what a table
lacks is absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench.evaluation.plans import FAMILY, FULL, LIMITED, NAMES, STOCK, parts_of, stock_of

FIT = Path(__file__).with_name("fit.json")
"""The constant of the step times that is fitted to the paper's throughput, see fit.py."""
PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())

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


RECORDINGS = {
    "mooncake-conversation": "Mooncake conversation",
    "mooncake-synthetic": "Mooncake synthetic",
    "agents-1": "Coding agents, first request",
    "agents-4": "Coding agents, first four requests",
    "azure-code": "Azure code",
}
"""Of what is recorded; the paper's cells are named after themselves."""
FORMS = {
    "window": "client window",
    "dp": "DP={}",
    "arena": "arena {}K",
    "rate": "{} % of the rate",
    "sglang": "rounds do not wait",
    "vllm": "rounds wait",
    "": "first {:,} rows",
}
"""A stream's form, its number apart."""


def title(stream: str) -> str:
    """`w1c:heavy:window` as "W1 C heavy, client window"."""
    kind, load, form, number = parts_of(stream)
    cell = kind[3:] if "-" in kind else kind[2:].upper()
    name = RECORDINGS.get(kind) or " ".join(filter(None, (kind[:2].upper(), cell, load)))
    if kind.startswith(("mooncake", "azure")):
        name += f", {load} x recorded rate"
    return f"{name}, {FORMS[form].format(number)}" if form or number else name


def percent(value: float) -> str:
    """A share with one digit: 0.9034 -> 90.3."""
    return f"{100.0 * value:.1f}"


def change(ratio: float) -> str:
    """What is so many times another, as signed per cent."""
    return f"{100.0 * (ratio - 1.0):+.1f} %"


def seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


WRITTEN: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("hit", "ideal", "belady"), percent),
    **dict.fromkeys(("ttft", "ttft_p50", "ttft_p99", "wait_max", "e2e"), seconds),
    "rps": "{:.2f}".format,
    **dict.fromkeys(("tpot_ms", "preemptions"), "{:.0f}".format),
    **dict.fromkeys(("cpu_us", "cpu_us_p99"), lambda value: f"{value / 1e3:.2f}"),  # in ms
}
"""How each figure of a run is written."""


def code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


class Figures(NamedTuple):
    """Throughput in requests/s, cache hit in %, mean TTFT and mean E2E in seconds."""

    rps: float
    hit: float
    ttft: float
    e2e: float

    def __str__(self) -> str:
        return f"{self.hit:.1f}, {seconds(self.ttft)}, {self.rps:.2f}"


class Cell:
    """What was run of one stream on one engine; `runs` has the records by policy and seed."""

    def __init__(self, engine: str, stream: str) -> None:
        self.engine, self.stream = engine, stream
        self.title, self.engine_name = title(stream), NAMES[engine]
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

    def written(self, policy: str, form: str) -> str:
        """`form` with the means it names, as in "{hit}, {ttft}"; "not run" where the policy was not."""
        if not self.has(policy):
            return "not run"
        return re.sub(r"{(\w+)}", lambda name: WRITTEN[name[1]](self.mean(policy, name[1])), form)

    def figures(self, policy: str) -> Figures | None:
        """Our figures as the paper states its own; None if the policy was not run."""
        if not self.has(policy):
            return None
        rps, hit, ttft, e2e = (self.mean(policy, figure) for figure in Figures._fields)
        return Figures(rps, 100.0 * hit, ttft, e2e)

    def paper(self, policy: str) -> Figures | None:
        """The paper's, None where it states none.  Variants of a W1 or W2 cell have the cell's."""
        kind, load, _, _ = parts_of(self.stream)
        name = f"{kind}:{load}" if kind.startswith(("w1", "w2")) else self.stream
        found = PAPER[FAMILY[self.engine]].get(name, {}).get(policy)
        return Figures(*found) if found else None

    def ratio(self, policy: str, other: str, figure: str = "ttft") -> float:
        """How many times `other`'s mean `policy`'s is."""
        return self.mean(policy, figure) / self.mean(other, figure)

    def points(self, policy: str, other: str) -> float:
        """Hit of `policy` less that of `other`, in points."""
        return 100 * (self.mean(policy, "hit") - self.mean(other, "hit"))

    def against_best(self, figure: str, among: Sequence[str] = STOCKS) -> tuple[float, str]:
        """`peek`'s mean as so many times that of the best policy that was run, and which that is.

        The best has the largest throughput, or the smallest of anything else.
        """
        best = max if figure == "rps" else min
        policy = best(filter(self.has, among), key=lambda name: self.mean(name, figure))
        return self.ratio("peek", policy, figure), policy

    def by_seed(self, policy: str, other: str, figure: str) -> str:
        """`policy` against `other` in per cent, seed by seed; nothing where there is one only."""
        if len(self.seeds) < 2:
            return ""
        ours, theirs = self.runs[policy], self.runs[other]
        return ", ".join(change(ours[seed][figure] / theirs[seed][figure])[:-2] for seed in self.seeds)


class Results:
    """All cells of a results file."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.versions: dict[str, str] = {}
        self.ran: dict[tuple[str, str], Cell] = {}
        for record in records:
            key = record["engine"], record["stream"]
            runs = self.ran.setdefault(key, Cell(*key)).runs
            runs.setdefault(record["policy"], {})[record["seed"]] = record
            self.versions[record["engine"]] = record["version"]

    def cell(self, engine: str, stream: str) -> Cell:
        """One without runs if there were none."""
        return self.ran.get((engine, stream)) or Cell(engine, stream)

    def cells(self, streams: Iterable[str], engines: Sequence[str], *policies: str) -> Iterator[Cell]:
        """Those in which something, and all of `policies`, was run; stream by stream."""
        every = (self.cell(engine, stream) for stream in streams for engine in engines)
        return (cell for cell in every if cell.has(*policies))

    def by_engine(
        self, engines: Sequence[str], streams: Iterable[str], *policies: str
    ) -> Iterator[tuple[str, list[Cell]]]:
        """The same engine by engine, with the engine's name; those without a cell are left out."""
        for engine in engines:
            if found := list(self.cells(streams, (engine,), *policies)):
                yield NAMES[engine], found

    def missing(self) -> list[str]:
        """What the full plan names and the file lacks, a line for each engine and kind of gap."""
        planned: dict[tuple[str, str], dict[str, set[int]]] = {}
        for sweep in FULL:
            for engine, stream, _, policy in sweep.runs():
                planned.setdefault((engine, stream), {})[policy] = set(sweep.seeds)
        gaps: dict[str, list[str]] = {}
        for (engine, stream), policies in planned.items():
            ran = self.cell(engine, stream).runs
            absent = [policy for policy in policies if policy not in ran]
            if len(absent) == len(policies):
                gaps.setdefault(f"{engine}, not run", []).append(title(stream))
                continue
            if absent:
                line = f"{title(stream)} ({', '.join(code(absent))})"
                gaps.setdefault(f"{engine}, some policies not run", []).append(line)
            if any(set(ran[policy]) < seeds for policy, seeds in policies.items() if policy in ran):
                gaps.setdefault(f"{engine}, fewer than three seeds", []).append(title(stream))
        return [f"{what}: {'; '.join(streams)}" for what, streams in sorted(gaps.items())]
