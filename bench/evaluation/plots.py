"""Figures of the report, as small SVG files (text stays text)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.evaluation.plans import NAMES, REAL, W1, W1_HEAVY, WAIT_SHARES, WAIT_STREAM
from bench.evaluation.results import STOCKS, Cell, Results
from bench.evaluation.text import title

mpl.use("svg")
import matplotlib.pyplot as plt

STOCK_COLOR, PUBLISHED_COLOR, PEEK_COLOR = "#6b7280", "#2563eb", "#d9480f"
PRESSURE = dict(zip(W1_HEAVY, (2, 4, 8, 16), strict=True))
LINES = {
    "stock": STOCK_COLOR,
    "lpm-nolimit+lru": "#0f766e",
    "clpm+gm+dl+pe": PUBLISHED_COLOR,
    "peek": PEEK_COLOR,
}
WAITS = {
    "stock": (STOCK_COLOR, "-"),
    "lpm-nolimit+lru": ("#0f766e", "-"),
    "hrrn+lru": ("#0f766e", "--"),
    "clpm": (PUBLISHED_COLOR, "--"),
    "clpm+gm+dl+pe": (PUBLISHED_COLOR, "-"),
    "peek": (PEEK_COLOR, "-"),
}
LAST_SHARE = 0.1
"""Where the logarithmic axis of the waits begins."""
REACH = 2.2
"""A front shows policies whose mean is within so many times of the best; the others are named below."""
mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "peek",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e5e7eb",
        "axes.axisbelow": True,
    }
)


def draw(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Everything, for the real engines that were run; (title, file name) of each front."""
    folder.mkdir(parents=True, exist_ok=True)
    engines = [engine for engine in REAL if results.cell(engine, WAIT_STREAM).has("peek")]
    pressure(results, engines, "hit", folder / "hit-pressure.svg")
    pressure(results, engines, "ttft", folder / "ttft-pressure.svg")
    ablation(results, engines, folder / "ablation.svg")
    waits(results, engines, folder / "waits.svg")
    return fronts(results, engines, folder)


@contextmanager
def panels(
    path: Path, names: Sequence[str], height: float, heading: str = "", sharey: bool = False
) -> Iterator[list[Any]]:
    """An axis for each name, side by side; saved to `path` at the end."""
    size = (5.2 * len(names), height)
    figure, axes = plt.subplots(1, len(names), figsize=size, squeeze=False, sharey=sharey)
    yield list(axes[0])
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=9, loc="left")
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
            with panels(folder / name, [cell.name for cell in cells], 4.2, title(stream)) as axes:
                for axis, cell in zip(axes, cells, strict=True):
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


def pressure(results: Results, engines: Sequence[str], figure: str, path: Path) -> None:
    """Hit or mean TTFT over the KV pressure of the heavy W1 cells; crosses are the paper's."""
    with panels(path, [NAMES[engine] for engine in engines], 3.6, sharey=True) as axes:
        for axis, engine in zip(axes, engines, strict=True):
            cells = {results.cell(engine, stream): value for stream, value in PRESSURE.items()}
            for name, color in LINES.items():
                policy = next(iter(cells)).stock if name == "stock" else name
                ours = [
                    (x, getattr(found, figure))
                    for cell, x in cells.items()
                    if (found := cell.figures(policy))
                ]
                axis.plot(
                    *zip(*ours, strict=True), "o-", ms=4, lw=1.6,
                    color=color, label=f"{policy} (stock)" if name == "stock" else policy,
                )  # fmt: skip
                known = [
                    (x, getattr(found, figure)) for cell, x in cells.items() if (found := cell.paper(policy))
                ]
                if known:
                    axis.plot(*zip(*known, strict=True), "x--", ms=5, lw=0.8, color=color)
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(PRESSURE.values()), [f"{value}x" for value in PRESSURE.values()])
            axis.set_xlabel("prefixes / KV arena")
            axis.plot([], [], "x--", ms=5, lw=0.8, color="#111827", label="the paper's")
            axis.legend(fontsize=7, frameon=False)
        axes[0].set_ylabel("cache hit, %" if figure == "hit" else "mean TTFT, s (log)")
        if figure != "hit":
            axes[0].set_yscale("log")


def ablation(results: Results, engines: Sequence[str], path: Path) -> None:
    """Mean TTFT of each step of the published lattice on W1 C heavy."""
    with panels(path, [f"{NAMES[engine]}, W1 C heavy" for engine in engines], 3.2) as axes:
        for axis, engine in zip(axes, engines, strict=True):
            cell = results.cell(engine, "w1c:heavy")
            order = cell.stock.split("+")[0]
            steps = [f"{order}+lru", f"{order}+pe", "lpm-nolimit+lru", "clpm", "clpm+gm", "clpm+gm+dl"]
            ran = [policy for policy in (*steps, "clpm+gm+pe", "clpm+gm+dl+pe", "peek") if cell.has(policy)][
                ::-1
            ]
            values = [cell.mean(policy, "ttft") for policy in ran]
            bars = axis.barh(ran, values, color=list(map(color_of, ran)), height=0.65)
            axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
            axis.margins(x=0.12)
            axis.grid(axis="y", visible=False)
            axis.set_xlabel("mean TTFT, s")


def waits(results: Results, engines: Sequence[str], path: Path) -> None:
    """Share of the requests that wait longer than so many seconds, first seed; stock leaves the frame."""
    longer = [max(100.0 - share, LAST_SHARE) for share in WAIT_SHARES]
    names = [f"{NAMES[engine]}, {title(WAIT_STREAM)}" for engine in engines]
    with panels(path, names, 3.8, sharey=True) as axes:
        for axis, engine in zip(axes, engines, strict=True):
            cell = results.cell(engine, WAIT_STREAM)
            longest = 1.0
            for name, (color, style) in WAITS.items():
                policy = cell.stock if name == "stock" else name
                by_seed = cell.runs.get(policy)
                spans = by_seed[min(by_seed)].get("waits") if by_seed else None
                if not spans:
                    continue
                label = policy
                if name == "stock":
                    label = f"{policy} (stock, up to {spans[-1]:.0f} s)"
                else:
                    longest = max(longest, spans[-1])
                axis.plot(spans, longer, style, lw=1.6, color=color, label=label)
            axis.set_xlim(0.0, 1.1 * longest)
            axis.set_yscale("log")
            axis.set_xlabel("wait until first admission, s")
            axis.legend(fontsize=7, frameon=False, loc="lower left")
        axes[0].set_ylabel("% of the requests that wait longer (log)")
