"""Figures of the report, as small SVG files (text stays text)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.evaluation.plans import FULL_STACK, REAL, W1, W1_HEAVY, WAIT_SHARES, WAIT_STREAM
from bench.evaluation.results import STOCKS, Cell, Results, title

mpl.use("svg")
import matplotlib.pyplot as plt

STOCK_COLOR, PUBLISHED_COLOR, PEEK_COLOR = "#6b7280", "#2563eb", "#d9480f"
PRESSURE = dict(zip(W1_HEAVY, (2, 4, 8, 16), strict=True))
"""Prefixes / KV arena of each heavy W1 cell."""
LINES = {
    "stock": (STOCK_COLOR, "-"),
    "lpm-nolimit+lru": ("#0f766e", "-"),
    "hrrn+lru": ("#0f766e", "--"),
    "clpm": (PUBLISHED_COLOR, "--"),
    FULL_STACK: (PUBLISHED_COLOR, "-"),
    "peek": (PEEK_COLOR, "-"),
}
"""Policies that are drawn as lines; the dashed ones among the waits only."""
STEPS = ("peek", FULL_STACK, "clpm+gm+pe", "clpm+gm+dl", "clpm+gm", "clpm", "lpm-nolimit+lru")
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
    for figure, label in (("hit", "cache hit, %"), ("ttft", "mean TTFT, s (log)")):
        one = partial(pressure, results, figure)
        panels(folder / f"{figure}-pressure.svg", cells, one, 3.6, ylabel=label)
    panels(folder / "ablation.svg", cells, ablation, 3.2, about=f", {title(WAIT_STREAM)}")
    label = "% of the requests that wait longer (log)"
    panels(folder / "waits.svg", cells, waits, 3.8, about=f", {title(WAIT_STREAM)}", ylabel=label)
    made = []
    for stream in W1:
        if ran := list(results.cells([stream], [cell.engine for cell in cells], "peek")):
            made.append((title(stream), f"front-{stream.replace(':', '-')}.svg"))
            panels(folder / made[-1][1], ran, front, 4.2, heading=title(stream))
    return made


def panels(
    path: Path, cells: Sequence[Cell], one: Callable[[Cell, Any], None], height: float, *,
    about: str = "", heading: str = "", ylabel: str = "",
) -> None:  # fmt: skip
    """`one` for each cell, side by side, named after its engine, into `path`; `ylabel` is of all of them."""
    size = (5.2 * len(cells), height)
    figure, axes = plt.subplots(1, len(cells), figsize=size, squeeze=False, sharey=bool(ylabel))
    for axis, cell in zip(axes[0], cells, strict=True):
        one(cell, axis)
        axis.set_title(cell.engine_name + about, fontsize=9, loc="left")
    if ylabel:
        axes[0][0].set_ylabel(ylabel)
    if heading:
        figure.suptitle(heading, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def color_of(policy: str) -> str:
    if policy == "peek":
        return PEEK_COLOR
    return STOCK_COLOR if policy in (*STOCKS, "k-lpm+lru") else PUBLISHED_COLOR


def front(cell: Cell, axis: Any) -> None:
    """Mean against p99 TTFT, every policy a point."""
    candidates = [policy for policy in cell.runs if "," not in policy]  # the others are studies
    points = [(cell.mean(policy, "ttft"), cell.mean(policy, "ttft_p99"), policy) for policy in candidates]
    reach = REACH * min(points)[0]
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
        place = {"transform": axis.transAxes, "ha": "right", "va": "bottom"}
        axis.text(0.99, 0.01, note, fontsize=6.5, color=STOCK_COLOR, **place)


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


def lines(cell: Cell) -> Iterator[tuple[str, str, str, str]]:
    """Policy, label, colour and style of everything that is drawn as a line."""
    for name, look in LINES.items():
        yield (cell.stock, f"{cell.stock} (stock)", *look) if name == "stock" else (name, name, *look)


def pressure(results: Results, figure: str, cell: Cell, axis: Any) -> None:
    """Hit or mean TTFT over the KV pressure of the heavy W1 cells; crosses are the paper's."""
    cells = {x: results.cell(cell.engine, stream) for stream, x in PRESSURE.items()}
    for policy, label, color, style in lines(cell):
        ours, theirs = {"ms": 4, "lw": 1.6, "label": label}, {"ms": 5, "lw": 0.8}
        for of, marks, look in ((Cell.figures, "o-", ours), (Cell.paper, "x--", theirs)):
            known = [(x, getattr(found, figure)) for x, one in cells.items() if (found := of(one, policy))]
            if known and style == "-":
                axis.plot(*zip(*known, strict=True), marks, color=color, **look)
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(cells), [f"{x}x" for x in cells])
    axis.set_xlabel("prefixes / KV arena")
    axis.plot([], [], "x--", ms=5, lw=0.8, color="#111827", label="the paper's")
    axis.legend(fontsize=7, frameon=False)
    if figure != "hit":
        axis.set_yscale("log")


def ablation(cell: Cell, axis: Any) -> None:
    """Mean TTFT of each step of the published lattice."""
    order = cell.stock.split("+")[0]
    ran = list(filter(cell.has, (*STEPS, f"{order}+pe", f"{order}+lru")))
    values = [cell.mean(policy, "ttft") for policy in ran]
    bars = axis.barh(ran, values, color=list(map(color_of, ran)), height=0.65)
    axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axis.margins(x=0.12)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("mean TTFT, s")


def waits(cell: Cell, axis: Any) -> None:
    """Share of the requests that wait longer than so many seconds, first seed; stock leaves the frame."""
    longer = [max(100.0 - share, LAST_SHARE) for share in WAIT_SHARES]
    longest = 1.0
    for policy, label, color, style in lines(cell):
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
