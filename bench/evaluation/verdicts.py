"""Sentences of the report with figures in them: ranges over cells, claims confirmed or refuted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from statistics import fmean

from bench.evaluation import plans
from bench.evaluation.plans import ALL, FULL_STACK, NAMES, REAL, W1, stock_of
from bench.evaluation.results import STOCKS, Results, change
from bench.evaluation.tables import PAIRS, STEP, pair_of


def span(values: Iterable[float], form: str) -> str:
    """ "smallest to largest", each in `form`."""
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}"


def gaps(results: Results) -> Iterator[str]:
    """The range of the gaps to the best stock policy, and how often that one wins."""
    for name, cells in results.by_engine(REAL, (*W1, *plans.W1_MODERATE, *plans.W2), "peek"):
        for figure, what in STEP.items():
            found = [(cell.against_best(figure)[0], cell.title) for cell in cells]
            (low, lowest), (high, highest) = min(found), max(found)
            better = sum((ratio > 1) == (figure == "rps") for ratio, _ in found)
            yield (
                f"{name}, {what}: {change(low)} ({lowest}) to {change(high)} ({highest});"
                f" ahead in {better} of {len(found)} W1 and W2 cells."
            )


def first_figures(results: Results) -> Iterator[str]:
    """What earlier, smaller runs had found, over the W1 cells."""
    for name, cells in results.by_engine(REAL, W1, "peek"):
        factors = [cell.ratio("fcfs+lru", "peek") for cell in cells]
        gains = [100 * (1 - cell.ratio("peek", "lpm-nolimit+lru")) for cell in cells]
        hits = [cell.points("clpm+gm+pe", "clpm+gm") for cell in cells if cell.has("clpm+gm+pe")]
        yield (
            f"{name}, W1: mean TTFT {span(factors, '.1f')} times shorter than in FCFS order;"
            f" {span(gains, '+.1f')} % shorter than under LPM without limit (negative: longer);"
            f" demand eviction added to a good order (cLPM+GM) changes hit by {span(hits, '+.1f')} points."
        )


def on_front(results: Results) -> Iterator[str]:
    """In which W1 cells no stock policy has both a shorter mean and a shorter p99."""
    for name, cells in results.by_engine(REAL, W1, "peek"):
        behind = [
            f"{cell.title} (`{policy}`)"
            for cell in cells
            for policy in filter(cell.has, STOCKS)
            if all(cell.ratio(policy, "peek", figure) < 1.0 for figure in ("ttft", "ttft_p99"))
        ]
        found = f"a stock policy is better in both in {', '.join(behind)}."
        verdict = found if behind else "`peek` is on it in every W1 cell."
        yield f"{name}, front of mean against p99 TTFT: {verdict}"


def ablation(results: Results) -> Iterator[str]:
    """The paper's four directions, each with the range found here."""
    claims = (
        "cLPM alone is within 3 points of hit of the full stack",
        "eviction alone is worth about nothing (1 point, 2 %)",
        "GM costs mean TTFT",
        "DL gives some of it back",
    )
    for which, (claim, question) in enumerate(zip(claims, PAIRS, strict=False)):
        for name, cells in results.by_engine(REAL, W1):
            pairs = [(cell, pair) for cell in cells if cell.has(*(pair := pair_of(cell, question)))]
            if not pairs or not any(cell.has("clpm+gm+dl") for cell in cells):
                continue
            points = [cell.points(*pair) for cell, pair in pairs]
            changes = [100 * (cell.ratio(*pair) - 1) for cell, pair in pairs]
            largest = max(-min(points), max(points))
            holds = (largest <= 3.0, largest <= 1.0, max(changes) > 0.0, min(changes) < 0.0)[which]
            always = which < 2 or min(changes) * max(changes) > 0
            verdict = ("confirmed" + ("" if always else " in some cells, not in all")) if holds else "refuted"
            yield (
                f"*{claim}*, {name}: {verdict}. Hit {span(points, '+.1f')} points,"
                f" mean TTFT {span(changes, '+.0f')} %."
            )


def lanes(results: Results) -> Iterator[str]:
    """What each way to charge costs in hit, and what it does to mean and longest wait, against cLPM alone."""
    for label in plans.LANES:
        for name, cells in results.by_engine(ALL, W1, label):
            hits = span((cell.points(label, "clpm") for cell in cells), "+.1f")
            means = span((cell.ratio(label, "clpm") for cell in cells), ".2f")
            longest = span((cell.ratio(label, "clpm", "wait_max") for cell in cells), ".2f")
            yield (
                f"`{label}`, {name}: hit {hits} points, mean TTFT {means} times,"
                f" longest wait {longest} times that of `clpm`."
            )


def twins(results: Results) -> Iterator[str]:
    """How far the simulated engines are from the real ones, over the W1 cells and every policy both ran."""
    for real, twin in zip(REAL, plans.SIMULATED, strict=True):
        pairs = [
            (run, theirs)
            for cell in results.cells(W1, (real,))
            for policy, by_seed in cell.runs.items()
            for seed, run in by_seed.items()
            if (theirs := results.cell(twin, cell.stream).runs.get(policy, {}).get(seed))
        ]
        if pairs:
            hits = [100 * abs(run["hit"] - theirs["hit"]) for run, theirs in pairs]
            ratios = [theirs["ttft"] / run["ttft"] for run, theirs in pairs]
            yield (
                f"{NAMES[real]} and its simulated twin, {len(pairs)} W1 runs: hit apart by"
                f" {fmean(hits):.1f} points in the mean, {max(hits):.1f} at most; mean TTFT of the"
                f" twin {span(ratios, '.2f')} times the real engine's."
            )


def against_paper(results: Results) -> Iterator[str]:
    """Which cells are within 8 points (stock) and 5 points (published policy) of the paper's hit."""
    groups = {"W1 and W2": (*W1, *plans.W2), "W1 with a client window": plans.WINDOW}
    limits = [(engine, *one) for engine in REAL for one in ((stock_of(engine), 8.0), (FULL_STACK, 5.0))]
    for (engine, policy, limit), (group, streams) in product(limits, groups.items()):
        cells = results.cells(streams, (engine,), policy)
        pairs = [(cell, theirs) for cell in cells if (theirs := cell.paper(policy))]
        off = [(cell, 100 * cell.mean(policy, "hit") - theirs.hit) for cell, theirs in pairs]
        outside = [f"{cell.title} ({gap:+.1f})" for cell, gap in off if abs(gap) > limit]
        end = f"; outside: {', '.join(outside)}." if outside else "."
        within = f"{len(off) - len(outside)} of {len(off)} cells within {limit:.0f} points of hit{end}"
        if off:
            yield f"{NAMES[engine]}, `{policy}`, {group}: {within}"
