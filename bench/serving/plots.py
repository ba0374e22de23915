"""Figures of the report, as small SVG files (text stays text)."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from engines import FAMILY, WAIT_SHARES, WAIT_STREAMS
from paper import BASELINE, published
from plans import W1
from results import STOCKS, Results, title
from sections import ENGINE_NAMES

mpl.use("svg")
import matplotlib.pyplot as plt

STOCK_COLOR, PUBLISHED_COLOR, PEEK_COLOR = "#6b7280", "#2563eb", "#d9480f"
PRESSURE = {"w1a:heavy": 2, "w1b:heavy": 4, "w1c:heavy": 8, "w1d:heavy": 16}
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


def color_of(policy: str) -> str:
    if policy == "peek":
        return PEEK_COLOR
    return STOCK_COLOR if policy in (*STOCKS, "k-lpm+lru") else PUBLISHED_COLOR


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def fronts(results: Results, engines: tuple[str, ...], folder: Path) -> list[tuple[str, str]]:
    """One figure per W1 cell: mean against p99 TTFT, every policy a point; (title, file name) of each."""
    made = []
    for stream in W1:
        ran = [engine for engine in engines if results.has(engine, stream, "peek")]
        if not ran:
            continue
        figure, axes = plt.subplots(1, len(ran), figsize=(5.2 * len(ran), 4.2), squeeze=False)
        for axis, engine in zip(axes[0], ran, strict=True):
            front(results, engine, stream, axis)
        name = f"front-{stream.replace(':', '-')}.svg"
        figure.suptitle(title(stream), fontsize=10)
        save(figure, folder / name)
        made.append((title(stream), name))
    return made


def front(results: Results, engine: str, stream: str, axis: Any) -> None:
    points = []
    for policy in results.policies(engine, stream):
        if "," in policy:  # studies, not candidates
            continue
        mean = results.mean(engine, stream, policy, "ttft")
        points.append((mean, results.mean(engine, stream, policy, "ttft_p99"), policy))
    reach = REACH * min(point[0] for point in points)
    near = [point for point in points if point[0] <= reach]
    far = [policy.removesuffix("+lru") for mean, _, policy in points if mean > reach]
    for mean, p99, policy in near:
        axis.scatter(mean, p99, s=34 if policy == "peek" else 20, color=color_of(policy), zorder=3)
    label_points(axis, near)
    axis.set_title(ENGINE_NAMES[engine], fontsize=9, loc="left")
    axis.set_xlabel("mean TTFT, s")
    axis.set_ylabel("p99 TTFT, s")
    axis.margins(x=0.28, y=0.12)
    if far:
        note = textwrap.fill(f"beyond {REACH:g} x the best mean: {', '.join(far)}", 60)
        axis.text(
            0.99, 0.01, note, transform=axis.transAxes,
            ha="right", va="bottom", fontsize=6.5, color=STOCK_COLOR,
        )  # fmt: skip


def label_points(axis: Any, points: list[tuple[float, float, str]]) -> None:
    """Names beside the points, moved up where they would overlap another name."""
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    gap = 0.045 * max(high - low, 1e-9)
    near = 0.3 * max(max(p[0] for p in points) - min(p[0] for p in points), 1e-9)
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


def pressure(results: Results, engines: tuple[str, ...], figure_name: str, path: Path) -> None:
    """Hit or mean TTFT over the KV pressure of the heavy W1 cells; crosses are the paper's."""
    figure, axes = plt.subplots(
        1, len(engines), figsize=(5.2 * len(engines), 3.6), squeeze=False, sharey=True
    )
    for axis, engine in zip(axes[0], engines, strict=True):
        for name, color in LINES.items():
            policy = BASELINE[FAMILY[engine]] if name == "stock" else name
            ran = [stream for stream in PRESSURE if results.has(engine, stream, policy)]
            values = [results.mean(engine, stream, policy, figure_name) for stream in ran]
            axis.plot(
                [PRESSURE[s] for s in ran], [scaled(figure_name, v) for v in values], "o-", ms=4, lw=1.6,
                color=color, label=f"{policy} (stock)" if name == "stock" else policy,
            )  # fmt: skip
            rows = [(s, published(FAMILY[engine], s, policy)) for s in PRESSURE]
            known = [(PRESSURE[s], row[1 if figure_name == "hit" else 2]) for s, row in rows if row]
            if known:
                axis.plot(*zip(*known, strict=True), "x--", ms=5, lw=0.8, color=color)
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(PRESSURE.values()), [f"{value}x" for value in PRESSURE.values()])
        axis.set_xlabel("prefixes / KV arena")
        axis.set_title(ENGINE_NAMES[engine], fontsize=9, loc="left")
        axis.plot([], [], "x--", ms=5, lw=0.8, color="#111827", label="the paper's")
        axis.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("cache hit, %" if figure_name == "hit" else "mean TTFT, s (log)")
    if figure_name != "hit":
        axes[0][0].set_yscale("log")
    save(figure, path)


