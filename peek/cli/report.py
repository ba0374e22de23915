"""The output of `peek simulate`: the table, the JSON object, the verdict, the plot.

The table fits thirteen figures a row into 80 columns.  So headings have three short lines, values have three
significant digits, and the ideal cache hit has a row of its own.  matplotlib is an extra (`peek-kv[plot]`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from peek import __version__, backend
from peek.cli.options import check_target
from peek.cli.reading import counted
from peek.cli.writing import in_utf8, write_whole
from peek.errors import needs
from peek.simulation.answer import OURS, SAME, Answer, Change, Figure, changes, engine_of, figure_named
from peek.simulation.cost import CostModel
from peek.simulation.simulate import TARGETS
from peek.simulation.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOMY_COLUMNS: Final = 100  # width of a terminal from which the table's columns stand further apart
SHORT_WAIT_S: Final = 0.1  # there is hardly a queue if 99 of 100 requests wait less than this, in seconds

PLOT_FORMATS: Final = (".png", ".svg", ".pdf")
LOG_RANGE: Final = 10.0  # a panel of times with a wider range, largest over smallest, has a log axis

_PEEK: Final = "#c8553d"
_OTHERS: Final = "#6b8299"
_INK: Final = "#333333"
_TITLE: Final[dict[str, Any]] = {"fontsize": 10, "loc": "left", "color": _INK}


@dataclass(frozen=True)
class Batch:
    """One workload under all policies of the command line; `runs` has their order."""

    workload: Workload
    cache: str
    cost: CostModel
    runs: list[dict[str, Any]]

    @property
    def title(self) -> str:
        workload, scale, rate = self.workload, self.workload.rate_scale, self.workload.session_rate
        if workload.load == "trace":
            return f"trace {workload.name}" + f", arrivals {scale:g} times as fast" * (scale != 1.0)
        if workload.load == "sessions":
            paced = "" if rate is None else f", {rate:g} a second, seed {workload.seed}"
            return f"sessions {workload.name}{paced}"
        return f"{workload.name} {workload.load}, seed {workload.seed}"

    @property
    def setting(self) -> str:
        workload, cost, replicas = self.workload, self.cost, self.runs[0].get("replicas")
        warmup = f" (the first {workload.warmup} warm up, unmeasured)" if workload.warmup else ""
        fleet = "" if replicas is None else f", {counted(replicas, 'replica')}"
        return (
            f"{counted(len(workload.requests), 'request')}{warmup}, "
            f"arena of {workload.arena_tokens:,} tokens, {self.cache} cache "
            f"({engine_of(self.cache).title}-like engine), {cost.model.name} on {cost.hardware.name}{fleet}"
        )


# -- JSON -----------------------------------------------------------------------------------------------


def as_json_text(batches: list[Batch]) -> str:
    found: dict[str, Any] = {"runs": [rounded(run) for batch in batches for run in batch.runs]}
    if said := list(filter(None, map(verdict, batches))):
        found["verdicts"] = said
    return json.dumps(found, indent=2)


def rounded(value: Any) -> Any:
    """Round every float in `value` to six significant digits."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.6g}"))


def significant(value: float) -> str:
    """Write a number with three significant digits, at most three decimals, and its whole part in full."""
    decimals = sum(value < limit for limit in (0.9995, 9.995, 99.95))
    return f"{value:.{decimals}f}" if value else "0"


# -- the table ------------------------------------------------------------------------------------------


def print_batches(batches: list[Batch], judged: bool = True) -> None:
    """Print a table for each workload on stdout, with a footnote and, if wanted, the verdict."""
    console = Console(markup=False, highlight=False, emoji=False)
    for number, batch in enumerate(batches):
        if number:
            console.print()
        _print_table(console, batch.runs)
        footnote = f"{batch.title}: {batch.setting}; peek {__version__}, {backend()}."
        if len(batch.runs) > 1:
            footnote += f" x: times better than {name_of(batch.runs[0])}."
        footnote += _in_time(batch.runs)
        for text in filter(None, (footnote, verdict(batch) if judged else "")):
            say(text)


