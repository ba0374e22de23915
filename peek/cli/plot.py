"""The figure of `peek simulate --plot`: four panels of horizontal bars, one bar per policy.

matplotlib is an extra (`peek-kv[plot]`) and is imported here only, inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import typer

from peek import PeekError
from peek.cli.report import COLUMNS, Batch, Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = (".png", ".svg", ".pdf")

LOG_RANGE: Final = 10.0
"""A panel whose largest value is more than so many times its smallest has a logarithmic axis."""


_PEEK: Final = "#c8553d"
_OTHERS: Final = "#8fa3b5"
_INK: Final = "#333333"


@dataclass(frozen=True)
class Panel:
    """One figure of a run and how it is drawn."""

    title: str
    column: Column
    log: bool = False  # allowed, not forced


PANELS: Final = (
    Panel("Cache hit (more is better)", COLUMNS["cache_hit"]),
    Panel("TTFT mean, s (less is better)", COLUMNS["ttft_s.mean"], log=True),
    Panel("Throughput, req/s (more is better)", COLUMNS["throughput_rps"]),
    Panel("TTFT p99, s (less is better)", COLUMNS["ttft_s.p99"], log=True),
)


def check_plot(path: Path) -> None:
    """Refuse before the runs what would be refused after them."""
    if path.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"{str(path)!r} ends in none of {', '.join(FORMATS)}", param_hint="--plot")
    if not path.parent.is_dir():
        raise PeekError(f"{path}: no such directory: {path.parent}")
    if path.is_dir():
        raise PeekError(f"{path}: is a directory")
    try:
        import_module("matplotlib")
    except ImportError:
        raise PeekError("--plot needs matplotlib: pip install peek-kv[plot]") from None


def save_plot(path: Path, batches: list[Batch]) -> None:
    """Draw all runs into the file `path`; several seeds become means, with their range as whiskers."""
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    policies = [run["policy"] for run in batches[0].runs]
    figure = Figure(figsize=(10.0, 2.0 + 0.58 * max(len(policies), 2)), dpi=150, layout="constrained")
    figure.suptitle(_title(batches), fontsize=10, color=_INK)
    for number, panel in enumerate(PANELS):
        axes = figure.add_subplot(2, 2, number + 1)
        values = [[panel.column.value(batch.runs[row]) for batch in batches] for row in range(len(policies))]
        _draw(axes, panel, policies, values)
        if number % 2:
            axes.set_yticklabels([])
    ideal = fmean(batch.runs[0]["ideal_hit"] for batch in batches)
    _draw_ideal(figure.axes[0], ideal)
    figure.savefig(path)


def _title(batches: list[Batch]) -> str:
    first = batches[0]
    if len(batches) == 1:
        return f"{first.title}\n{first.setting}"
    seeds = ", ".join(str(batch.workload.seed) for batch in batches)
    heading = f"{first.workload.name} {first.workload.load}, mean and range of seeds {seeds}"
    return f"{heading}\n{first.setting}"


def _draw(axes: Axes, panel: Panel, policies: list[str], values: list[list[float]]) -> None:
    """One panel: bars from top to bottom in the order of the command line."""
    from matplotlib.ticker import NullFormatter

    rows = list(range(len(policies)))
    means = [fmean(each) for each in values]
    colors = [_PEEK if policy == "peek" else _OTHERS for policy in policies]
    axes.barh(rows, means, height=0.7, color=colors)
    low, high = min(map(min, values)), max(map(max, values))
    if panel.log and high > LOG_RANGE * low > 0.0:
        axes.set_xscale("log")
        left = low / 2.0
        axes.set_xlim(left, high * (high / left) ** 0.16)
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0.0, high * 1.16)
    for row, (mean, each) in enumerate(zip(means, values, strict=True)):
        if len(each) > 1:
            axes.plot([min(each), max(each)], [row, row], color=_INK, linewidth=1.2)
        axes.annotate(
            panel.column.text(mean), (max(each), row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=9, color=_INK,
        )  # fmt: skip
    axes.set_yticks(rows, policies)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(panel.title, fontsize=10, loc="left", color=_INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(value: float, _position: int | None = None) -> str:
    """A tick of a logarithmic axis as a number, not as a power of ten."""
    return f"{value:g}"


def _draw_ideal(axes: Axes, ideal: float) -> None:
    """Onto the panel of cache hits: what a cache without evictions would reach."""
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.axvline(ideal, linestyle="--", linewidth=1.2, color=_INK)
