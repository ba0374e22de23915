"""Tables of the report that show cells as they are: headline, beside the paper, losses, CPU, all figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from bench.evaluation.paper import FIT
from bench.evaluation.plans import ALL, LANES, MAIN, NAMES, W1, W1_MODERATE, W2, W3, W4, W5, WINDOW
from bench.evaluation.results import STOCKS, Cell, Results, stock_of
from bench.evaluation.text import change, code, percent, seconds, table

CELLS = (*W1, *W1_MODERATE, *W2, *W3, *W4, *W5)
FULL_STACK = "clpm+gm+dl+pe"
PARTS = ("peek, no gate", "peek, no lanes", "peek, no guard")
ORDER = (*MAIN, "hrrn-limit+lru", *PARTS, *LANES)
STEP = {"ttft": "mean TTFT", "ttft_p99": "p99 TTFT", "rps": "throughput"}


def headline(results: Results, engine: str, streams: Iterable[str]) -> str:
    """`peek` against the best stock policy of each column."""
    rows = []
    for cell in results.cells(streams, (engine,), "peek"):
        row = [cell.title]
        for figure in STEP:
            policy, best = cell.best(figure)
            ours = cell.mean("peek", figure)
            shown = f"{ours:.2f}" if figure == "rps" else seconds(ours)
            row.append(f"**{change(ours, best)}** ({shown}; `{policy}`)")
        rows.append([*row, f"{cell.gain(cell.stock, 'peek')[1]:.1f}", cell.seeds_text])
    factor = f"mean TTFT of `{stock_of(engine)}` / of `peek`"
    return table([NAMES[engine], *STEP.values(), factor, ""], rows)


def coverage(results: Results) -> str:
    """What was run, and what of the full plan was not."""
    rows = []
    for engine in ALL:
        cells = results.of(engine)
        runs = sum(len(by_seed) for cell in cells for by_seed in cell.runs.values())
        rows.append([NAMES[engine], results.versions.get(engine, "-"), str(len(cells)), str(runs)])
    missing = results.missing()
    verdict = "Not run, of the full plan:\n" if missing else "Everything in the full plan was run."
    lines = [table(["engine", "version", "streams", "runs"], rows), "", verdict]
    return "\n".join(lines + [f"- {line}" for line in missing])


def fitted() -> str:
    """The free constant, and what it leaves unexplained."""
    rows = []
    for family, fit in sorted(json.loads(FIT.read_text()).items()):
        paper, ours = fit["paper"], fit["ours"]
        row = [NAMES[family], f"`{fit['policy']}`", f"{fit['mfu']:.3f}"]
        row += [
            f"{paper[figure]:g} / {ours[figure]:.1f} ({change(ours[figure], paper[figure])})"
            for figure in ("rps", "ttft", "e2e", "tpot_ms")
        ]
        rows.append([*row, f"{percent(paper['hit'])} / {percent(ours['hit'])}"])
    head = ["engine", "policy", "mfu", "req/s (fitted)", "mean TTFT s", "mean E2E s", "TPOT ms", "hit %"]
    return table(head, rows)


def beside_paper(results: Results, engine: str) -> str:
    """Hit of stock and published policy, theirs and ours, and the ratios of mean TTFT."""
    rows = []
    shown = (stock_of(engine), FULL_STACK)
    for cell in results.cells((*CELLS, *WINDOW), (engine,), *shown, "peek"):
        pairs = [(theirs, cell.figures(policy)) for policy in shown if (theirs := cell.paper(policy))]
        peek = cell.figures("peek")
        if len(pairs) < len(shown) or peek is None:
            continue
        known = [(theirs, ours) for theirs, ours in pairs if ours]
        (stock, stock_here), (full, full_here) = known
        rows.append(
            [
                cell.title,
                *(f"{a.hit:.1f} / {b.hit:.1f} ({b.hit - a.hit:+.1f})" for a, b in known),
                f"{peek.hit:.1f}",
                *(f"{seconds(a.ttft)} / {seconds(b.ttft)}" for a, b in known),
                seconds(peek.ttft),
                f"{stock.ttft / full.ttft:.1f} / {stock_here.ttft / full_here.ttft:.1f}",
            ]
        )
    policies = (*code(shown), "`peek`")
    head = [f"hit % {name}" for name in policies] + [f"TTFT s {name}" for name in policies]
    return table([f"{NAMES[engine]}: paper / here", *head, "ratio of the two"], rows)


def cell_tables(results: Results, streams: Iterable[str], engines: Sequence[str]) -> str:
    """Every policy that was run, a table for each cell."""
    parts = []
    for cell in results.cells(streams, engines):
        ideal = percent(cell.mean(next(iter(cell.runs)), "ideal"))
        about = f"{cell.seeds_text}, infinite cache {ideal} %"
        parts += [f"**{cell.title}, {cell.name}** ({about})\n", _cell_table(cell) + "\n"]
    return "\n".join(parts)


def _cell_table(cell: Cell) -> str:
    rows = []
    for policy in filter(cell.has, ORDER):
        theirs = cell.paper(policy)
        rows.append(
            [
                f"`{policy}`",
                percent(cell.mean(policy, "hit")),
                *map(seconds, cell.means(policy, "ttft", "ttft_p50", "ttft_p99", "wait_max")),
                f"{cell.mean(policy, 'rps'):.2f}",
                seconds(cell.mean(policy, "e2e")),
                *(f"{value:.0f}" for value in cell.means(policy, "tpot_ms", "preemptions")),
                "" if theirs is None else str(theirs),
            ]
        )
    head = ["policy", "hit %", "TTFT s", "p50", "p99", "longest wait", "req/s", "E2E s", "TPOT ms"]
    return table([*head, "preempted", "paper: hit, TTFT, req/s"], rows)


def losses(
    results: Results,
    streams: Iterable[str],
    engines: Sequence[str],
    among: Sequence[str] = STOCKS,
    tolerance: float = 0.02,
) -> str:
    """Every column in which `peek` is more than `tolerance` behind the best of some stock policies."""
    rows = []
    for cell in results.cells(streams, engines, "peek"):
        for figure, name in STEP.items():
            policy, best = cell.best(figure, among)
            ours = cell.mean("peek", figure)
            if (best / ours if figure == "rps" else ours / best) - 1.0 > tolerance:
                seeds = cell.by_seed("peek", policy, figure)
                rows.append([cell.title, cell.name, name, change(ours, best), f"`{policy}`", seeds])
    head = ["stream", "engine", "figure", "`peek`", "against", "each seed"]
    return table(head, rows) if rows else "None.\n"


def cpu(results: Results, engine: str) -> str:
    """Scheduling CPU time: of `calc_priority` on SGLang, of all of `schedule()` on vLLM."""
    shown = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", FULL_STACK, "peek")
    rows = []
    for cell in results.cells((*W1, *W5), (engine,), "peek"):
        pairs = [cell.means(policy, "cpu_us", "cpu_us_p99") for policy in shown]
        rows.append([cell.title, *(f"{mean / 1e3:.2f} / {p99 / 1e3:.2f}" for mean, p99 in pairs)])
    return table([f"{NAMES[engine]}, ms mean / p99", *code(shown)], rows)
