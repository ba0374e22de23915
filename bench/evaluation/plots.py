"""Figures of the pages, as SVG files 7.2 inches wide; text stays text, readable at 700 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

import matplotlib as mpl

from bench.evaluation.cells import CLIENTS, LOADS, Cell, Results
from bench.evaluation.plans import (
    FULL_STACK,
    HEADLINE,
    LADDER,
    MAP_ARENAS,
    MAP_LOADS,
    NAMES,
    OVER_LOAD,
    SHARED,
    SHORT,
    SIMULATED,
    STOCKS,
    W1_HEAVY,
    parts_of,
)

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

WIDTH = 7.2
COLORS = {
    "fcfs+lru": "#9ca3af",
    "lpm+lru": "#6b7280",
    "lpm-nolimit+lru": "#0f766e",
    "hrrn+lru": "#65a30d",
    "spf+lru": "#7c3aed",
    FULL_STACK: "#2563eb",
    "peek": "#d9480f",
}
MEAN, TAIL = "#d9480f", "#1f2937"
REACH = 2.0
"""The front shows policies up to this many times the best; it names the others below."""
FARTHEST = 3.2
"""Largest ratio to the best stock policy that is drawn; an arrow stands for a larger one."""
CURVES = {"ttft": "mean TTFT, s", "e2e": "mean E2E, s", "rps": "requests/s"}
mpl.rc("svg", fonttype="none", hashsalt="peek")
mpl.rc("font", size=8)
mpl.rc("axes", grid=True, axisbelow=True, titlesize=8.5, titlelocation="left")
mpl.rc("axes.spines", top=False, right=False)
mpl.rc("grid", color="#e5e7eb")


def draw(results: Results, folder: Path, engines: Sequence[str]) -> None:
    """Draw the four figures of the first page, and the curves over the load; `engines`: not of the map."""
    folder.mkdir(parents=True, exist_ok=True)
    front(results, folder / "evaluation-front.svg", engines)
    heat(results, folder / "evaluation-map.svg")
    ranks(results, folder / "evaluation-losses.svg", engines)
    cost(results, folder / "evaluation-cost.svg", engines)
    for engine, (figure, label) in product(SIMULATED, CURVES.items()):
        curves(results, folder / curves_file(engine, figure), engine, figure, label)


def curves_file(engine: str, figure: str) -> str:
    """Return the file name of a figure over the load."""
    return f"evaluation-load-{engine.removeprefix('simulated-')}-{figure}.svg"


def save(figure: Any, path: Path) -> None:
    """Write a figure, without a date, and close it."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def standing(cells: Sequence[Cell], policy: str, figure: str, seed: int | None = None) -> float:
    """Return the geometric mean over cells of a policy's figure divided by the best stock policy's."""
    ratios = []
    for cell in cells:
        best = min(cell.mean(other, figure) for other in STOCKS if cell.has(other))
        own = cell.mean(policy, figure) if seed is None else cell.runs[policy][seed][figure]
        ratios.append(own / best)
    return exp(fmean(map(log, ratios)))


def front(results: Results, path: Path, engines: Sequence[str]) -> None:
    """Draw each policy by mean and p99 over all streams that share; small dots are seeds."""
    figure, axes = plt.subplots(1, len(engines), figsize=(WIDTH, 3.4), squeeze=False)
    for axis, engine in zip(axes[0], engines, strict=True):
        cells = list(results.cells(SHARED, (engine,), *SHORT))
        far = []
        for policy in SHORT if cells else ():
            x, y = (standing(cells, policy, name) for name in ("ttft", "ttft_p99"))
            if max(x, y) > REACH:
                far.append(f"{policy.removesuffix('+lru')} ({x:.1f}, {y:.1f})")
                continue
            for seed in set.intersection(*(set(cell.seeds) for cell in cells)):
                place = [standing(cells, policy, name, seed) for name in ("ttft", "ttft_p99")]
                axis.scatter(*place, s=7, color=COLORS[policy], alpha=0.4, linewidths=0)
            axis.scatter(x, y, s=42, color=COLORS[policy], zorder=3, label=policy.removesuffix("+lru"))
        axis.set_title(f"{NAMES[engine]}: {len(cells)} cells that share prefixes")
        axis.set_xlabel("mean TTFT / the best stock policy's")
        axis.set_ylabel("p99 TTFT / the best stock policy's")
        if cells:
            axis.legend(frameon=False, fontsize=7.5)
        note = f"beyond {REACH:g} times (mean, p99): {', '.join(far)}"
        lines = "\n".join(wrap(note, 50)) if far else ""
        axis.text(0.0, -0.22, lines, fontsize=7, color="#6b7280", va="top", transform=axis.transAxes)
    save(figure, path)


