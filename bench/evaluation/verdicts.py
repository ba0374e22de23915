"""Sentences of the pages with figures in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from bench.evaluation import plans
from bench.evaluation.cells import Results, change
from bench.evaluation.plans import FULL_STACK, NAMES, REAL, SIMULATED
from bench.evaluation.tables import GROUPS

NEAR = 0.15
"""Distance, as a part, up to which a figure is called near the paper's."""


def made(results: Results, planned: int) -> str:
    """Write which library made the figures, and how much of the plan there is."""
    libraries = []
    for is_ours in (True, False):
        found = {run["peek"] for run in results.records if (run["policy"] == "peek") is is_ours}
        libraries.append(", ".join(f"`{name}`" for name in sorted(found)) or "no run")
    of_peek, of_others = libraries
    apart = "" if of_peek == of_others else f" (those of the other policies of {of_others})"
    return (
        f"Figures of `peek` are of the library {of_peek}{apart}: version and digest of its sources."
        f" Stored: {len(results.records):,} of the {planned:,} runs of the full plan."
    )


def engines_shown(results: Results) -> Sequence[str]:
    """Return the real engines if `peek` was run on both over the heavy W1 cells, else their twins."""
    ran = {cell.engine for cell in results.cells(plans.W1_HEAVY, REAL, "peek")}
    return REAL if len(ran) == len(REAL) else SIMULATED


def answers(results: Results, engines: Sequence[str]) -> Iterator[str]:
    """Yield the outcome in a few lines, one for each engine where engines differ."""
    for engine in engines:
        yield from against_published(results, engine)
    yield from crowded_out(results, engines)


def against_published(results: Results, engine: str) -> Iterator[str]:
    """Compare the same cells with the published policy."""
    cells = list(results.cells(plans.SHARED, (engine,), "peek", FULL_STACK))
    means, tails = ([cell.ratio("peek", FULL_STACK, name) for cell in cells] for name in ("ttft", "ttft_p99"))
    if cells:
        yield (
            f"**Against the published policy** (`{FULL_STACK}`), {NAMES[engine]}: mean TTFT is shorter in"
            f" {shorter(means)}, {extremes(means)}; p99 in {shorter(tails)}, {extremes(tails)}."
        )


def shorter(ratios: Sequence[float]) -> str:
    """Write in how many cells the figure is smaller."""
    return f"{sum(ratio < 1.0 for ratio in ratios)} of {len(ratios)}"


def crowded_out(results: Results, engines: Sequence[str]) -> Iterator[str]:
    """Yield what happens to requests that are kept apart, against arrival order."""
    streams = GROUPS["cold sessions, floods, tenants"]
    cells = list(results.cells(streams, engines, "peek", "fcfs+lru", "lpm-nolimit+lru"))
    if cells:
        means = [cell.ratio("peek", "fcfs+lru", "watched") for cell in cells]
        rivals = [cell.ratio("peek", "lpm-nolimit+lru", "watched") for cell in cells]
        yield (
            "**Requests that others crowd out** (cold sessions behind a hot prefix, others during a flood,"
            f" the small tenant): their mean TTFT is {span(means)} times that of arrival order (median"
            f" {median(means):.1f}), and {span(rivals)} times that under longest prefix match without limit."
        )


def extremes(ratios: Sequence[float]) -> str:
    """Write the range from the best to the worst change."""
    return f"{change(min(ratios))} to {change(max(ratios))}"


def near_paper(results: Results) -> Iterator[str]:
    """Yield how many figures of the heavy W1 cells are within `NEAR` of the paper's; hits in points."""
    names = {"rps": "throughput", "ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}
    for engine, streams in plans.PAPER_W1.items():
        found: list[tuple[float, str]] = []
        hits: list[float] = []
        for cell in results.cells(streams, (engine,)):
            for policy in (cell.stock, FULL_STACK):
                ours, theirs = cell.figures(policy), cell.paper(policy)
                if not ours or not theirs:
                    continue
                hits.append(abs(ours.hit - theirs.hit))
                for name, said in names.items():
                    ratio = getattr(ours, name) / getattr(theirs, name)
                    found.append((ratio, f"{said} of {cell.title.partition(',')[0]}, `{policy}`"))
        if found:
            near = sum(abs(ratio - 1) <= NEAR for ratio, _ in found)
            ratio, said = max(found, key=lambda each: abs(each[0] - 1))
            yield (
                f"{NAMES[engine]}: {near} of {len(found)} figures (throughput, TTFT, E2E, TPOT) are within"
                f" {100 * NEAR:.0f} % of the paper's; farthest is {said} ({change(ratio)}). Hits differ by"
                f" {fmean(hits):.1f} points in the mean, {max(hits):.1f} at most."
            )


def twins(results: Results) -> Iterator[str]:
    """Yield how far the simulated engines are from the real ones, over all streams and policies of both."""
    for real, twin in zip(REAL, SIMULATED, strict=True):
        pairs = [
            (run, theirs)
            for cell in results.ran.values()
            if cell.engine == real
            for policy, by_seed in cell.runs.items()
            for seed, run in by_seed.items()
            if (theirs := results.cell(twin, cell.stream).runs.get(policy, {}).get(seed))
        ]
        if pairs:
            hits = [100 * abs(run["hit"] - theirs["hit"]) for run, theirs in pairs]
            times = [theirs["ttft"] / run["ttft"] for run, theirs in pairs]
            yield (
                f"{NAMES[real]} and its simulated twin, {len(pairs)} runs: hit apart by {fmean(hits):.1f}"
                f" points in the mean, {max(hits):.1f} at most; mean TTFT of the twin {median(times):.2f}"
                f" times the real engine's in the median, {span(times)}."
            )


def span(values: Sequence[float]) -> str:
    """Write the smallest and the largest value."""
    return f"{min(values):.2f} to {max(values):.2f}"
