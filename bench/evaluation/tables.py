"""Tables of the pages, as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from bench.evaluation import plans
from bench.evaluation.cells import Cell, Figures, Results, Versus, code, seconds, title
from bench.evaluation.plans import DEFAULT, FULL_STACK, NAMES, REAL, SIMULATED, STOCKS
from peek.simulation.cost import UTILISATION, arena_for, arena_tokens, cost_model_for

PAIRS = {
    "cLPM alone against the full stack": ("clpm", FULL_STACK),
    "eviction on the stock order": ("+pe", "+lru"),
    "GM added to cLPM": ("clpm+gm", "clpm"),
    "DL added to cLPM+GM": ("clpm+gm+dl", "clpm+gm"),
    "PE added to cLPM+GM": ("clpm+gm+pe", "clpm+gm"),
    "PE added to cLPM+GM+DL": (FULL_STACK, "clpm+gm+dl"),
}
"""Pairs of compared policies; a label that begins with "+" is appended to the engine's stock order."""
CROWDS = (*plans.COLD, *plans.TENANTS, *plans.FLOODS, *plans.FLOODS_NAMED)
"""Streams in which some requests crowd out others."""
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
"""Groups of streams in the summary."""
LOSS = 0.02
"""A figure is a loss if it is worse than the best stock policy's by more than this part."""
FIGURES = ("ttft", "ttft_p99")
"""The figures by which `peek` is judged in every cell."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


SUMMARISED = {"mean": "ttft", "p99": "ttft_p99", "E2E": "e2e"}
"""The figures of the summary, by the head of their columns."""


def spread(percent: Sequence[float]) -> str:
    """Write changes as lowest / median / highest, one number where there is one; "" without any."""
    shown = (min(percent), median(percent), max(percent)) if len(percent) > 1 else percent
    return "/".join(f"{value:+.0f}" for value in shown)


def summary(results: Results, engines: Sequence[str]) -> str:
    """Compare `peek` with the best stock policy of each cell and figure, by group, on all engines.

    Jobs and the share in time, in points, are those of every engine that has them, simulated ones too.
    """
    rows = []
    for name, streams in GROUPS.items():
        cells = list(results.cells(streams, engines, "peek", DEFAULT))
        every = list(results.cells(streams, plans.ALL))
        columns = [*(ratios(cells, figure) for figure in SUMMARISED.values()), ratios(every, "job")]
        row = [name, *(spread([100.0 * (ratio - 1.0) for ratio in column]) for column in columns)]
        row.append(spread([100.0 * gain for cell in every if (gain := cell.gain("in_time")) is not None]))
        row.append(span([cell.ratio(DEFAULT, "peek") for cell in cells], "{:.1f}".format))
        rows.append(row)
    return table(["streams", *SUMMARISED, "job", "in time", "default / `peek`"], rows)


def ratios(cells: Iterable[Cell], figure: str) -> list[float]:
    """Return the figure of `peek` over that of the best stock policy, of each cell that has both."""
    return [versus.ratio for cell in cells if (versus := cell.against(figure))]


HEADLINE = {
    "long shared prefixes (W1)": (*plans.W1_HEAVY, *plans.W1_MODERATE),
    "the same, clients that wait for answers": plans.WINDOW,
    "long answers, or many short prompts (W2, W3)": (*plans.W2, *plans.W3),
    "live mix: apps, conversations, bursts, strangers": plans.LIVE,
    "agents with tools": plans.AGENTS,
    "recorded traffic": plans.RECORDED,
    "nothing shared (W5)": plans.W5,
}
"""Groups of streams in the readme."""


def headline(results: Results, engines: Sequence[str]) -> str:
    """Compare `peek` on all engines together with the default, and with the best stock policy."""
    rows = []
    for name, streams in HEADLINE.items():
        cells = list(results.cells(streams, engines, "peek", DEFAULT))
        shorter = ([cell.ratio(DEFAULT, "peek", figure) for cell in cells] for figure in FIGURES)
        row = [name, *(span(times, "{:.1f}".format) for times in shorter)]
        row += [changes(ratios(cells, figure)) for figure in (*FIGURES, "e2e")]
        rows.append(row)
    head = ["traffic", "mean: times shorter", "p99", "mean against the best", "p99", "whole answer"]
    return table(head, rows)


class Compared(NamedTuple):
    """One figure of one cell: `peek` against the best of some policies."""

    cell: Cell
    figure: str
    versus: Versus

    @property
    def lost(self) -> bool:
        """Whether `peek` is behind by more than `LOSS`."""
        return self.versus.ratio > 1.0 + LOSS

    @property
    def kind(self) -> str:
        """The cell's title without its arena, its rate, its number of rows and its client."""
        return re.sub(
            r", (arena \d+K|[\d.]+ x recorded rate|first [\d,]+ rows|rounds (do not )?wait)",
            "",
            self.cell.title,
        )


