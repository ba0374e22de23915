"""Figures of the report, as small SVG files (text stays text)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.evaluation.paper import Figures
from bench.evaluation.plans import REAL, W1, W1_HEAVY, WAIT_SHARES, WAIT_STREAM
from bench.evaluation.results import STOCKS, Cell, Results
from bench.evaluation.text import title

mpl.use("svg")
import matplotlib.pyplot as plt

STOCK_COLOR, PUBLISHED_COLOR, PEEK_COLOR = "#6b7280", "#2563eb", "#d9480f"
PRESSURE = dict(zip(W1_HEAVY, (2, 4, 8, 16), strict=True))
LINES = {
    "stock": (STOCK_COLOR, "-"),
    "lpm-nolimit+lru": ("#0f766e", "-"),
    "hrrn+lru": ("#0f766e", "--"),
    "clpm": (PUBLISHED_COLOR, "--"),
    "clpm+gm+dl+pe": (PUBLISHED_COLOR, "-"),
    "peek": (PEEK_COLOR, "-"),
}
"""Policies that are drawn as lines; the dashed ones among the waits only."""
LAST_SHARE = 0.1
"""Where the logarithmic axis of the waits begins."""
REACH = 2.2
"""A front shows policies whose mean is within so many times of the best; the others are named below."""
mpl.rc("svg", fonttype="none", hashsalt="peek")
mpl.rc("font", size=9)
mpl.rc("axes", grid=True, axisbelow=True)
mpl.rc("axes.spines", top=False, right=False)
mpl.rc("grid", color="#e5e7eb")


def draw(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Everything, for the real engines that were run; (title, file name) of each front."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = list(results.cells([WAIT_STREAM], REAL, "peek"))
    pressure(results, cells, "hit", folder / "hit-pressure.svg")
    pressure(results, cells, "ttft", folder / "ttft-pressure.svg")
    ablation(cells, folder / "ablation.svg")
    waits(cells, folder / "waits.svg")
    return fronts(results, [cell.engine for cell in cells], folder)


@contextmanager
def panels(
    path: Path, cells: Sequence[Cell], height: float, about: str = "", heading: str = "", sharey: bool = False
) -> Iterator[list[tuple[Any, Cell]]]:
    """An axis for each cell, side by side, named after its engine; saved to `path` at the end."""
    size = (5.2 * len(cells), height)
    figure, axes = plt.subplots(1, len(cells), figsize=size, squeeze=False, sharey=sharey)
    yield list(zip(axes[0], cells, strict=True))
    for axis, cell in zip(axes[0], cells, strict=True):
        axis.set_title(cell.name + about, fontsize=9, loc="left")
    if heading:
        figure.suptitle(heading, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def color_of(policy: str) -> str:
    if policy == "peek":
        return PEEK_COLOR
    return STOCK_COLOR if policy in (*STOCKS, "k-lpm+lru") else PUBLISHED_COLOR


def fronts(results: Results, engines: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """One figure per W1 cell: mean against p99 TTFT, every policy a point; (title, file name) of each."""
    made = []
    for stream in W1:
        cells = list(results.cells([stream], engines, "peek"))
        if cells:
            name = f"front-{stream.replace(':', '-')}.svg"
            with panels(folder / name, cells, 4.2, heading=title(stream)) as shown:
                for axis, cell in shown:
                    front(cell, axis)
            made.append((title(stream), name))
    return made


def front(cell: Cell, axis: Any) -> None:
    points = [
        (cell.mean(policy, "ttft"), cell.mean(policy, "ttft_p99"), policy)
        for policy in cell.runs
        if "," not in policy  # studies, not candidates
    ]
    reach = REACH * min(point[0] for point in points)
    near = [point for point in points if point[0] <= reach]
    far = [policy.removesuffix("+lru") for mean, _, policy in points if mean > reach]
    for mean, p99, policy in near:
        axis.scatter(mean, p99, s=34 if policy == "peek" else 20, color=color_of(policy), zorder=3)
    label_points(axis, near)
    axis.set_xlabel("mean TTFT, s")
    axis.set_ylabel("p99 TTFT, s")
    axis.margins(x=0.28, y=0.12)
    if far:
        note = textwrap.fill(f"beyond {REACH:g} x the best mean: {', '.join(far)}", 60)
        axis.text(
            0.99, 0.01, note, transform=axis.transAxes,
            ha="right", va="bottom", fontsize=6.5, color=STOCK_COLOR,
        )  # fmt: skip


def label_points(axis: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside the points, moved up where they would overlap another name."""
    means, tails = [point[0] for point in points], [point[1] for point in points]
    gap = 0.045 * max(max(tails) - min(tails), 1e-9)
    near = 0.3 * max(max(means) - min(means), 1e-9)
    taken: list[tuple[float, float]] = []
    for mean, p99, policy in sorted(points, key=lambda point: point[1]):
        place = p99
        for x, y in sorted(taken, key=lambda spot: spot[1]):
            if abs(x - mean) < near and abs(y - place) < gap:
                place = y + gap
        taken.append((mean, place))
        moved = place > p99 + gap / 2
        axis.annotate(
            policy.removesuffix("+lru"), (mean, p99), xytext=(mean * 1.03, place), fontsize=7,
            color=color_of(policy), va="center",
            arrowprops={"arrowstyle": "-", "color": "#d1d5db", "lw": 0.5} if moved else None,
        )  # fmt: skip


