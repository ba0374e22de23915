"""Tables of the pages, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from bench.evaluation import plans
from bench.evaluation.cells import PAPER, Cell, Figures, Results, change, code, seconds, title
from bench.evaluation.plans import DEFAULT, FULL_STACK, NAMES, REAL, SIMULATED, STOCKS, stock_of
from bench.evaluation.traffic import TRAFFIC
from peek.simulation.cost import UTILISATION, arena_for, arena_tokens, cost_model_for

PAIRS = {
    "cLPM alone against the full stack": ("clpm", FULL_STACK),
    "eviction on the stock order": ("+pe", "+lru"),
    "GM added to cLPM": ("clpm+gm", "clpm"),
    "DL added to cLPM+GM": ("clpm+gm+dl", "clpm+gm"),
    "PE added to cLPM+GM": ("clpm+gm+pe", "clpm+gm"),
    "PE added to cLPM+GM+DL": (FULL_STACK, "clpm+gm+dl"),
}
"""Who is compared with whom; a label that begins with "+" goes behind the engine's stock order."""
CROWDS = (*plans.COLD, *plans.TENANTS, *plans.FLOODS, *plans.FLOODS_NAMED)
"""Where somebody crowds out others."""
GROUPS = {
    "W1, open loop": (*plans.W1_HEAVY, *plans.W1_MODERATE),
    "W1, client window": plans.WINDOW,
    "W2 and W3": (*plans.W2, *plans.W3),
    "W4, agents": plans.W4,
    "W5, nothing shared": plans.W5,
    "cold sessions, floods, tenants": CROWDS,
    "agents with tools": plans.AGENTS,
    "live mix": plans.LIVE,
    "recorded traffic": plans.RECORDED,
}
"""What the summary puts together."""
LOSS = 0.02
"""A figure that is so much worse than the best stock policy's is a loss."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def spread(values: Sequence[float]) -> str:
    """Per cent of change: the median, and the range."""
    low, middle, high = (100 * (value - 1) for value in (min(values), median(values), max(values)))
    return f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})"


def shorter(cells: Sequence[Cell], figure: str, other: str) -> str:
    """In how many cells `peek`'s figure is the smaller one."""
    both = [cell for cell in cells if cell.has("peek", other)]
    return f"{sum(cell.ratio('peek', other, figure) < 1.0 for cell in both)} of {len(both)}"


def summary(results: Results, engines: Sequence[str]) -> str:
    """`peek` against the best stock policy of each cell and figure, group by group."""
    rows = []
    for engine in engines:
        for name, streams in GROUPS.items():
            cells = list(results.cells(streams, (engine,), "peek"))
            row = [NAMES[engine], name]
            for figure in ("ttft", "ttft_p99"):
                found = [versus.ratio for cell in cells if (versus := cell.against(figure))]
                ahead = sum(ratio < 1.0 for ratio in found)
                row.append(f"{spread(found)}, {ahead} of {len(found)}" if found else "not run")
            factors = [cell.ratio(DEFAULT, "peek") for cell in cells if cell.has(DEFAULT)]
            row.append(f"{median(factors):.1f} ({min(factors):.1f} to {max(factors):.1f})" if factors else "")
            row += [shorter(cells, figure, FULL_STACK) for figure in ("ttft", "ttft_p99")]
            if cells:
                rows.append(row)
    head = ["engine", "streams", "mean TTFT, ahead in", "p99 TTFT, ahead in", "default / `peek`"]
    return table([*head, "mean: before published", "p99"], rows)


def losses(
    results: Results, streams: Iterable[str], engines: Sequence[str], among: Sequence[str] = STOCKS
) -> str:
    """Every figure in which `peek` is behind the best of some stock policies by more than `LOSS`."""
    rows = []
    for cell in results.cells(streams, engines, "peek"):
        for figure, name in (("ttft", "mean"), ("ttft_p99", "p99")):
            versus = cell.against(figure, among)
            if versus and versus.ratio > 1.0 + LOSS:
                written = " / ".join(
                    cell.written(policy, f"{{{figure}}}") for policy in ("peek", versus.other)
                )
                rows.append([cell.title, cell.engine_name, name, written, str(versus), f"`{versus.other}`"])
    head = ["stream", "engine", "TTFT", "`peek` / it, s", "change", "best stock policy"]
    return table(head, rows) if rows else "None.\n"