def heat(results: Results, path: Path) -> None:
    """Draw `peek` against the best stock policy over load and arena: mean (colour, number) and p99."""
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.1))
    for axis, engine in zip(axes, SIMULATED, strict=True):
        values = [[float("nan")] * len(MAP_LOADS) for _ in MAP_ARENAS]
        for column, load in enumerate(MAP_LOADS):
            for row, arena in enumerate(MAP_ARENAS):
                cell = results.cell(engine, f"map:{load}:arena{arena}")
                mean, tail = cell.against("ttft"), cell.against("ttft_p99")
                if mean and tail:
                    values[row][column] = 100 * (mean.ratio - 1)
                    text = f"{values[row][column]:+.0f}\n{100 * (tail.ratio - 1):+.0f}"
                    axis.text(column, row, text, ha="center", va="center", fontsize=8)
        axis.imshow(values, cmap="RdYlGn_r", vmin=-30, vmax=30, aspect="auto", alpha=0.7)
        axis.grid(visible=False)
        axis.set_xticks(range(len(MAP_LOADS)), [f"{load} %" for load in MAP_LOADS])
        axis.set_yticks(range(len(MAP_ARENAS)), [f"{arena}K" for arena in MAP_ARENAS])
        axis.set_title(f"{NAMES[engine]}: mean / p99 TTFT, %")
        axis.set_xlabel("load, of what arrival order can serve")
        axis.set_ylabel("KV arena, tokens")
    save(figure, path)


def ranks(results: Results, path: Path, engines: Sequence[str]) -> None:
    """Draw `peek` against the best stock policy of each stream, in mean and p99; lines span the seeds."""
    shown = [
        stream for stream in HEADLINE if any(results.cell(engine, stream).has("peek") for engine in engines)
    ]
    size = (WIDTH, 1.0 + 0.17 * len(shown))
    figure, axes = plt.subplots(1, len(engines), figsize=size, sharey=True, squeeze=False)
    for axis, engine in zip(axes[0], engines, strict=True):
        for row, stream in enumerate(shown):
            cell = results.cell(engine, stream)
            for name, color, shift in (("ttft", MEAN, -0.16), ("ttft_p99", TAIL, 0.16)):
                if versus := cell.against(name):
                    low, high = min(versus.seeds), max(versus.seeds)
                    axis.plot([low, high], [row + shift] * 2, color=color, lw=1, alpha=0.6)
                    inside = versus.ratio < FARTHEST
                    place = min(versus.ratio, FARTHEST)
                    axis.plot(place, row + shift, "o" if inside else ">", ms=3.5, color=color, clip_on=False)
        axis.axvline(1.0, color="#111827", lw=0.8)
        axis.set_xscale("log")
        axis.set_xlim(0.6, FARTHEST)
        axis.set_xticks([0.7, 1.0, 1.4, 2.0, 3.0], ["-30 %", "0", "+40 %", "x 2", "x 3"])
        axis.minorticks_off()
        axis.set_title(NAMES[engine])
    titles = [results.cell(engines[0], stream).title for stream in shown]
    axes[0][0].set_yticks(range(len(shown)), titles, fontsize=7)
    axes[0][0].set_ylim(len(shown) - 0.5, -0.5)
    for color, label in ((MEAN, "mean TTFT"), (TAIL, "p99 TTFT")):
        axes[0][-1].plot([], [], "o", ms=3.5, color=color, label=label)
    axes[0][-1].legend(frameon=False, fontsize=7.5, loc="upper right")
    save(figure, path)