def compared(
    results: Results, streams: Iterable[str], engines: Sequence[str], among: Sequence[str] = STOCKS
) -> Iterator[Compared]:
    """Yield mean and p99 TTFT of every cell in which `peek` and one of `among` were run."""
    for cell in results.cells(streams, engines, "peek"):
        for figure in FIGURES:
            versus = cell.against(figure, among)
            if versus:
                yield Compared(cell, figure, versus)


def by_kind(every: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Group the figures by kind of cell."""
    kinds: dict[str, list[Compared]] = {}
    for each in every:
        kinds.setdefault(each.kind, []).append(each)
    return kinds


def losses(every: Iterable[Compared]) -> str:
    """Return a row for each kind of cell with a loss, the number of losses, and the kinds without one."""
    kinds = by_kind(every)
    rows = []
    for kind, found in kinds.items():
        if any(each.lost for each in found):
            best = Counter(f"`{each.versus.other}`" for each in found if each.lost)
            sides = (lost_of([each for each in found if each.figure == figure]) for figure in FIGURES)
            rows.append([kind, *sides, ", ".join(name for name, _ in best.most_common())])
    found = [each for some in kinds.values() for each in some]
    count = f"Lost: {sum(each.lost for each in found)} of {len(found)} figures."
    free = [kind for kind, some in kinds.items() if not any(each.lost for each in some)]
    without = f" Without a loss: {'; '.join(free)}." if free else ""
    head = ["kind of cell", "mean TTFT, lost in", "p99 TTFT, lost in", "ahead of `peek`"]
    return (table(head, rows) + "\n\n" if rows else "") + count + without


def losses_named(every: Iterable[Compared]) -> str:
    """Return a line for mean and p99 each: the number of lost figures, and each kind of cell with a loss."""
    every = list(every)
    lines = []
    for figure, name in zip(FIGURES, ("Mean", "p99"), strict=True):
        some = [each for each in every if each.figure == figure]
        lost = {kind: found for kind, found in by_kind(some).items() if any(each.lost for each in found)}
        named = "; ".join(f"{kind} ({lost_of(found)})" for kind, found in lost.items()) or "none"
        lines.append(f"- {name}, lost: {sum(each.lost for each in some)} of {len(some)}. {named}.")
    return "\n".join(lines)


def lost_of(some: Sequence[Compared]) -> str:
    """Write how many of these are lost, and by how much."""
    lost = [each.versus.ratio for each in some if each.lost]
    return f"{len(lost)} of {len(some)}{', ' if lost else ''}{changes(lost)}"


def kept_apart(results: Results, engines: Sequence[str]) -> str:
    """Return the mean TTFT of crowded-out requests under `peek`, and divided by that under other policies."""
    others = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", FULL_STACK)
    kinds: dict[str, dict[str, list[Cell]]] = {}
    for cell in results.cells(CROWDS, engines, "peek"):
        name = cell.title.partition(", arena")[0]
        kinds.setdefault(name, {}).setdefault(cell.engine, []).append(cell)
    rows = []
    for name, found in kinds.items():
        row = [
            name,
            ", ".join(
                span([cell.mean("peek", "watched") for cell in some], seconds) for some in found.values()
            ),
        ]
        for other in others:
            ratios = (
                [cell.ratio("peek", other, "watched") for cell in some if cell.has(other)]
                for some in found.values()
            )
            row.append(", ".join(filter(None, (span(some, "{:.2f}".format) for some in ratios))))
        rows.append(row)
    head = [f"stream: {', '.join(NAMES[engine] for engine in engines)}", "`peek`, s", *code(others)]
    return table(head, rows) if rows else "Not run.\n"


def span(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Write the smallest and the largest value, once if they look alike; "" without values."""
    return " to ".join(dict.fromkeys(form(end) for end in (min(values), max(values)))) if values else ""


def changes(values: Sequence[float]) -> str:
    """Write the smallest and the largest change, in per cent."""
    return f"{span(values, lambda value: f'{100 * (value - 1):+.0f}')} %" if values else ""


def residuals(results: Results, groups: dict[str, dict[str, tuple[str, ...]]]) -> str:
    """Return the distance from the paper's figures, stock and published, by engine and group of cells."""
    rows = []
    for engine, named in groups.items():
        for name, streams in named.items():
            pairs = [
                (ours, theirs)
                for cell in results.cells(streams, (engine,))
                for policy in (cell.stock, FULL_STACK)
                if (ours := cell.figures(policy)) and (theirs := cell.paper(policy))
            ]
            hits = [ours.hit - theirs.hit for ours, theirs in pairs]
            others = (
                changes([getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs])
                for figure in ("rps", "ttft", "e2e", "tpot")
            )
            if pairs:
                rows.append([name, NAMES[engine], str(len(pairs)), span(hits, "{:+.1f}".format), *others])
    head = ["here against the paper", "engine", "runs", "hit, points", "req/s", "TTFT", "E2E", "TPOT"]
    return table(head, rows) if rows else "Not run.\n"


def ablation(results: Results) -> str:
    """Compare the effect of each step of the published policy in the paper and here, over heavy W1 cells."""
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
            row += [effect([pair[side] for pair in pairs]) for side in (0, 1)]
            same = sum(len({*map(ttft_falls, pair)}) == 1 for pair in pairs)
            rows.append([*row, f"{same} of {len(pairs)}"])
    return table(["engine", "step", "paper", "here", "same direction"], rows)


def pair_of(cell: Cell, question: str) -> list[str]:
    """Return the two policies of one of `PAIRS` on the cell's engine."""
    order = cell.stock.split("+")[0]
    return [order + name if name.startswith("+") else name for name in PAIRS[question]]


def ttft_falls(pair: Sequence[Figures]) -> bool:
    """Whether the first of two has the shorter mean TTFT."""
    return pair[0].ttft < pair[1].ttft


def effect(pairs: Sequence[Sequence[Figures]]) -> str:
    """Write the range of the change of mean TTFT."""
    if not pairs:
        return "not run"
    ratios = [added.ttft / base.ttft for added, base in pairs]
    return changes(ratios)


def offline(results: Results) -> str:
    """Return the throughput of the batches divided by that of arrival order, by sweep and engine."""
    rows, shown = [], plans.OFFLINE[1:]
    for name, streams in {**plans.BATCH_SWEEPS, "nothing shared": plans.CONTROL}.items():
        for engine in SIMULATED:
            cells = list(results.cells(streams, (engine,), *plans.OFFLINE))
            ratios = ([cell.ratio(policy, DEFAULT, "rps") for cell in cells] for policy in shown)
            if cells:
                rows.append([name, NAMES[engine], *(span(some, "{:.2f}".format) for some in ratios)])
    return table(["batch", "engine", *code(shown)], rows) if rows else "Not run.\n"


def bounds(results: Results) -> str:
    """Return the hit of stock and `peek`, of the best eviction in their orders, and of an infinite cache."""
    rows = []
    for stream in (*plans.W1_HEAVY, *plans.W2):
        cells = list(results.cells((stream,), SIMULATED, "peek", "fcfs+lru"))
        figures = [("fcfs+lru", "{hit}"), ("fcfs+lru", "{belady}"), ("peek", "{hit}"), ("peek", "{belady}")]
        if cells:
            row = [
                ", ".join(cell.written(*figure) for cell in cells)
                for figure in [*figures, ("peek", "{ideal}")]
            ]
            rows.append([cells[0].title, *row])
    head = ["hit %: radix, blocks", "`fcfs+lru`", "Belady, its order", "`peek`", "Belady, its order"]
    return table([*head, "infinite cache"], rows) if rows else "Not run.\n"


def coverage(results: Results, planned: dict[str, int]) -> str:
    """Write how many runs are stored of each engine, and the engine's version."""
    said = []
    for engine, count in planned.items():
        runs = [run for run in results.records if run["engine"] == engine]
        versions = [f" {version}" for version in sorted({run["version"] for run in runs}) if engine in REAL]
        said.append(f"{NAMES[engine]}{','.join(versions)}: {len(runs):,} of {count:,}")
    return f"Runs stored of the full plan: {'; '.join(said)}."


def gives_up() -> str:
    """Write which runs are not in the plan because an engine ends in them."""
    pairs = dict.fromkeys((policy, engine) for engine, _, policy in plans.GIVES_UP)
    return "; ".join(
        f"`{policy}` on {NAMES[engine]} in "
        + "; ".join(
            title(stream) for one, stream, other in plans.GIVES_UP if (other, one) == (policy, engine)
        )
        for policy, engine in pairs
    )


def arenas() -> str:
    """Return the tokens that a card leaves for KV with each model, see `peek.simulation.cost`."""
    names = {"w1": "W1, W2", "w3": "W3", "w4": "W4", "w5": "W5"}
    rows = []
    for kind, name in names.items():
        cost = cost_model_for(kind)
        of_vllm = arena_tokens(cost.hardware, cost.model, 0.9)
        rows.append([name, cost.model.name, cost.hardware.name, f"{arena_for(kind):,}", f"{of_vllm:,}"])
    return table(["cells", "model", "cards", f"tokens at {UTILISATION} of the card", "at 0.9"], rows)


def fits(arenas: dict[str, int]) -> str:
    """Return the fitted arena of each family."""
    return table(
        ["engine", "KV arena, tokens"], [[NAMES[family], f"{arena:,}"] for family, arena in arenas.items()]
    )