def kept_apart(results: Results, engines: Sequence[str]) -> str:
    """Mean / p99 TTFT of those whom others crowd out, and of all."""
    shown = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", FULL_STACK, "peek")
    rows = []
    for cell in results.cells(CROWDS, engines, "peek"):
        for form, whose in (("{watched} / {watched_p99}", "theirs"), ("{ttft} / {ttft_p99}", "everybody's")):
            rows.append([cell.title, cell.engine_name, whose, *(cell.written(name, form) for name in shown)])
    return table(["stream", "engine", "mean / p99 TTFT, s", *code(shown)], rows) if rows else "Not run.\n"


def beside(ours: float | None, theirs: float | None, form: str = ".1f") -> str:
    """The paper's / ours (per cent of change)."""
    return f"{theirs:{form}} / {ours:{form}} ({change(ours / theirs)})" if ours and theirs else ""


def residuals(results: Results, streams: Iterable[str], engines: Sequence[str] = REAL) -> str:
    """The paper's figures beside ours, stock and published."""
    rows = []
    for cell in results.cells(streams, engines):
        for policy in dict.fromkeys(("fcfs+lru", cell.stock, FULL_STACK)):
            theirs, ours = cell.paper(policy), cell.figures(policy)
            if theirs and ours:
                pairs = (beside(a, b) for a, b in zip(ours[2:], theirs[2:], strict=True))
                hits = f"{theirs.hit:.1f} / {ours.hit:.1f} ({ours.hit - theirs.hit:+.1f})"
                rates = beside(ours.rps, theirs.rps, ".2f")
                rows.append([f"{cell.title}, {cell.engine_name}", f"`{policy}`", hits, rates, *pairs])
    head = ["paper / here", "policy", "hit %", "req/s", "TTFT s", "E2E s", "TPOT ms", "ITL ms"]
    return table(head, rows) if rows else "Not run.\n"


def clients() -> str:
    """What the paper's own figures say of its clients and answers."""
    rows = []
    for family, cells in PAPER.items():
        for stream in cells:
            row = [title(stream), NAMES[family]]
            for policy in (stock_of(family), FULL_STACK):
                theirs = Figures(*cells[stream][policy])
                answer = 1e3 * (theirs.e2e - theirs.ttft) / theirs.tpot
                row.append(f"{theirs.e2e * theirs.rps:.0f}, {answer:.0f}")
            rows.append(row)
    return table(
        ["the paper's: outstanding, tokens of an answer", "engine", "stock", f"`{FULL_STACK}`"], rows
    )


def ablation(results: Results) -> str:
    """What each step of the published policy does in the paper's tables and here, over the heavy W1 cells."""
    rows = []
    for engine, streams in plans.PAPER_W1.items():
        for question in PAIRS:
            pairs = []
            for cell in results.cells(streams, (engine,)):
                both = pair_of(cell, question)
                known = [
                    [found for name in both if (found := of(cell, name))] for of in (Cell.paper, Cell.figures)
                ]
                if all(len(pair) == 2 for pair in known):
                    pairs.append(known)
            row = [NAMES[engine], question]
            for side in (0, 1):
                row += effects([pair[side] for pair in pairs])
            same = sum(len({*map(ttft_falls, pair)}) == 1 for pair in pairs)
            rows.append([*row, f"{same} of {len(pairs)}"])
    sides = [
        f"{side}: {what}" for side in ("paper", "here") for what in ("hit, points", "mean TTFT", "shorter in")
    ]
    return table(["engine", "step", *sides, "same direction"], rows)


def pair_of(cell: Cell, question: str) -> list[str]:
    """The two policies of one of `PAIRS` on the cell's engine."""
    order = cell.stock.split("+")[0]
    return [order + name if name.startswith("+") else name for name in PAIRS[question]]


def ttft_falls(pair: Sequence[Figures]) -> bool:
    """Whether the first of two has the shorter mean TTFT."""
    return pair[0].ttft < pair[1].ttft


def effects(pairs: Sequence[Sequence[Figures]]) -> list[str]:
    """Range of the change of hit, range of that of TTFT, and where TTFT gets shorter."""
    if not pairs:
        return ["not run"] * 3
    points = [added.hit - base.hit for added, base in pairs]
    changes = [100 * (added.ttft / base.ttft - 1) for added, base in pairs]
    falls = sum(map(ttft_falls, pairs))
    hits, times = f"{min(points):+.1f} to {max(points):+.1f}", f"{min(changes):+.0f} to {max(changes):+.0f} %"
    return [hits, times, f"{falls} of {len(pairs)}"]


