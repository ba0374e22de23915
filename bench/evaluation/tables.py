"""Tables of the report, as Markdown; one that takes an engine shows that engine's cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean

from bench.evaluation import plans
from bench.evaluation.plans import ALL, FULL_STACK, NAMES, SIMULATED, W1, WINDOW, stock_of
from bench.evaluation.results import FIT, STOCKS, Cell, Figures, Results, change, code, percent, seconds

CELLS = (*W1, *plans.W1_MODERATE, *plans.W2, *plans.W3, *plans.W4, *plans.W5, *WINDOW)
ORDER = (*plans.MAIN, *plans.LIMITED, "peek, no gate", "peek, no lanes", *plans.UNGUARDED, *plans.LANES)
STEP = {"ttft": "mean TTFT", "ttft_p99": "p99 TTFT", "rps": "throughput"}
THREE = "{hit}, {ttft}, {rps}"
PAIRS = {
    "cLPM alone against the full stack": ("clpm", FULL_STACK),
    "eviction on the stock order": ("+pe", "+lru"),
    "GM added to cLPM": ("clpm+gm", "clpm"),
    "DL added to cLPM+GM": ("clpm+gm+dl", "clpm+gm"),
    "PE added to cLPM+GM+DL": (FULL_STACK, "clpm+gm+dl"),
}
"""Who is compared with whom; a label that begins with "+" goes behind the engine's stock order."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def headline(results: Results, engine: str, streams: Iterable[str]) -> str:
    """`peek` against the best stock policy of each column."""
    rows = []
    for cell in results.cells(streams, (engine,), "peek"):
        row = [cell.title]
        for figure in STEP:
            ratio, policy = cell.against_best(figure)
            row.append(f"**{change(ratio)}** ({cell.written('peek', f'{{{figure}}}')}; `{policy}`)")
        rows.append([*row, f"{cell.ratio(cell.stock, 'peek'):.1f}", cell.seeds_text])
    factor = f"mean TTFT of `{stock_of(engine)}` / of `peek`"
    return table([NAMES[engine], *STEP.values(), factor, ""], rows)


def coverage(results: Results) -> str:
    """What was run, and what of the full plan was not."""
    rows = []
    for engine in ALL:
        cells = [cell for cell in results.ran.values() if cell.engine == engine]
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
        pairs = {figure: (theirs, fit["ours"][figure]) for figure, theirs in fit["paper"].items()}
        row = [NAMES[family], f"`{fit['policy']}`", f"{fit['mfu']:.3f}"]
        for theirs, ours in (pairs[figure] for figure in ("rps", "ttft", "e2e", "tpot_ms")):
            row.append(f"{theirs:g} / {ours:.1f} ({change(ours / theirs)})")
        rows.append([*row, " / ".join(map(percent, pairs["hit"]))])
    head = ["engine", "policy", "mfu", "req/s (fitted)", "mean TTFT s", "mean E2E s", "TPOT ms", "hit %"]
    return table(head, rows)


def beside_paper(results: Results, engine: str) -> str:
    """Hit of stock and published policy, theirs and ours, and the ratios of mean TTFT."""
    rows = []
    shown = (stock_of(engine), FULL_STACK)
    for cell in results.cells(CELLS, (engine,), *shown, "peek"):
        both = [(cell.paper(policy), cell.figures(policy)) for policy in shown]
        pairs = [(theirs, ours) for theirs, ours in both if theirs and ours]
        if len(pairs) == len(shown):
            hits = [f"{a.hit:.1f} / {b.hit:.1f} ({b.hit - a.hit:+.1f})" for a, b in pairs]
            waits = [f"{seconds(a.ttft)} / {seconds(b.ttft)}" for a, b in pairs]
            peek = [cell.written("peek", form) for form in ("{hit}", "{ttft}")]
            (stock, stock_here), (full, full_here) = pairs
            ratios = f"{stock.ttft / full.ttft:.1f} / {stock_here.ttft / full_here.ttft:.1f}"
            rows.append([cell.title, *hits, peek[0], *waits, peek[1], ratios])
    head = [f"{figure} `{policy}`" for figure in ("hit %", "TTFT s") for policy in (*shown, "peek")]
    return table([f"{NAMES[engine]}: paper / here", *head, "ratio of the two"], rows)


