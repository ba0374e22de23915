"""The results file as the report sees it: means over the seeds that every policy of a stream has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from plans import FULL, LIMITED, STOCK

STOCKS = (*STOCK, *LIMITED)
NAMES = {
    "w1a": "W1 A",
    "w1b": "W1 B",
    "w1c": "W1 C",
    "w1d": "W1 D",
    "w2b": "W2 B",
    "w3b": "W3 B",
    "w3c": "W3 C",
    "w4": "W4",
    "w4-shared": "W4 shared",
    "w5-long": "W5 long",
    "w5-short": "W5 short",
    "mooncake-conversation": "Mooncake conversation",
    "mooncake-synthetic": "Mooncake synthetic",
    "agents-1": "Coding agents, first request",
    "agents-4": "Coding agents, first four requests",
    "azure-code": "Azure code",
}
FORMS = {
    "window": "client window",
    "dp2": "DP=2",
    "sglang": "rounds do not wait",
    "vllm": "rounds wait",
}


def title(stream: str) -> str:
    """`w1c:heavy:window` as "W1 C heavy, client window"."""
    kind, load, form = [*stream.split(":"), "", ""][:3]
    if kind.startswith(("mooncake", "azure")):
        rows = f", first {int(form):,} rows" if form else ""
        return f"{NAMES[kind]}, {load} x recorded rate{rows}"
    if form.startswith("arena"):
        return f"{NAMES[kind]} {load}, arena {form.removeprefix('arena')}K"
    if form.startswith("rate"):
        return f"{NAMES[kind]} {load}, {form.removeprefix('rate')} % of the rate"
    name = NAMES[kind] if kind.startswith("agents") else f"{NAMES[kind]} {load}"
    return f"{name}, {FORMS[form]}" if form else name


class Results:
    """Records by (engine, stream, policy)."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self.runs: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
        self.versions: dict[str, str] = {}
        for record in records:
            cell = self.runs.setdefault((record["engine"], record["stream"]), {})
            cell.setdefault(record["policy"], {})[record["seed"]] = record
            self.versions[record["engine"]] = record["version"]

    def has(self, engine: str, stream: str, policy: str | None = None) -> bool:
        cell = self.runs.get((engine, stream), {})
        return bool(cell) if policy is None else policy in cell

    def policies(self, engine: str, stream: str) -> list[str]:
        return list(self.runs.get((engine, stream), {}))

    def seeds(self, engine: str, stream: str) -> list[int]:
        """Seeds under which all policies of the stream were run: every mean is over the same ones."""
        cell = self.runs[engine, stream]
        return sorted(set.intersection(*(set(by_seed) for by_seed in cell.values())))

    def mean(self, engine: str, stream: str, policy: str, figure: str) -> float:
        by_seed = self.runs[engine, stream][policy]
        return fmean(by_seed[seed][figure] for seed in self.seeds(engine, stream))

    def by_seed(self, engine: str, stream: str, policy: str, other: str, figure: str) -> str:
        """`policy` against `other` in per cent, seed by seed; nothing where there is one only."""
        cell, seeds = self.runs[engine, stream], self.seeds(engine, stream)
        if len(seeds) < 2:
            return ""
        return ", ".join(change(cell[policy][s][figure], cell[other][s][figure])[:-2] for s in seeds)

    def first(self, engine: str, stream: str, policy: str) -> dict[str, Any] | None:
        """The run of the first seed, for what cannot be averaged."""
        if not self.has(engine, stream, policy):
            return None
        return self.runs[engine, stream][policy][min(self.runs[engine, stream][policy])]

    def best(
        self, engine: str, stream: str, figure: str, among: Sequence[str] = STOCKS
    ) -> tuple[str, float] | None:
        """The best of the policies that were run: largest throughput and hit, smallest of everything else."""
        ran = [policy for policy in among if self.has(engine, stream, policy)]
        if not ran:
            return None
        sign = -1.0 if figure in ("rps", "hit") else 1.0
        policy = min(ran, key=lambda name: sign * self.mean(engine, stream, name, figure))
        return policy, self.mean(engine, stream, policy, figure)

    def missing(self) -> list[str]:
        """What the full plan names and the file lacks, a line for each engine and kind of gap."""
        planned: dict[tuple[str, str], dict[str, set[int]]] = {}
        for batch in FULL:
            for engine in batch.engines:
                for stream in batch.streams:
                    for policy in batch.policies:
                        planned.setdefault((engine, stream), {})[policy] = set(batch.seeds)
        gaps: dict[tuple[str, str], list[str]] = {}
        for (engine, stream), policies in planned.items():
            ran = self.runs.get((engine, stream), {})
            absent = [policy for policy in policies if policy not in ran]
            if len(absent) == len(policies):
                gaps.setdefault((engine, "not run"), []).append(title(stream))
                continue
            if absent:
                names = ", ".join(f"`{policy}`" for policy in absent)
                gaps.setdefault((engine, "some policies not run"), []).append(f"{title(stream)} ({names})")
            if any(set(ran[policy]) < seeds for policy, seeds in policies.items() if policy in ran):
                gaps.setdefault((engine, "fewer than three seeds"), []).append(title(stream))
        return [f"{engine}, {what}: {'; '.join(streams)}" for (engine, what), streams in sorted(gaps.items())]


def load(path: Path) -> Results:
    return Results(json.loads(line) for line in path.read_text().splitlines() if line.strip())


# -- Markdown -------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(value: float) -> str:
    """A share with one digit: 0.9034 -> 90.3."""
    return f"{100.0 * value:.1f}"


def change(ours: float, theirs: float) -> str:
    """Signed per cent of `ours` against `theirs`."""
    return f"{100.0 * (ours / theirs - 1.0):+.1f} %"


def seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"
