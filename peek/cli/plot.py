"""The figure of `peek simulate --plot`: four panels of horizontal bars, one bar per policy.

matplotlib is an extra (`peek-kv[plot]`) and is imported here only, inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import typer

from peek.cli.extras import needs
from peek.cli.places import check_target
from peek.cli.report import COLUMNS, Batch, Column
from peek.cli.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = (".png", ".svg", ".pdf")

LOG_RANGE: Final = 10.0
"""A panel whose largest value is more than so many times its smallest has a logarithmic axis."""


_PEEK: Final = "#c8553d"
_OTHERS: Final = "#6b8299"
_INK: Final = "#333333"
_TITLE: Final[dict[str, Any]] = {"fontsize": 10, "loc": "left", "color": _INK}


@dataclass(frozen=True)
class Panel:
    """One figure of a run and how it is drawn; `log`: its axis may be logarithmic."""

    title: str
    column: Column
    log: bool = False


PANELS: Final = (
    Panel("Cache hit", COLUMNS["cache_hit"]),
    Panel("TTFT mean, s (less is better)", COLUMNS["ttft_s.mean"], log=True),
    Panel("Throughput, req/s (more is better)", COLUMNS["throughput_rps"]),
    Panel("TTFT p99, s (less is better)", COLUMNS["ttft_s.p99"], log=True),
)


def check_plot(path: Path) -> None:
    """Refuse before the runs what would be refused after them."""
    if path.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"{str(path)!r} ends in none of {', '.join(FORMATS)}", param_hint="--plot")
    check_target(path)
    try:
        import_module("matplotlib")
    except ImportError:
        raise needs("matplotlib", "--plot", "plot") from None


def save_plot(path: Path, batches: list[Batch]) -> None:
    """Draw all runs into the file `path`; several seeds become means, with their range as whiskers."""
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    policies = [run["policy"] for run in batches[0].runs]
    figure = Figure(figsize=(10.0, 2.0 + 0.58 * max(len(policies), 2)), dpi=150, layout="constrained")
    figure.suptitle(_title(batches), fontsize=10, color=_INK, parse_math=False)
    ideal = fmean(batch.runs[0]["ideal_hit"] for batch in batches)
    for number, panel in enumerate(PANELS):
        axes = figure.add_subplot(2, 2, number + 1)
        values = [[panel.column.value(batch.runs[row]) for batch in batches] for row in range(len(policies))]
        _draw(axes, panel, policies, values)
        _scale(axes, panel, values)
        if panel.column.figure == "cache_hit":
            _draw_ideal(axes, ideal)
        _write_values(axes, panel, values)
        if number % 2:
            axes.set_yticklabels([])
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower())
    with write_whole([path]) as (stream,):
        stream.write(picture.getbuffer())


def _title(batches: list[Batch]) -> str:
    first = batches[0]
    heading = first.title
    if len(batches) > 1:
        seeds = ", ".join(str(batch.workload.seed) for batch in batches)
        heading = f"{first.workload.name} {first.workload.load}, mean and range of seeds {seeds}"
    return f"{fill(heading, 110)}\n{fill(first.setting, 110)}"


def _draw(axes: Axes, panel: Panel, policies: list[str], values: list[list[float]]) -> None:
    """Bars from top to bottom in the order of the command line."""
    rows = list(range(len(policies)))
    colors = [_PEEK if policy == "peek" else _OTHERS for policy in policies]
    axes.barh(rows, [fmean(each) for each in values], height=0.7, color=colors)
    for row, each in enumerate(values):
        if len(each) > 1:
            axes.plot([min(each), max(each)], [row, row], color=_INK, linewidth=1.2)
    axes.set_yticks(rows, policies)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(panel.title, **_TITLE)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(axes: Axes, panel: Panel, values: list[list[float]]) -> None:
    """Linear from 0, or logarithmic; either way with room for a value behind the longest bar."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(map(min, values)), max(map(max, values))
    if panel.log and high > LOG_RANGE * low > 0.0:
        axes.set_xscale("log")
        left = low / 2.0
        axes.set_xlim(left, high * (high / left) ** 0.16)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{panel.title}, log scale", **_TITLE)
    else:
        axes.set_xlim(0.0, high * 1.16 or 1.0)


def _plain(value: float, _position: float) -> str:
    """A tick of a logarithmic axis as a number, not as a power of ten."""
    return f"{value:g}"


def _draw_ideal(axes: Axes, ideal: float) -> None:
    """Onto the panel of cache hits: what a cache without evictions would reach."""
    from matplotlib.ticker import PercentFormatter

    axes.set_xlim(0.0, min(1.0, max(1.1 * ideal, axes.get_xlim()[1])))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.axvline(ideal, linestyle="--", linewidth=1.2, color=_INK)
    axes.set_title(f"Cache hit (more is better; dashed: ideal {ideal:.1%})", **_TITLE)


def _write_values(axes: Axes, panel: Panel, values: list[list[float]]) -> None:
    """The mean behind each bar; on the panel of cache hits inside, out of the way of the ideal."""
    is_hit = panel.column.figure == "cache_hit"
    for row, each in enumerate(values):
        inside = is_hit and min(each) > 0.2 * axes.get_xlim()[1]
        axes.annotate(
            panel.column.text(fmean(each)), (min(each) if inside else max(each), row),
            xytext=(-5 if inside else 5, 0), textcoords="offset points", ha="right" if inside else "left",
            va="center_baseline", fontsize=9, color="white" if inside else _INK,
        )  # fmt: skip