def every_policy(results: Results, streams: Iterable[str], engines: Sequence[str]) -> str:
    """A table for each cell, with all that was run."""
    head = "policy | hit % | TTFT s | p50 | p99 | longest wait | req/s | E2E s | TPOT ms | preempted"
    form = "{hit} | {ttft} | {ttft_p50} | {ttft_p99} | {wait_max} | {rps} | {e2e} | {tpot_ms} | {preemptions}"
    parts = []
    for cell in results.cells(streams, engines):
        rows = [
            [f"`{policy}`", cell.written(policy, form), str(cell.paper(policy) or "")]
            for policy in filter(cell.has, ORDER)
        ]
        about = cell.written(next(iter(cell.runs)), f"{cell.seeds_text}, infinite cache {{ideal}} %")
        parts.append(f"**{cell.title}, {cell.engine_name}** ({about})\n")
        parts.append(table([*head.split(" | "), "paper: hit, TTFT, req/s"], rows) + "\n")
    return "\n".join(parts)


def losses(
    results: Results, streams: Iterable[str], engines: Sequence[str], among: Sequence[str] = STOCKS
) -> str:
    """Every column in which `peek` is more than 2 % behind the best of some stock policies."""
    rows = []
    for cell in results.cells(streams, engines, "peek"):
        for figure, name in STEP.items():
            ratio, policy = cell.against_best(figure, among)
            if (1.0 / ratio if figure == "rps" else ratio) - 1.0 > 0.02:
                seeds = cell.by_seed("peek", policy, figure)
                rows.append([cell.title, cell.engine_name, name, change(ratio), f"`{policy}`", seeds])
    head = ["stream", "engine", "figure", "`peek`", "against", "each seed"]
    return table(head, rows) if rows else "None.\n"


def cpu(results: Results, engine: str) -> str:
    """Scheduling CPU time: of `calc_priority` on SGLang, of all of `schedule()` on vLLM."""
    shown = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", FULL_STACK, "peek")
    rows = [
        [cell.title, *(cell.written(policy, "{cpu_us} / {cpu_us_p99}") for policy in shown)]
        for cell in results.cells((*W1, *plans.W5), (engine,), "peek")
    ]
    return table([f"{NAMES[engine]}, ms mean / p99", *code(shown)], rows)


def pair_of(cell: Cell, question: str) -> list[str]:
    """The two policies of one of `PAIRS` on the cell's engine."""
    order = cell.stock.split("+")[0]
    return [order + name if name.startswith("+") else name for name in PAIRS[question]]


def ablation(results: Results, engine: str) -> str:
    """Change of hit in points and of mean TTFT in per cent; the paper's in brackets."""

    def effect(added: Figures | None, base: Figures | None) -> str:
        return f"{added.hit - base.hit:+.1f}, {change(added.ttft / base.ttft)}" if added and base else ""

    def shown(cell: Cell, question: str) -> str:
        pair = pair_of(cell, question)
        ours, paper = effect(*map(cell.figures, pair)), effect(*map(cell.paper, pair))
        return f"{ours} ({paper})" if ours and paper else ours or "not run"

    cells = [results.cell(engine, stream) for stream in W1]
    rows = [[cell.title, *(shown(cell, question) for question in PAIRS)] for cell in cells]
    return table([NAMES[engine], *PAIRS], rows)


def variants(
    results: Results, labels: Sequence[str], streams: Iterable[str], engines: Sequence[str] = ALL
) -> str:
    """hit, mean / p99 TTFT and longest wait of a few policies, side by side."""
    form = "{hit}, {ttft} / {ttft_p99}, {wait_max}"
    rows = [
        [cell.title, cell.engine_name, *(cell.written(label, form) for label in labels)]
        for cell in results.cells(streams, engines)
        if any(map(cell.has, labels[1:]))
    ]
    return table(["stream", "engine", *code(labels)], rows)


