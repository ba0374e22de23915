"""What `peek simulate` prints: the table, the JSON object.

The table has to fit into 80 columns with thirteen figures a row, hence headings of three short lines
(what, which, unit), three significant digits, and the ideal hit ratio as a row of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from peek import __version__, backend
from peek.cli.verdict import significant, verdict
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

ENGINE_KINDS: Final = {"radix": "SGLang-like", "blocks": "vLLM-like"}

ROOMY_COLUMNS: Final = 100
"""From this terminal width on, the table's columns stand further apart."""


@dataclass(frozen=True)
class Batch:
    """One workload under all policies of the command line; `runs` are in their order."""

    workload: Workload
    cache: str
    cost: CostModel
    runs: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        workload = self.workload
        if workload.load == "trace":
            scale = workload.rate_scale
            return f"trace {workload.name}" + ("" if scale == 1.0 else f", arrivals {scale:g} times as fast")
        return f"{workload.name} {workload.load}, seed {workload.seed}"

    @property
    def setting(self) -> str:
        """On what it was run."""
        workload, cost = self.workload, self.cost
        return (
            f"{len(workload.requests):,} requests (the first {workload.warmup} warm up, unmeasured), "
            f"arena of {workload.arena_tokens:,} tokens, {self.cache} cache "
            f"({ENGINE_KINDS[self.cache]} engine), {cost.model.name} on {cost.hardware.name}{self._fleet}"
        )

    @property
    def verdict(self) -> str:
        """What it comes to; "" for a cell, whose answer is the evaluation."""
        return verdict(self.runs) if self.workload.load == "trace" else ""

    @property
    def _fleet(self) -> str:
        replicas = self.runs[0].get("replicas")
        return "" if replicas is None else f", {replicas} replicas"


# -- JSON -----------------------------------------------------------------------------------------------


def as_json_text(batches: list[Batch]) -> str:
    """One JSON object with every run of every batch, and a verdict on each trace."""
    found: dict[str, Any] = {"runs": [rounded(run) for batch in batches for run in batch.runs]}
    said = [batch.verdict for batch in batches if batch.verdict]
    return json.dumps({**found, "verdicts": said} if said else found, indent=2)


def rounded(value: Any) -> Any:
    """`value` with every float in it cut to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return value


# -- the table ------------------------------------------------------------------------------------------


def print_batches(batches: list[Batch]) -> None:
    """One table per workload on stdout, each followed by what it is about."""
    console = Console(markup=False, highlight=False, emoji=False)
    for number, batch in enumerate(batches):
        if number:
            console.print()
        _print_table(console, _table(batch, console.width >= ROOMY_COLUMNS))
        for text in filter(None, (_footnote(batch), batch.verdict)):
            print(fill(text, console.width, break_long_words=False, break_on_hyphens=False))


def name_of(run: dict[str, Any]) -> str:
    """What tells a run from the others of its batch."""
    router = run.get("router")
    return str(run["policy"]) if router is None else f"{router}, {run['policy']}"


def _print_table(console: Console, table: Table) -> None:
    """In full width: a narrow terminal wraps the lines, figures cut to "1…" would be worse."""
    shown = console.width
    console.width = max(shown, Measurement.get(console, console.options.update(width=1000), table).maximum)
    with console.capture() as captured:
        console.print(table)
    console.width = shown
    for line in captured.get().splitlines():
        print(line if console.is_terminal else line.rstrip())


def _footnote(batch: Batch) -> str:
    text = f"{batch.title}: {batch.setting}; peek {__version__}, {backend()}."
    if len(batch.runs) > 1:
        text += f" x: times better than {name_of(batch.runs[0])}."
    return text


def times_better(gain: float) -> str:
    """A ratio, as "x4.1" or "x12"."""
    return f"x{gain:.{0 if gain >= 9.95 else 1 if gain >= 0.95 else 2}f}"


def _microseconds(value: float) -> str:
    if value == 0.0:
        return "-"  # never planned
    return significant(value) if value < 9999.5 else f"{value / 1000.0:.0f}k"


@dataclass(frozen=True)
class Column:
    """One figure of a row.

    Attributes:
        heading: three lines: what, which, unit.
        figure: the figure's name in a run, with dots.
        best: `min` or `max`, where the lowest or the highest value is to stand out.
        text: writes the value.
        compared: another column follows, with the ratio to the first run.
    """

    heading: str
    figure: str
    best: Callable[[Iterable[float]], float] | None = None
    text: Callable[[float], str] = significant
    compared: bool = False

    def value(self, run: dict[str, Any]) -> float:
        """The figure of a run."""
        found: Any = run
        for name in self.figure.split("."):
            found = found[name]
        return float(found)

    def gain(self, run: dict[str, Any], first: dict[str, Any]) -> float:
        """How many times better than `first`."""
        better, worse = (run, first) if self.best is max else (first, run)
        return self.value(better) / self.value(worse)


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f}"


_IN_ORDER: Final = (
    Column("cache\nhit\n%", "cache_hit", max, _percent),
    Column("TTFT\nmean\ns", "ttft_s.mean", min, compared=True),
    Column("\np50\ns", "ttft_s.p50", min),
    Column("\np99\ns", "ttft_s.p99", min),
    Column("thru-\nput\nreq/s", "throughput_rps", max, compared=True),
    Column("E2E\nmean\ns", "e2e_s.mean", min),
    Column("TPOT\nmean\nms", "tpot_ms.mean", min),
    Column("wait\nmax\ns", "queue_wait_s.max", min),
    Column("plan\nmean\nµs", "plan_us.mean", text=_microseconds),
    Column("\np99\nµs", "plan_us.p99", text=_microseconds),
)
COLUMNS: Final = {column.figure: column for column in _IN_ORDER}
"""The table's columns from left to right, by figure."""


_RULES: Final = box.Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")
"""Lines under the heading and between sections, none between columns."""


def _table(batch: Batch, roomy: bool) -> Table:
    runs = batch.runs
    table = Table(
        box=_RULES,
        show_edge=False,
        padding=(0, 1) if roomy else 0,
        pad_edge=False,
        header_style="bold",
    )
    what = "policy" if "router" not in runs[0] else "router, policy"
    table.add_column(f"\n\n{what}", no_wrap=True)
    for column in COLUMNS.values():
        heading = column.heading.replace("thru-", "through-") if roomy else column.heading
        table.add_column(heading, justify="right", no_wrap=True)
        if column.compared and len(runs) > 1:
            table.add_column("\n\nx", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(name_of(run), *_figures(run, runs), end_section=run is runs[-1])
    table.add_row("ideal cache", _percent(runs[0]["ideal_hit"]))
    return table


def _figures(run: dict[str, Any], runs: list[dict[str, Any]]) -> list[Text]:
    """The cells of a row; on a terminal the best figures of several runs are bold."""
    cells = []
    for column in COLUMNS.values():
        value = column.value(run)
        is_best = column.best is not None and value == column.best(map(column.value, runs))
        shown = column.text(value)
        if shown.startswith("0."):  # ".209": keeps columns of times below a second narrow
            shown = shown[1:]
        cells.append(Text(shown, style="bold" if is_best and len(runs) > 1 else ""))
        if column.compared and len(runs) > 1:
            cells.append(Text(times_better(column.gain(run, runs[0])), style="dim"))
    return cells
