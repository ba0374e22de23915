"""Sentences of the report with figures in them: ranges over cells, claims confirmed or refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean

from bench.evaluation.plans import ALL, LANES, NAMES, REAL, SIMULATED, W1, W1_MODERATE, W2, WINDOW
from bench.evaluation.results import STOCKS, Results, stock_of
from bench.evaluation.sections import FULL_STACK, STEP
from bench.evaluation.studies import PAIRS, pair_of
from bench.evaluation.text import span


def bullets(sentences: Callable[[Results], Iterator[str]]) -> Callable[[Results], str]:
    """The sentences as a Markdown list."""
    return lambda results: "\n".join(f"- {line}" for line in sentences(results))


@bullets
def gaps(results: Results) -> Iterator[str]:
    """The range of the gaps to the best stock policy, and how often that one wins."""
    for name, cells in results.by_engine(REAL, (*W1, *W1_MODERATE, *W2), "peek"):
        for figure, what in STEP.items():
            found = [(cell.mean("peek", figure) / cell.best(figure)[1] - 1.0, cell.title) for cell in cells]
            (low, lowest), (high, highest) = min(found), max(found)
            better = sum((gap > 0) == (figure == "rps") for gap, _ in found)
            yield (
                f"{name}, {what}: {100 * low:+.1f} % ({lowest}) to {100 * high:+.1f} % ({highest});"
                f" ahead in {better} of {len(found)} W1 and W2 cells."
            )


@bullets
def first_figures(results: Results) -> Iterator[str]:
    """What earlier, smaller runs had found, over the W1 cells."""
    for name, cells in results.by_engine(REAL, W1, "peek"):
        factors = [cell.gain("fcfs+lru", "peek")[1] for cell in cells]
        gains = [100 * (1 - cell.gain("peek", "lpm-nolimit+lru")[1]) for cell in cells]
        hits = [cell.gain("clpm+gm+pe", "clpm+gm")[0] for cell in cells if cell.has("clpm+gm+pe")]
        yield (
            f"{name}, W1: mean TTFT {span(factors, '.1f')} times shorter than in FCFS order;"
            f" {span(gains, '+.1f')} % shorter than under LPM without limit (negative: longer);"
            f" demand eviction added to a good order (cLPM+GM) changes hit by {span(hits, '+.1f')} points."
        )


@bullets
def on_front(results: Results) -> Iterator[str]:
    """In which W1 cells no stock policy has both a shorter mean and a shorter p99."""
    for name, cells in results.by_engine(REAL, W1, "peek"):
        behind: list[str] = []
        for cell in cells:
            mean, p99 = cell.means("peek", "ttft", "ttft_p99")
            behind += [
                f"{cell.title} (`{policy}`)"
                for policy in filter(cell.has, STOCKS)
                if cell.mean(policy, "ttft") < mean and cell.mean(policy, "ttft_p99") < p99
            ]
        found = f"a stock policy is better in both in {', '.join(behind)}."
        verdict = found if behind else "`peek` is on it in every W1 cell."
        yield f"{name}, front of mean against p99 TTFT: {verdict}"


@bullets
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
            gains = [cell.gain(*pair) for cell in cells if cell.has(*(pair := pair_of(cell, question)))]
            if not gains or not any(cell.has("clpm+gm+dl") for cell in cells):
                continue
            points, changes = [gain[0] for gain in gains], [100 * (gain[1] - 1) for gain in gains]
            largest = max(-min(points), max(points))
            holds = (largest <= 3.0, largest <= 1.0, max(changes) > 0.0, min(changes) < 0.0)[which]
            always = which < 2 or min(changes) * max(changes) > 0
            verdict = ("confirmed" + ("" if always else " in some cells, not in all")) if holds else "refuted"
            yield (
                f"*{claim}*, {name}: {verdict}. Hit {span(points, '+.1f')} points,"
                f" mean TTFT {span(changes, '+.0f')} %."
            )


@bullets
def lanes(results: Results) -> Iterator[str]:
    """What each way to charge costs in hit, and what it does to mean and longest wait, against cLPM alone."""
    for label in LANES:
        for name, cells in results.by_engine(ALL, W1, label):
            hits, means = zip(*(cell.gain(label, "clpm") for cell in cells), strict=True)
            longest = [cell.mean(label, "wait_max") / cell.mean("clpm", "wait_max") for cell in cells]
            yield (
                f"`{label}`, {name}: hit {span(hits, '+.1f')} points, mean TTFT {span(means, '.2f')} times,"
                f" longest wait {span(longest, '.2f')} times that of `clpm`."
            )


@bullets
def twins(results: Results) -> Iterator[str]:
    """How far the simulated engines are from the real ones, over the W1 cells and every policy both ran."""
    for real, twin in zip(REAL, SIMULATED, strict=True):
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


@bullets
def against_paper(results: Results) -> Iterator[str]:
    """Which cells are within 8 points (stock) and 5 points (published policy) of the paper's hit."""
    groups = {"W1 and W2": (*W1, *W2), "W1 with a client window": WINDOW}
    limits = [(engine, *one) for engine in REAL for one in ((stock_of(engine), 8.0), (FULL_STACK, 5.0))]
    for engine, policy, limit in limits:
        for group, streams in groups.items():
            for name, cells in results.by_engine((engine,), streams, policy):
                pairs = [(cell, cell.paper(policy)) for cell in cells]
                off = [(cell, 100 * cell.mean(policy, "hit") - paper.hit) for cell, paper in pairs if paper]
                outside = [f"{cell.title} ({gap:+.1f})" for cell, gap in off if abs(gap) > limit]
                end = f"; outside: {', '.join(outside)}." if outside else "."
                if not off:
                    continue
                yield (
                    f"{name}, `{policy}`, {group}: {len(off) - len(outside)} of"
                    f" {len(off)} cells within {limit:.0f} points of hit{end}"
                )
