"""Writes docs/evaluation.md and its figures from a results file.

    python bench/serving/report.py bench/serving/results.jsonl

Nothing in the page is typed in: figures and verdicts come from the results, prose from prose.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import plots
import prose
from plans import (
    ALL,
    EXPONENTS,
    LANES,
    REAL,
    SESSIONS,
    SIMULATED,
    TRACE_STARTS,
    TRACES,
    W1,
    W1_MODERATE,
    W2,
    W3,
    W4,
    W5,
    WINDOW,
)
from results import Results, load, table
from sections import (
    ENGINE_NAMES,
    beside_paper,
    cell_tables,
    cpu,
    fitted,
    headline,
    losses,
)
from studies import (
    ablation,
    ablation_verdicts,
    against_paper,
    arena,
    bounds,
    lane_verdicts,
    rates,
    twins,
    variants,
    window,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDED = (*SESSIONS, *TRACE_STARTS, *TRACES, "azure-code:1.0")
SHARED = (*W1, *W1_MODERATE, *W2, *W3)
QUIET = (*W4, *W5, *RECORDED)
NO_REGRESS = 0.02


def figures(results: Results, engines: tuple[str, ...]) -> dict[str, str]:
    """Draw everything; Markdown for each group of images."""
    folder = DOCS / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    plots.pressure(results, engines, "hit", folder / "hit-pressure.svg")
    plots.pressure(results, engines, "ttft", folder / "ttft-pressure.svg")
    plots.ablation(results, engines, folder / "ablation.svg")
    plots.waits(results, engines, folder / "waits.svg")
    fronts = plots.fronts(results, engines, folder)
    return {
        "fronts": "\n\n".join(f"![{name}: mean against p99 TTFT](figures/{file})" for name, file in fronts),
        "pressure": "![Cache hit against KV pressure](figures/hit-pressure.svg)\n\n"
        "![Mean TTFT against KV pressure](figures/ttft-pressure.svg)",
        "ablation": "![Mean TTFT by mechanism](figures/ablation.svg)",
        "waits": "![Distribution of waits](figures/waits.svg)",
    }


def coverage(results: Results) -> str:
    rows = []
    for engine in ALL:
        cells = [key for key in results.runs if key[0] == engine]
        runs = sum(len(by_seed) for key in cells for by_seed in results.runs[key].values())
        rows.append([ENGINE_NAMES[engine], results.versions.get(engine, "-"), str(len(cells)), str(runs)])
    lines = [table(["engine", "version", "streams", "runs"], rows), ""]
    missing = results.missing()
    lines.append("Not run, of the full plan:\n" if missing else "Everything in the full plan was run.")
    return "\n".join(lines + [f"- {line}" for line in missing])


def page(results: Results, drawn: dict[str, str]) -> str:
    """The whole document."""
    heads = "\n\n".join(headline(results, engine, SHARED) for engine in ALL)
    quiet = "\n\n".join(headline(results, engine, QUIET) for engine in ALL)
    parts = [
        prose.OPENING, heads, prose.after_headline(results), drawn["fronts"],
        "## What was run\n", coverage(results), twins(results),
        prose.STEP_TIMES, fitted(), prose.AFTER_FIT,
        prose.PAPER, "\n".join(against_paper(results, engine) for engine in REAL),
        *(beside_paper(results, engine) for engine in REAL), drawn["pressure"],
        prose.DIFFERENCES, *(window(results, engine) for engine in ALL),
        prose.ARENA, arena(results), prose.RATES, rates(results), prose.AFTER_RATES,
        prose.ABLATION, ablation_verdicts(results), *(ablation(results, engine) for engine in REAL),
        drawn["ablation"],
        prose.LANES, lane_verdicts(results, LANES), variants(results, ("clpm", *LANES), W1),
        prose.GATE, variants(results, ("peek", "peek, no gate", "peek, no lanes"), W1),
        prose.EXPONENT, variants(results, (*EXPONENTS[:3], "peek", *EXPONENTS[3:]), W1, SIMULATED),
        prose.BOUNDS, bounds(results, (*REAL, "simulated-radix")),
        prose.NO_REGRESS, quiet,
        prose.GUARD, variants(results, ("peek", "peek, no guard"), QUIET),
        prose.CACHED_FIRST, variants(results, ("peek", "peek, cached not first"), (*W1, *W4)),
        prose.HARMS, "**Streams that share, real engines**\n",
        losses(results, SHARED, REAL, NO_REGRESS),
        "**W3, simulated engines, seed by seed**\n",
        losses(results, W3, SIMULATED, NO_REGRESS),
        "**Streams that share little or nothing, all engines**\n",
        losses(results, QUIET, ALL, NO_REGRESS),
        "**The same, against the engines' defaults only (FCFS, LPM with its limit)**\n",
        losses(results, (*SHARED, *QUIET), ALL, NO_REGRESS, ("fcfs+lru", "lpm+lru")), prose.CAUSES,
        prose.CPU, *(cpu(results, engine, (*W1, *W5)) for engine in REAL),
        prose.WAITS, drawn["waits"],
        prose.TABLES, cell_tables(results, REAL, (*SHARED, *WINDOW, *W4, *W5)),
        "### Recorded traffic\n", cell_tables(results, ALL, RECORDED),
    ]  # fmt: skip
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    results = load(parser.parse_args().results)
    drawn = figures(results, tuple(engine for engine in REAL if results.has(engine, "w1c:heavy", "peek")))
    (DOCS / "evaluation.md").write_text(page(results, drawn))
    print(f"{DOCS / 'evaluation.md'} written")


if __name__ == "__main__":
    main()