def pressure(results: Results, cells: Sequence[Cell], figure: str, path: Path) -> None:
    """Hit or mean TTFT over the KV pressure of the heavy W1 cells; crosses are the paper's."""
    with panels(path, cells, 3.6, sharey=True) as shown:
        for axis, cell in shown:
            points = {results.cell(cell.engine, stream): x for stream, x in PRESSURE.items()}
            for policy, label, (color, style) in lines(cell):
                ours = [(x, one.figures(policy)) for one, x in points.items()]
                theirs = [(x, one.paper(policy)) for one, x in points.items()]
                if style == "-":
                    axis.plot(*known(ours, figure), "o-", ms=4, lw=1.6, color=color, label=label)
                if style == "-" and any(found for _, found in theirs):
                    axis.plot(*known(theirs, figure), "x--", ms=5, lw=0.8, color=color)
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(PRESSURE.values()), [f"{value}x" for value in PRESSURE.values()])
            axis.set_xlabel("prefixes / KV arena")
            axis.plot([], [], "x--", ms=5, lw=0.8, color="#111827", label="the paper's")
            axis.legend(fontsize=7, frameon=False)
        shown[0][0].set_ylabel("cache hit, %" if figure == "hit" else "mean TTFT, s (log)")
        if figure != "hit":
            shown[0][0].set_yscale("log")


def lines(cell: Cell) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Policy, label, colour and style of everything that is drawn as a line."""
    for name, look in LINES.items():
        yield (cell.stock, f"{cell.stock} (stock)", look) if name == "stock" else (name, name, look)


def known(points: Sequence[tuple[int, Figures | None]], figure: str) -> list[Any]:
    """The points that there are, as `plot` wants them."""
    return list(zip(*((x, getattr(found, figure)) for x, found in points if found), strict=True))


def ablation(cells: Sequence[Cell], path: Path) -> None:
    """Mean TTFT of each step of the published lattice on W1 C heavy."""
    with panels(path, cells, 3.2, about=f", {title(WAIT_STREAM)}") as shown:
        for axis, cell in shown:
            order = cell.stock.split("+")[0]
            steps = [
                "peek",
                "clpm+gm+dl+pe",
                "clpm+gm+pe",
                "clpm+gm+dl",
                "clpm+gm",
                "clpm",
                "lpm-nolimit+lru",
            ]
            ran = list(filter(cell.has, (*steps, f"{order}+pe", f"{order}+lru")))
            values = [cell.mean(policy, "ttft") for policy in ran]
            bars = axis.barh(ran, values, color=list(map(color_of, ran)), height=0.65)
            axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
            axis.margins(x=0.12)
            axis.grid(axis="y", visible=False)
            axis.set_xlabel("mean TTFT, s")


def waits(cells: Sequence[Cell], path: Path) -> None:
    """Share of the requests that wait longer than so many seconds, first seed; stock leaves the frame."""
    longer = [max(100.0 - share, LAST_SHARE) for share in WAIT_SHARES]
    with panels(path, cells, 3.8, about=f", {title(WAIT_STREAM)}", sharey=True) as shown:
        for axis, cell in shown:
            longest = 1.0
            for policy, label, (color, style) in lines(cell):
                by_seed = cell.runs.get(policy)
                spans = by_seed[min(by_seed)].get("waits") if by_seed else None
                if not spans:
                    continue
                if policy == cell.stock:
                    label = f"{policy} (stock, up to {spans[-1]:.0f} s)"
                else:
                    longest = max(longest, spans[-1])
                axis.plot(spans, longer, style, lw=1.6, color=color, label=label)
            axis.set_xlim(0.0, 1.1 * longest)
            axis.set_yscale("log")
            axis.set_xlabel("wait until first admission, s")
            axis.legend(fontsize=7, frameon=False, loc="lower left")
        shown[0][0].set_ylabel("% of the requests that wait longer (log)")