def say(text: str, indent: str = "") -> None:
    """Print a paragraph in the terminal's width, or 80; `indent` begins its lines after the first."""
    width = Console().width or 80
    print(fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def _in_time(runs: list[dict[str, Any]]) -> str:
    """Say which part of the requests met each target that is not a default one."""
    text = ""
    for at, target in enumerate(runs[0]["goodput"][len(TARGETS) :], len(TARGETS)):
        shares = ", ".join(f"{name_of(run)} {_percent(run['goodput'][at]['share'])} %" for run in runs)
        text += f" In time ({target['ttft_s']:g} s, {target['tpot_ms']:g} ms): {shares}."
    return text


def name_of(run: dict[str, Any]) -> str:
    """Return the name of a run in its batch: its policy, in a fleet also its router."""
    router = run.get("router")
    return str(run["policy"]) if router is None else f"{router}, {run['policy']}"


def _print_table(console: Console, runs: list[dict[str, Any]]) -> None:
    """Print a table in full width; narrow terminals wrap its lines, because figures cut to "1…" are worse."""
    shown = console.width
    table = _table(runs, shown >= ROOMY_COLUMNS)
    console.width = max(shown, Measurement.get(console, console.options.update(width=1000), table).maximum)
    with console.capture() as captured:
        console.print(table)
    console.width = shown
    for line in captured.get().splitlines():
        print(line if console.is_terminal else line.rstrip())


def times_better(gain: float) -> str:
    """Write a ratio as "x4.1" or "x12"."""
    return f"x{gain:.{0 if gain >= 9.95 else 1 if gain >= 0.95 else 2}f}"


def _microseconds(value: float) -> str:
    if value == 0.0:
        return "-"  # never planned
    return significant(value) if value < 9999.5 else f"{value / 1000.0:.0f}k"


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f}"


@dataclass(frozen=True)
class Column:
    heading: str  # three lines: what, which, unit
    figure: Figure
    text: Callable[[float], str] = significant  # function that formats the value of the figure
    compared: bool = False  # whether another column follows, with the ratio to the first run
    is_ranked: bool = True  # whether the best value is to stand out


_COLUMNS: Final = (
    Column("cache\nhit\n%", figure_named("cache_hit"), _percent),
    Column("TTFT\nmean\ns", figure_named("ttft_s.mean"), compared=True),
    Column("\np50\ns", figure_named("ttft_s.p50")),
    Column("\np99\ns", figure_named("ttft_s.p99")),
    Column("thru-\nput\nreq/s", figure_named("throughput_rps"), compared=True),
    Column("E2E\nmean\ns", figure_named("e2e_s.mean")),
    Column("TPOT\nmean\nms", figure_named("tpot_ms.mean")),
    Column("wait\nmax\ns", figure_named("queue_wait_s.max")),
    Column("plan\nmean\nµs", figure_named("plan_us.mean"), _microseconds, is_ranked=False),
    Column("\np99\nµs", figure_named("plan_us.p99"), _microseconds, is_ranked=False),
)
# The last column if requests are turns of sessions, instead of the p99 of planning times.
_JOB: Final = Column("job\nmean\ns", figure_named("job_s.mean"))

# Lines under the heading and between sections, none between columns.
_RULES: Final = box.Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")


def _columns(runs: list[dict[str, Any]]) -> Sequence[Column]:
    return (*_COLUMNS[:-1], _JOB) if "job_s" in runs[0] else _COLUMNS