def bounds(results: Results) -> str:
    """Hit of stock and `peek`, of the best possible eviction in the same orders, and of an infinite cache."""
    rows = []
    for engine in (*plans.REAL, "simulated-radix"):
        for cell in results.cells((*W1, *plans.W2), (engine,), "peek", "fcfs+lru"):
            stock = cell.written("fcfs+lru", "{hit} | {belady}")
            peek = cell.written("peek", "{hit} | {belady} | {ideal}")
            rows.append([cell.title, cell.engine_name, stock, peek])
    head = ["cell", "engine", "`fcfs+lru`", "Belady, its order", "`peek`", "Belady, its order"]
    return table([*head, "infinite cache"], rows)


def window(results: Results, engine: str) -> str:
    """The W1 cells with a cap on what the client has outstanding, between the open loop and the paper."""
    rows = []
    shown = (stock_of(engine), FULL_STACK)
    for cell in results.cells(WINDOW, (engine,), FULL_STACK):
        opened = results.cell(engine, cell.stream.removesuffix(":window"))
        row = [opened.title, cell.engine_name]
        for policy in shown:
            row += [str(cell.paper(policy) or ""), opened.written(policy, THREE), cell.written(policy, THREE)]
        rows.append(row)
    columns = [f"`{policy}`: {column}" for policy in shown for column in ("paper", "open loop", "window")]
    return table(["hit %, TTFT s, req/s", "", *columns], rows) if rows else ""


def arena(results: Results) -> str:
    """Hit of stock and published policy with smaller arenas, beside the paper's."""
    sizes = [f"{size}K" for size in (*plans.ARENA_SIZES, 50)]
    rows, off = [], []
    for engine, stream in product(SIMULATED, plans.W1_HEAVY):
        policies = (stock_of(engine), FULL_STACK)
        forms = [*(f"{stream}:arena{size}" for size in plans.ARENA_SIZES), stream]
        cells = list(results.cells(forms, (engine,), *policies))
        if len(cells) < len(forms):
            continue
        row = [cells[-1].title, cells[-1].engine_name]
        for policy in policies:
            paper = cells[-1].paper(policy)
            assert paper is not None, "it states all of these"
            hits = [cell.written(policy, "{hit}") for cell in cells]
            row += [f"{paper.hit:.1f}", " / ".join(hits)]
            if policy != FULL_STACK:
                off.append([abs(float(hit) - paper.hit) for hit in hits])
        rows.append(row)
    means = [
        f"{size} {fmean(gaps):.1f} (at most {max(gaps):.1f})"
        for size, gaps in zip(sizes, zip(*off, strict=True), strict=False)
    ]
    shown = " / ".join(sizes)
    head = ["cell", "engine", "stock: paper", shown, f"`{FULL_STACK}`: paper", shown]
    distance = f"Mean distance of the stock hit from the paper's, in points: {', '.join(means)}."
    return f"{table(head, rows)}\n\n{distance}"


def rates(results: Results) -> str:
    """W2 B heavy with slower arrivals: hit, mean TTFT and throughput of stock and published policy."""
    rows = []
    for engine in SIMULATED:
        cells = [results.cell(engine, stream) for stream in (*plans.RATES, "w2b:heavy")]
        for policy in (stock_of(engine), FULL_STACK):
            shown = [cell.written(policy, THREE) for cell in cells]
            rows.append([NAMES[engine], f"`{policy}`", str(cells[-1].paper(policy)), *shown])
    slower = [f"{stream.rpartition('rate')[2]} % of its rate" for stream in plans.RATES]
    return table(["W2 B heavy: hit %, TTFT s, req/s", "policy", "paper", *slower, "its rate"], rows)
