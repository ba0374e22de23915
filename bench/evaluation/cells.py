"""The stored runs by stream, beside the paper's figures, for the report; and the format of figures.

Means are over the seeds that every policy of a stream has.  The paper's figures are three-seed means from its
appendix tables, as far as these go; paper.json has them by engine family, stream and policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bench.evaluation.plans import FAMILY, NAMED, NAMES, STOCKS, parts_of, stock_of
from bench.evaluation.results import Record

PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())
LOADS: dict[str, list[float]] = json.loads(Path(__file__).with_name("loads.json").read_text())
"""By stream of the paper's: its load on the SGLang-like and the vLLM-like engine (`loads`)."""
CLIENTS = 180
"""Clients of the closed loops W3, if a stream does not say."""

TRAFFIC_NAMES = {
    "mooncake-conversation": "Mooncake conversation",
    "mooncake-synthetic": "Mooncake synthetic",
    "agents-1": "Coding agents, first request",
    "agents-4": "Coding agents, first four requests",
    "azure-code": "Azure code",
    "cold-behind-hot": "Cold behind a hot prefix",
    "agents-with-tools": "Agents with tools",
    "tenants": "Tenants",
    "live": "Live mix",
    "flood-one-prefix": "Flood, one hot prefix",
    "flood-four-prefixes": "Flood, four hot prefixes",
    "flood-small-groups": "Flood, groups of three",
    "map": "100 prefixes",
    "batch": "Batch",
}
"""Names of streams that are not the paper's; its cells are named after themselves."""
FORMS = {
    "window": "client window",
    "dp": "DP={}",
    "arena": "arena {}K",
    "rate": "",
    "clients": "",
    "prefix": "prefixes of {:,} tokens",
    "groups": "{} prefixes",
    "jobs": "{} at a time",
    "sigma": "spread of lengths {} %",
    "sglang": "rounds do not wait",
    "vllm": "rounds wait",
    "": "first {:,} rows",
}
"""A stream's form in words, with a place for its number."""


def title(stream: str) -> str:
    """Return the title of a stream: "W1 C, client window" for `w1c:heavy:window`.

    The paper's cells have their loads on both engines in place of "moderate" and "heavy" (`loads`).
    """
    kind, load, form, number = parts_of(stream)
    cell = kind[3:] if "-" in kind else kind[2:].upper()
    name = TRAFFIC_NAMES.get(kind) or f"{kind[:2].upper()} {cell}".strip()
    if stream in LOADS:
        name += ", load " + " / ".join(dict.fromkeys(f"{each:g}" for each in LOADS[stream]))
    elif kind.startswith("w3"):
        name += f", {number if form == 'clients' else CLIENTS} clients"
    if kind.startswith(("mooncake", "azure")):
        name += f", {load} x recorded rate"
    if kind == "map" and load:
        name += ", all at once" if load == "flash" else f", load {load} %"
    if kind.startswith("flood") and load == NAMED:
        name += ", tenants named"
    said = FORMS[form].format(number) + (f" of {number}" if form == "window" and number else "")
    return f"{name}, {said}" if said and (form or number) else name


def percent(value: float) -> str:
    """Write a share in per cent with one digit: 0.9034 -> 90.3."""
    return f"{100.0 * value:.1f}"


def change(ratio: float) -> str:
    """Write a ratio as a signed change in per cent."""
    return f"{100.0 * (ratio - 1.0):+.0f} %"


def seconds(value: float) -> str:
    """Write seconds with as many digits as matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


WRITTEN: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("hit", "ideal", "belady"), percent),
    **dict.fromkeys(("ttft", "ttft_p50", "ttft_p99", "wait_max", "e2e", "watched", "watched_p99"), seconds),
    "rps": "{:.2f}".format,
    **dict.fromkeys(("tpot_ms", "itl_ms", "preemptions"), "{:.0f}".format),
    **dict.fromkeys(("cpu_us", "cpu_us_p99"), lambda value: f"{value / 1e3:.2f}"),  # in ms
}
"""How each figure of a run is written."""


def code(names: Iterable[str]) -> list[str]:
    """Return each name as code."""
    return [f"`{name}`" for name in names]


class Figures(NamedTuple):
    """Figures as in the paper's tables: requests/s, hit in %, mean TTFT and E2E in s, TPOT and ITL in ms.

    The paper states ITL for W1 only, and TPOT everywhere.
    """

    rps: float
    hit: float
    ttft: float
    e2e: float
    tpot: float
    itl: float | None = None


class Versus(NamedTuple):
    """Ratio of a policy's figure to that of `other`: of the means, and of each seed."""

    other: str
    ratio: float
    seeds: list[float]

    def __str__(self) -> str:
        """Write the change in per cent, with the smallest and the largest of any seed."""
        if len(self.seeds) < 2:
            return change(self.ratio)
        low, high = (f"{100 * (bound - 1):+.0f}" for bound in (min(self.seeds), max(self.seeds)))
        return f"{change(self.ratio)} ({low} to {high})"