def scaled(figure_name: str, value: float) -> float:
    return 100.0 * value if figure_name == "hit" else value


def ablation(results: Results, engines: tuple[str, ...], path: Path) -> None:
    """Mean TTFT of each step of the published lattice on W1 C heavy."""
    figure, axes = plt.subplots(1, len(engines), figsize=(5.2 * len(engines), 3.2), squeeze=False)
    for axis, engine in zip(axes[0], engines, strict=True):
        order = BASELINE[FAMILY[engine]].split("+")[0]
        steps = [f"{order}+lru", f"{order}+pe", "lpm-nolimit+lru", "clpm", "clpm+gm", "clpm+gm+dl"]
        steps += ["clpm+gm+pe", "clpm+gm+dl+pe", "peek"]
        ran = [policy for policy in steps if results.has(engine, "w1c:heavy", policy)]
        values = [results.mean(engine, "w1c:heavy", policy, "ttft") for policy in ran]
        bars = axis.barh(
            ran[::-1], values[::-1], color=[color_of(policy) for policy in ran[::-1]], height=0.65
        )
        axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
        axis.margins(x=0.12)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("mean TTFT, s")
        axis.set_title(f"{ENGINE_NAMES[engine]}, W1 C heavy", fontsize=9, loc="left")
    save(figure, path)


def waits(results: Results, engines: tuple[str, ...], path: Path) -> None:
    """Share of the requests that wait longer than so many seconds, first seed; stock leaves the frame."""
    (stream,) = WAIT_STREAMS
    longer = [max(100.0 - share, LAST_SHARE) for share in WAIT_SHARES]
    figure, axes = plt.subplots(
        1, len(engines), figsize=(5.2 * len(engines), 3.8), squeeze=False, sharey=True
    )
    for axis, engine in zip(axes[0], engines, strict=True):
        longest = 1.0
        for name, (color, style) in WAITS.items():
            policy = BASELINE[FAMILY[engine]] if name == "stock" else name
            run = results.first(engine, stream, policy)
            if run is None or "waits" not in run:
                continue
            label = policy
            if name == "stock":
                label = f"{policy} (stock, up to {run['waits'][-1]:.0f} s)"
            else:
                longest = max(longest, run["waits"][-1])
            axis.plot(run["waits"], longer, style, lw=1.6, color=color, label=label)
        axis.set_xlim(0.0, 1.1 * longest)
        axis.set_yscale("log")
        axis.set_xlabel("wait until first admission, s")
        axis.set_title(f"{ENGINE_NAMES[engine]}, {title(stream)}", fontsize=9, loc="left")
        axis.legend(fontsize=7, frameon=False, loc="lower left")
    axes[0][0].set_ylabel("% of the requests that wait longer (log)")
    save(figure, path)