def offline(results: Results) -> str:
    """Of each batch: throughput against arrival order, hit, mean latency / p99 over mean."""
    rows = []
    for cell in results.cells((*plans.BATCH, *plans.CONTROL), SIMULATED, *plans.OFFLINE):
        row = [cell.title.removeprefix("Batch offline, "), cell.engine_name]
        for policy in plans.OFFLINE:
            tail = cell.mean(policy, "e2e_p99") / cell.mean(policy, "e2e")
            faster = cell.ratio(policy, "fcfs+lru", "rps")
            late = f"{seconds(cell.mean(policy, 'e2e'))} s, {tail:.1f}"
            row.append(f"**x {faster:.2f}**, {cell.written(policy, '{hit}')} %, {late}")
        rows.append(row)
    return table(["batch", "engine", *code(plans.OFFLINE)], rows) if rows else "Not run.\n"


def bounds(results: Results) -> str:
    """Hit of stock and `peek`, of the best possible eviction in the same orders, and of an infinite cache."""
    rows = []
    for cell in results.cells((*plans.W1_HEAVY, *plans.W2), SIMULATED, "peek", "fcfs+lru"):
        stock = cell.written("fcfs+lru", "{hit} | {belady}")
        peek = cell.written("peek", "{hit} | {belady} | {ideal}")
        rows.append([cell.title, cell.engine_name, stock, peek])
    head = ["hit %", "engine", "`fcfs+lru`", "Belady, its order", "`peek`", "Belady, its order"]
    return table([*head, "infinite cache"], rows) if rows else "Not run.\n"


def coverage(results: Results, planned: dict[str, int]) -> str:
    """What is stored, engine by engine, with what it was made with."""
    rows = []
    for engine, count in planned.items():
        runs = [run for run in results.records if run["engine"] == engine]
        versions = ", ".join(sorted({run["version"] for run in runs} if engine in REAL else set())) or "-"
        rows.append([NAMES[engine], versions, f"{len(runs)} of {count}"])
    return table(["engine", "version", "runs stored of the full plan"], rows)


def traffic() -> str:
    """What the streams of traffic.py are made of."""
    rows = []
    for kind, found in TRAFFIC.items():
        for source in found.sources:
            shared = f"{source.prefixes} x {source.prefix:,}" if source.prefixes else ""
            if source.copies:
                shared = f"{source.prefix:,}, new for every {source.copies} requests"
            if source.drift_s:
                shared += (
                    f" in the mean, behind {source.head} of all; favourites move every {source.drift_s:g} s"
                )
            own = f"{source.own:,}"
            if source.turns > 1:
                own += f", + {source.turn:,} a turn, {source.turns} turns, {source.pause_s:g} s between two"
            watched = " (kept apart)" if source.name == found.watched else ""
            rate = f"{source.per_s:g}" if source.per_s else f"{found.count:,}, {found.jobs} at a time"
            if source.burst > 1:
                rate += f", {source.burst} at a time"
            rows.append([title(kind), source.name + watched, rate, shared, own, f"{source.output:,}"])
    return table(["stream", "who", "a second", "prefixes x tokens", "own tokens", "answer"], rows)


def gives_up() -> str:
    """What is not in the plan since an engine ends in it."""
    return "; ".join(
        f"`{policy}` on {NAMES[engine]}, {title(stream)}" for engine, stream, policy in plans.GIVES_UP
    )


def arenas() -> str:
    """What a card leaves of each pairing, see `peek.simulation.cost`."""
    names = {"w1": "W1, W2", "w3": "W3", "w4": "W4", "w5": "W5"}
    rows = []
    for kind, name in names.items():
        cost = cost_model_for(kind)
        of_vllm = arena_tokens(cost.hardware, cost.model, 0.9)
        rows.append([name, cost.model.name, cost.hardware.name, f"{arena_for(kind):,}", f"{of_vllm:,}"])
    return table(["cells", "model", "cards", f"tokens at {UTILISATION} of the card", "at 0.9"], rows)


def fits(fitted: dict[str, tuple[int, float]]) -> str:
    """The constants of each family."""
    rows = [[NAMES[family], f"{arena:,}", f"{mfu:.3f}"] for family, (arena, mfu) in fitted.items()]
    return table(["engine", "KV arena, tokens", "mfu"], rows)
