"""Tables of the report that ask a question across cells: ablation, variants, bounds, client window, arena."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from bench.evaluation.paper import Figures
from bench.evaluation.plans import ALL, ARENA_SIZES, NAMES, RATES, REAL, SIMULATED, W1, W1_HEAVY, W2, WINDOW
from bench.evaluation.results import Cell, Results, stock_of
from bench.evaluation.sections import FULL_STACK
from bench.evaluation.text import code, percent, seconds, table

PAIRS = {
    "cLPM alone against the full stack": ("clpm", FULL_STACK),
    "eviction on the stock order": ("+pe", "+lru"),
    "GM added to cLPM": ("clpm+gm", "clpm"),
    "DL added to cLPM+GM": ("clpm+gm+dl", "clpm+gm"),
    "PE added to cLPM+GM+DL": (FULL_STACK, "clpm+gm+dl"),
}
"""Who is compared with whom; a label that begins with "+" goes behind the engine's stock order."""


def pair_of(cell: Cell, question: str) -> tuple[str, str]:
    """The two policies of one of `PAIRS` on the cell's engine."""
    order = cell.stock.split("+")[0]
    added, base = (order + name if name.startswith("+") else name for name in PAIRS[question])
    return added, base


def ablation(results: Results, engine: str) -> str:
    """Change of hit in points and of mean TTFT in per cent; the paper's in brackets."""
    cells = [results.cell(engine, stream) for stream in W1]
    rows = [[cell.title, *(_effect(cell, *pair_of(cell, question)) for question in PAIRS)] for cell in cells]
    return table([NAMES[engine], *PAIRS], rows)


def _effect(cell: Cell, added: str, base: str) -> str:
    def shown(ours: Figures, theirs: Figures) -> str:
        return f"{ours.hit - theirs.hit:+.1f}, {100.0 * (ours.ttft / theirs.ttft - 1.0):+.1f} %"

    ours, paper = ([of(added), of(base)] for of in (cell.figures, cell.paper))
    if not (ours[0] and ours[1]):
        return "not run"
    return shown(ours[0], ours[1]) + (f" ({shown(paper[0], paper[1])})" if paper[0] and paper[1] else "")


def variants(
    results: Results, labels: Sequence[str], streams: Iterable[str], engines: Sequence[str] = ALL
) -> str:
    """hit, mean / p99 TTFT and longest wait of a few policies, side by side."""
    rows = [
        [cell.title, cell.name, *(_waits(cell, label) for label in labels)]
        for cell in results.cells(streams, engines)
        if any(map(cell.has, labels[1:]))
    ]
    return table(["stream", "engine", *code(labels)], rows)


def _waits(cell: Cell, label: str) -> str:
    if not cell.has(label):
        return "not run"
    mean, p99, longest = map(seconds, cell.means(label, "ttft", "ttft_p99", "wait_max"))
    return f"{percent(cell.mean(label, 'hit'))}, {mean} / {p99}, {longest}"


def bounds(results: Results) -> str:
    """Hit of stock and `peek`, of the best possible eviction in the same orders, and of an infinite cache."""
    rows = []
    for engine in (*REAL, "simulated-radix"):
        for cell in results.cells((*W1, *W2), (engine,), "peek", "fcfs+lru"):
            values = [*cell.means("fcfs+lru", "hit", "belady"), *cell.means("peek", "hit", "belady", "ideal")]
            rows.append([cell.title, cell.name, *map(percent, values)])
    head = ["cell", "engine", "`fcfs+lru`", "Belady, its order", "`peek`", "Belady, its order"]
    return table([*head, "infinite cache"], rows)


def window(results: Results, engine: str) -> str:
    """The W1 cells with a cap on what the client has outstanding, between the open loop and the paper."""
    rows = []
    shown = (stock_of(engine), FULL_STACK)
    for cell in results.cells(WINDOW, (engine,), FULL_STACK):
        opened = results.cell(engine, cell.stream.removesuffix(":window"))
        row = [opened.title, cell.name]
        for policy in shown:
            row += [str(cell.paper(policy) or ""), _three(opened, policy), _three(cell, policy)]
        rows.append(row)
    columns = [f"`{policy}`: {column}" for policy in shown for column in ("paper", "open loop", "window")]
    return table(["hit %, TTFT s, req/s", "", *columns], rows) if rows else ""


def _three(cell: Cell, policy: str) -> str:
    """hit, mean TTFT and throughput."""
    return str(cell.figures(policy) or "not run")


def arena(results: Results) -> str:
    """Hit of stock and published policy with smaller arenas, beside the paper's."""
    sizes = " / ".join(f"{size}K" for size in (*ARENA_SIZES, 50))
    rows, off = [], []
    for engine in SIMULATED:
        for stream in W1_HEAVY:
            forms = [*(f"{stream}:arena{size}" for size in ARENA_SIZES), stream]
            cells = list(results.cells(forms, (engine,), stock_of(engine), FULL_STACK))
            stock, full = (
                results.cell(engine, stream).paper(name) for name in (stock_of(engine), FULL_STACK)
            )
            if len(cells) == len(forms) and stock and full:
                here, there = (
                    [percent(cell.mean(name, "hit")) for cell in cells]
                    for name in (cells[0].stock, FULL_STACK)
                )
                off.append([abs(float(hit) - stock.hit) for hit in here])
                row = [cells[-1].title, cells[-1].name]
                rows.append(
                    [*row, f"{stock.hit:.1f}", " / ".join(here), f"{full.hit:.1f}", " / ".join(there)]
                )
    means = [
        f"{size} {fmean(gaps):.1f} (at most {max(gaps):.1f})"
        for size, gaps in zip(sizes.split(" / "), zip(*off, strict=True), strict=False)
    ]
    shown = table(["cell", "engine", "stock: paper", sizes, f"`{FULL_STACK}`: paper", sizes], rows)
    return f"{shown}\n\nMean distance of the stock hit from the paper's, in points: {', '.join(means)}."


def rates(results: Results) -> str:
    """W2 B heavy with slower arrivals: hit, mean TTFT and throughput of stock and published policy."""
    rows = []
    for engine in SIMULATED:
        cells = [results.cell(engine, stream) for stream in (*RATES, "w2b:heavy")]
        for policy in (stock_of(engine), FULL_STACK):
            shown = [_three(cell, policy) for cell in cells]
            rows.append([NAMES[engine], f"`{policy}`", str(cells[-1].paper(policy)), *shown])
    slower = (f"{stream.rpartition('rate')[2]} % of its rate" for stream in RATES)
    return table(["W2 B heavy: hit %, TTFT s, req/s", "policy", "paper", *slower, "its rate"], rows)