class Cell:
    """The runs of one stream on one engine; `runs` has the records by policy and seed."""

    def __init__(self, engine: str, stream: str) -> None:
        self.engine, self.stream = engine, stream
        self.title, self.engine_name = title(stream), NAMES[engine]
        self.stock = stock_of(engine)
        self.runs: dict[str, dict[int, Record]] = {}

    def add(self, record: Record) -> None:
        """Add a run, before any mean is asked for."""
        self.runs.setdefault(record["policy"], {})[record["seed"]] = record

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds under which all policies were run; every mean is over these."""
        return sorted(set.intersection(*(set(by_seed) for by_seed in self.runs.values())))

    def has(self, *policies: str) -> bool:
        """Whether all of these policies were run, under some seed that every policy has."""
        return bool(self.runs) and all(policy in self.runs for policy in policies) and bool(self.seeds)

    def _measured(self, policy: str, figure: str) -> bool:
        """Whether a policy was run, and all its runs have this figure."""
        return self.has(policy) and all(figure in self.runs[policy][seed] for seed in self.seeds)

    def mean(self, policy: str, figure: str) -> float:
        """Return the mean over `seeds` of a policy that was run."""
        by_seed = self.runs[policy]
        return fmean(by_seed[seed][figure] for seed in self.seeds)

    def written(self, policy: str, form: str) -> str:
        """Fill the means that `form` names, as in "{hit}, {ttft}"; "not run" if the policy was not."""
        if not self.has(policy):
            return "not run"
        return re.sub(r"{(\w+)}", lambda name: WRITTEN[name[1]](self.mean(policy, name[1])), form)

    def figures(self, policy: str) -> Figures | None:
        """Return our figures in the paper's form; None if the policy was not run."""
        if not self.has(policy):
            return None
        names = ("rps", "hit", "ttft", "e2e", "tpot_ms", "itl_ms")
        rps, hit, *times = (self.mean(policy, name) for name in names)
        return Figures(rps, 100.0 * hit, *times)

    def paper(self, policy: str) -> Figures | None:
        """Return the paper's figures, None if it states none.  Variants of a cell have the cell's."""
        kind, load, form, _ = parts_of(self.stream)
        name = self.stream if form in ("dp", *FAMILY.values()) else f"{kind}:{load}"
        found = PAPER[FAMILY[self.engine]].get(name, {}).get(policy)
        return Figures(*found) if found else None

    def ratio(self, policy: str, other: str, figure: str = "ttft") -> float:
        """Return the mean of `policy` divided by that of `other`."""
        return self.mean(policy, figure) / self.mean(other, figure)

    def against(self, figure: str, among: Sequence[str] = STOCKS) -> Versus | None:
        """Compare `peek` with the policy that has the smallest mean; None if either lacks the figure."""
        means = self._means(figure, among)
        if not means:
            return None
        best = min(means, key=means.__getitem__)
        return Versus(best, self.ratio("peek", best, figure), self.by_seed("peek", best, figure))

    def gain(self, share: str, among: Sequence[str] = STOCKS) -> float | None:
        """Return a share of `peek` less the largest of `among`; None if either lacks it."""
        means = self._means(share, among)
        return self.mean("peek", share) - max(means.values()) if means else None

    def _means(self, figure: str, among: Sequence[str]) -> dict[str, float]:
        """Return the means of the policies that have a figure; none if `peek` lacks it."""
        if not self._measured("peek", figure):
            return {}
        return {policy: self.mean(policy, figure) for policy in among if self._measured(policy, figure)}

    def by_seed(self, policy: str, other: str, figure: str) -> list[float]:
        """Return the figure of `policy` divided by that of `other`, for each seed."""
        ours, theirs = self.runs[policy], self.runs[other]
        return [ours[seed][figure] / theirs[seed][figure] for seed in self.seeds]


class Results:
    """All cells of some runs."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.ran: dict[tuple[str, str], Cell] = {}
        for record in self.records:
            key = record["engine"], record["stream"]
            self.ran.setdefault(key, Cell(*key)).add(record)

    def cell(self, engine: str, stream: str) -> Cell:
        """Return a cell, without runs if there were none."""
        return self.ran.get((engine, stream)) or Cell(engine, stream)

    def cells(self, streams: Iterable[str], engines: Sequence[str], *policies: str) -> Iterator[Cell]:
        """Yield the cells in which something, and all of `policies`, was run, stream by stream."""
        every = (self.cell(engine, stream) for stream in streams for engine in engines)
        return (cell for cell in every if cell.has(*policies))