def cost(results: Results, path: Path, engines: Sequence[str]) -> None:
    """Draw the CPU time of a scheduling decision over W1, open loop: mean (bar) and p99 (mark)."""
    figure, axes = plt.subplots(1, len(engines), figsize=(WIDTH, 2.4), squeeze=False)
    for axis, engine in zip(axes[0], engines, strict=True):
        cells = list(results.cells(W1_HEAVY, (engine,), "peek"))
        ran = [policy for policy in SHORT if cells and all("cpu_us" in a_run(cell, policy) for cell in cells)]
        for row, policy in enumerate(ran):
            mean, tail = (
                fmean(cell.mean(policy, name) for cell in cells) / 1e3 for name in ("cpu_us", "cpu_us_p99")
            )
            axis.barh(row, mean, color=COLORS[policy], height=0.6)
            axis.plot(tail, row, "|", ms=9, color="#111827")
        axis.set_yticks(range(len(ran)), [policy.removesuffix("+lru") for policy in ran])
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_title(f"{NAMES[engine]}: ms a decision (mark: p99)")
    save(figure, path)


def a_run(cell: Cell, policy: str) -> dict[str, Any]:
    """Return any run of a policy, empty if there is none."""
    return next(iter(cell.runs.get(policy, {}).values()), {})


def curves(results: Results, path: Path, engine: str, name: str, label: str) -> None:
    """Draw a figure over the load, a panel for each cell; bands span the seeds, crosses are the paper's."""
    figure, axes = plt.subplots(2, 4, figsize=(WIDTH, 4.0))
    for axis, (kind, streams) in zip(axes.flat, OVER_LOAD.items(), strict=False):
        cells = [results.cell(engine, stream) for stream in streams]
        if kind == "w3c":  # a closed loop
            loads: list[float] = [parts_of(stream)[3] or CLIENTS for stream in streams]
        else:
            loads = [LOADS[stream][SIMULATED.index(engine)] for stream in streams]
        for policy in LADDER:
            known = [(load, cell) for load, cell in zip(loads, cells, strict=True) if cell.has(policy)]
            if not known:
                continue
            places = [load for load, _ in known]
            by_seed = [[run[name] for run in cell.runs[policy].values()] for _, cell in known]
            axis.plot(
                places, [fmean(values) for values in by_seed], "o-", ms=2.5, lw=1.2, color=COLORS[policy]
            )
            axis.fill_between(
                places, *([pick(values) for values in by_seed] for pick in (min, max)), color=COLORS[policy],
                alpha=0.2, lw=0,
            )  # fmt: skip
            if paper := cells[-1].paper(policy):
                axis.plot(loads[-1], getattr(paper, name), "x", ms=5, color=COLORS[policy])
        axis.set_title(cells[-1].title.partition(",")[0])
        axis.set_xlabel("clients" if kind == "w3c" else "load", fontsize=7)
        axis.tick_params(labelsize=7)
        if name != "rps":
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.yaxis.set_minor_locator(NullLocator())
    axes[0][0].set_ylabel(label)
    axes[1][0].set_ylabel(label)
    for policy in LADDER:
        axes[1][3].plot([], [], "o-", ms=2.5, color=COLORS[policy], label=policy.removesuffix("+lru"))
    axes[1][3].plot([], [], "x", color="#111827", label="the paper's")
    axes[1][3].legend(frameon=False, loc="center")
    axes[1][3].axis("off")
    save(figure, path)