def _table(runs: list[dict[str, Any]], roomy: bool) -> Table:
    padding = (0, 1) if roomy else 0
    table = Table(box=_RULES, show_edge=False, padding=padding, pad_edge=False, header_style="bold")
    table.add_column("\n\nrouter, policy" if "router" in runs[0] else "\n\npolicy", no_wrap=True)
    for column in _columns(runs):
        heading = column.heading.replace("thru-", "through-") if roomy else column.heading
        table.add_column(heading, justify="right", no_wrap=True)
        if column.compared and len(runs) > 1:
            table.add_column("\n\nx", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(name_of(run), *_cells(run, runs), end_section=run is runs[-1])
    table.add_row("ideal cache", _percent(runs[0]["ideal_hit"]))
    return table


def _cells(run: dict[str, Any], runs: list[dict[str, Any]]) -> list[Text]:
    cells = []
    for column in _columns(runs):
        values = [column.figure.value(each) for each in runs]
        value, first = column.figure.value(run), values[0]
        is_best = column.is_ranked and value == column.figure.best(values)
        shown = column.text(value)
        if shown.startswith("0.") and value > 0.0:  # ".209", to keep columns of times below a second narrow
            shown = shown[1:]
        cells.append(Text(shown, style="bold" if is_best and len(runs) > 1 else ""))
        if column.compared and len(runs) > 1:
            gain = value / first if column.figure.more_is_better else first / value
            cells.append(Text(times_better(gain), style="dim"))
    return cells


# -- the verdict ------------------------------------------------------------------------------------------

# Figures that the verdict of `peek simulate` may mention.
_SAID: Final = ("ttft_s.mean", "ttft_s.p99", "cache_hit", "job_s.mean")


def verdict(batch: Batch) -> str:
    """Say in one sentence what a policy changes: `peek` if it ran, else the one with the shortest mean TTFT.

    Each figure is compared with the best of the engine's own settings among the runs, or else with the first
    run.  "" for one run, for several routers, and for a cell, because the evaluation covers cells.
    """
    routers = {run.get("router") for run in batch.runs}
    if batch.workload.load not in ("trace", "sessions") or len(routers) > 1:
        return ""
    runs = {str(run["policy"]): run for run in batch.runs}
    labels, means = list(runs), {label: run["ttft_s"]["mean"] for label, run in runs.items()}
    stock = [label for label in engine_of(batch.cache).stock if label in runs] or labels[:1]
    others = [label for label in labels if label not in stock]
    if not others:
        others, stock = labels[1:], labels[:1]
    if not others:
        return ""
    ours = OURS if OURS in others else min(others, key=means.__getitem__)
    found = [each for each in changes([runs], ours, stock) if each.figure.name in _SAID]
    said = [change_text(each, False) for each in found if abs(each.gain) > each.figure.same]
    if not said:
        return f"Nothing changes under {ours}: {reason(runs[stock[0]])}."
    against = joined(list(dict.fromkeys(each.against for each in found)), " or ")
    better = ", whichever is better," * (" or " in against)
    text = f"Under {ours} instead of {against}{better} {joined(said)}"
    shortest = min(labels, key=means.__getitem__)
    if means[shortest] < (1.0 - SAME) * means[ours]:
        text += f"; {shortest} has the shortest mean, {seconds_text(means[shortest])}"
    return f"{text}."


def change_text(change: Change, ranged: bool, words: str = "", under: str = "", also: str = "") -> str:
    """Write the change of a figure as part of a sentence; `ranged` adds the range over the draws.

    `words` name the figure ("": its own words); `under` follows the old value; `also` ends it, in brackets.
    """
    figure = change.figure
    verb = "rises" if change.after > change.before else "falls"
    before, after = (
        f"{100.0 * value:.1f} %" if figure.is_share else figure_text(figure, value)
        for value in (change.before, change.after)
    )
    ends = sorted((change.low, change.high), key=abs) if ranged else []
    if figure.is_share:
        size = " to ".join(f"{100.0 * end:+.0f}" for end in ends) + " points" * ranged
    else:
        size = _size(figure, [change.gain, *ends])
    brackets = "; ".join(filter(None, (size, also)))
    text = f"{words or figure.words} {verb} from {before}{under} to {after}"
    return f"{text} ({brackets})" if brackets else text


def _size(figure: Figure, gains: Sequence[float]) -> str:
    """Write how much a figure changes, then its range: as "x2.4" if any of these doubles, else in percent."""
    ratios = [1.0 + gain if figure.more_is_better else 1.0 - gain for gain in gains]
    times = [max(ratio, 1.0 / max(ratio, 1e-9)) for ratio in ratios]
    is_large = max(times) >= 1.95
    percents = [f"{100.0 * abs(ratio - 1.0):.0f}" for ratio in ratios]
    first, *ends = [f"x{each:.1f}" for each in times] if is_large else percents
    return "; ".join(part + " %" * (not is_large) for part in (first, " to ".join(ends)) if part)


# Figures of the answer in words; other figures are mentioned only if none of these changes.
_FIRST: Final = ("ttft_s.mean", "ttft_s.p99", "goodput.0.share")


def said_of(found: Answer) -> str:
    """Write the answer in a few sentences: the gain of a flag, and what `peek` adds to the best flag."""
    flag = found.engine.stock[found.advised]
    has_flags = len(found.engine.stock) > 1
    said = []
    if flag:
        said.append(f"Turn on `{flag}`: {_listed([each for each in found.stock if each.is_gain], found)}.")
        if costs := [each for each in found.stock if each.is_loss]:
            said.append(f"But {_listed(costs, found)}.")
    if found.verdict in ("gain", "mixed"):
        rival = "" if has_flags else f", beside {found.engine.title}'s default,"
        said.append(f"Under `peek`{rival} {_listed(found.gains, found, has_flags)}.")
    else:
        said.append(f"Nothing to gain from `peek`: {_why_not(found)}.")
    told = found.ours[0] if found.verdict == "loss" and found.ours[0].is_loss else None
    if losses := [each for each in found.losses if each is not told]:
        said.append(f"But under `peek` {_listed(losses, found, has_flags)}.")
    if len(found.draws) > 1 and (flag or found.gains or found.losses):
        said.append(f"Ranges are over {counted(len(found.draws) - 1, 'resample')} of the arrivals.")
    return " ".join(said)


def _listed(changed: list[Change], found: Answer, against: bool = False) -> str:
    """Write the changes that matter most; with `against` also the setting that each is compared with."""
    runs, advised = found.draws[0], found.advised
    said = []
    for each in [one for one in changed if one.figure.name in _FIRST] or changed[:2]:
        words = ""
        if not each.figure.words:  # "goodput.0.share"
            target = runs[OURS]["goodput"][int(each.figure.name.split(".")[1])]
            words = f"the share of requests in time ({target_text(target)})"
        under = f" under {_setting(found, each.against)}" if against else ""
        also = ""
        if against and each.is_loss and advised not in (each.against, found.default):
            has = figure_text(each.figure, each.figure.value(runs[advised]))
            also = f"{_setting(found, advised)} has {has}"
        said.append(change_text(each, len(found.draws) > 1, words, under, also))
    return joined(said)


def _setting(found: Answer, label: str) -> str:
    """Write a stock setting briefly: the value of its flag, or that it is the default."""
    flag = found.engine.stock[label]
    return f"`{flag.rpartition(' ')[2]}`" if flag else "the default"


def target_text(target: Mapping[str, float]) -> str:
    """Write a target of goodput; both parts have to be met."""
    return f"{target['ttft_s']:g} s, {target['tpot_ms']:g} ms a token"


def _why_not(found: Answer) -> str:
    mean = found.ours[0]
    flag = found.engine.stock[mean.against]
    rival = f"`{flag}`" if flag else f"{found.engine.title}'s default"
    shorter, longer = sorted((mean.before, mean.after))
    size = f"{100.0 * (1.0 - shorter / longer):.0f} %" if longer else "0 %"
    if mean.gain > mean.figure.same:
        return f"its mean is {size} shorter than under {rival}, which is within the spread of other arrivals"
    if mean.gain < -mean.figure.same:
        return f"the mean is {size} shorter under {rival}"
    if as_good := found.engine.stock[found.best]:
        return f"`{as_good}` does as well"
    return reason(found.draws[0][found.default])


def reason(first: dict[str, Any]) -> str:
    """Say why no order makes a difference."""
    wait_s = first["queue_wait_s"]["p99"]
    hit, ideal = 100.0 * first["cache_hit"], 100.0 * first["ideal_hit"]
    if wait_s < SHORT_WAIT_S:
        waiting = f"99 of 100 requests wait less than {seconds_text(max(wait_s, 1e-3))}"
        options = {"session_rate": "--session-rate", "rate_scale": "--rate-scale"}
        more = "".join(f"; a higher {option} makes one" for name, option in options.items() if name in first)
        return f"{waiting}, so there is hardly a queue to order{more}"
    if ideal < 5.0:
        return f"these prompts share next to nothing, {ideal:.1f} % at best"
    if ideal - hit < 2.0:
        return f"the cache already serves {hit:.1f} % of the {ideal:.1f} % that any cache could"
    return "what these requests share does not wait at the same time"


def seconds_text(value: float) -> str:
    """Write a time in seconds, or in milliseconds if it is below a second."""
    return f"{1000.0 * value:.0f} ms" if value < 0.9995 else f"{significant(value)} s"


def figure_text(figure: Figure, value: float) -> str:
    """Write the value of a figure: a share in percent, a rate as a number, or a time."""
    if figure.is_share:
        return f"{100.0 * value:.0f} %"
    return significant(value) if figure.name == "throughput_rps" else seconds_text(value)


def joined(parts: list[str], last: str = " and ") -> str:
    """Join parts by commas and a last word, as in a sentence."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}{last}{parts[-1]}"


# -- the figure -------------------------------------------------------------------------------------------

PANELS: Final = {
    "cache_hit": "Cache hit",
    "ttft_s.mean": "TTFT mean, s (less is better)",
    "throughput_rps": "Throughput, req/s (more is better)",
    "ttft_s.p99": "TTFT p99, s (less is better)",
}
"""Figures that are drawn, with their titles; the axes of times may be logarithmic."""


def check_plot(path: Path) -> None:
    """Raise an error, before the runs, if the plot could not be drawn or written after them."""
    if path.suffix.lower() not in PLOT_FORMATS:
        said = f"{str(path)!r} ends in none of {', '.join(PLOT_FORMATS)}"
        raise typer.BadParameter(said, param_hint="--plot")
    check_target(path)
    try:
        import_module("matplotlib")
    except ImportError:
        raise needs("matplotlib", "--plot", "plot") from None


def save_plot(path: Path, batches: list[Batch]) -> None:
    """Draw all runs into the file `path`; several seeds become means with their range as a line."""
    from matplotlib import figure as drawing  # not pyplot, which has global state and may open windows

    first, heading = batches[0], batches[0].title
    names = [name_of(run) for run in first.runs]
    figure = drawing.Figure(figsize=(10.0, 2.0 + 0.58 * max(len(names), 2)), dpi=150, layout="constrained")
    if len(batches) > 1:
        seeds = ", ".join(str(batch.workload.seed) for batch in batches)
        heading = f"{first.workload.name} {first.workload.load}, mean and range of seeds {seeds}"
    title = f"{fill(heading, 110)}\n{fill(first.setting, 110)}"
    figure.suptitle(in_utf8(title).decode(), fontsize=10, color=_INK, parse_math=False)
    columns = {column.figure.name: column for column in _COLUMNS}
    for place, name in enumerate(PANELS):
        axes, column = figure.add_subplot(2, 2, place + 1), columns[name]
        values = [[column.figure.value(batch.runs[row]) for batch in batches] for row in range(len(names))]
        _draw(axes, names, values)
        _scale(axes, name, values)
        if name == "cache_hit":
            _draw_ideal(axes, fmean(batch.runs[0]["ideal_hit"] for batch in batches))
        _write_values(axes, column, values)
        if place % 2:
            axes.set_yticklabels([])
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower())
    with write_whole([path]) as (stream,):
        stream.write(picture.getbuffer())


def _draw(axes: Axes, names: list[str], values: list[list[float]]) -> None:
    """Draw the bars of the runs in the order of the command line; `peek`, as policy or router, is red."""
    rows = list(range(len(names)))
    colors = [_PEEK if set(name.split(", ")) == {OURS} else _OTHERS for name in names]
    axes.barh(rows, [fmean(each) for each in values], height=0.7, color=colors)
    for row, each in enumerate(values):
        if len(each) > 1:
            axes.plot([min(each), max(each)], [row, row], color=_INK, linewidth=1.2)
    axes.set_yticks(rows, names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(axes: Axes, name: str, values: list[list[float]]) -> None:
    """Scale the axis linearly from 0, or logarithmically, with room for a value after the longest bar."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(map(min, values)), max(map(max, values))
    axes.set_title(PANELS[name], **_TITLE)
    if name.startswith("ttft_s") and high > LOG_RANGE * low > 0.0:
        axes.set_xscale("log")
        left = low / 2.0
        axes.set_xlim(left, high * (high / left) ** 0.16)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")  # not a power of ten
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{PANELS[name]}, log scale", **_TITLE)
    else:
        axes.set_xlim(0.0, high * 1.16 or 1.0)


def _draw_ideal(axes: Axes, ideal: float) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_xlim(0.0, min(1.0, max(1.1 * ideal, axes.get_xlim()[1])))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.axvline(ideal, linestyle="--", linewidth=1.2, color=_INK)
    axes.set_title(f"Cache hit (more is better; dashed: ideal {ideal:.1%})", **_TITLE)


def _write_values(axes: Axes, column: Column, values: list[list[float]]) -> None:
    """Write the mean after each bar, or inside it on the panel of cache hits, clear of the ideal."""
    is_hit = column.figure.name == "cache_hit"
    for row, each in enumerate(values):
        inside = is_hit and min(each) > 0.2 * axes.get_xlim()[1]
        axes.annotate(
            column.text(fmean(each)), (min(each) if inside else max(each), row),
            xytext=(-5 if inside else 5, 0), textcoords="offset points", ha="right" if inside else "left",
            va="center_baseline", fontsize=9, color="white" if inside else _INK,
        )  # fmt: skip
