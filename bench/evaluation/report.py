"""Writes docs/evaluation.md and its figures from a results file.

    python -m bench.evaluation.report bench/evaluation/results.jsonl

No figure in the page is typed in: page.md has the prose, with a {name} where something computed goes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.evaluation import plots, sections, studies, verdicts
from bench.evaluation.plans import (
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
from bench.evaluation.results import Results, read

PAGE = Path(__file__).with_name("page.md")
DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDED = (*SESSIONS, *TRACE_STARTS, *TRACES, "azure-code:1.0")
SHARED = (*W1, *W1_MODERATE, *W2, *W3)
QUIET = (*W4, *W5, *RECORDED)
DEFAULTS = ("fcfs+lru", "lpm+lru")


def computed(results: Results) -> dict[str, str]:
    """What page.md names, but for the figures."""
    losses, variants = sections.losses, studies.variants
    exponents = (*EXPONENTS[:3], "peek", *EXPONENTS[3:])
    return {
        "headline": sections.headline(results, SHARED),
        "after_headline": verdicts.after_headline(results),
        "coverage": sections.coverage(results),
        "twins": verdicts.twins(results),
        "fitted": sections.fitted(),
        "against_paper": verdicts.against_paper(results),
        "beside_paper": sections.beside_paper(results),
        "window": studies.window(results),
        "arena": studies.arena(results),
        "rates": studies.rates(results),
        "ablation_verdicts": verdicts.ablation(results),
        "ablation": studies.ablation(results),
        "lane_verdicts": verdicts.lanes(results),
        "lanes": variants(results, ("clpm", *LANES), W1),
        "parts": variants(results, ("peek", "peek, no gate", "peek, no lanes"), W1),
        "exponents": variants(results, exponents, W1, SIMULATED),
        "bounds": studies.bounds(results),
        "headline_quiet": sections.headline(results, QUIET),
        "guard": variants(results, ("peek", "peek, no guard"), QUIET),
        "cached_first": variants(results, ("peek", "peek, cached not first"), (*W1, *W4)),
        "losses_shared": losses(results, SHARED, REAL),
        "losses_w3": losses(results, W3, SIMULATED),
        "losses_quiet": losses(results, QUIET, ALL),
        "losses_defaults": losses(results, (*SHARED, *QUIET), ALL, DEFAULTS),
        "cpu": sections.cpu(results),
        "all_cells": sections.cell_tables(results, (*SHARED, *WINDOW, *W4, *W5), REAL),
        "recorded": sections.cell_tables(results, RECORDED, ALL),
    }


def page(parts: dict[str, str]) -> str:
    """The whole document; where a part is empty, nothing is left of its place."""
    text = re.sub(
        r"^\{(\w+)\}$", lambda name: parts[name[1]].strip("\n"), PAGE.read_text(), flags=re.MULTILINE
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    results = Results(read(parser.parse_args().results))
    fronts = plots.draw(results, DOCS / "figures")
    shown = [f"![{title}: mean against p99 TTFT](figures/{name})" for title, name in fronts]
    (DOCS / "evaluation.md").write_text(page({**computed(results), "fronts": "\n\n".join(shown)}))
    print(f"{DOCS / 'evaluation.md'} written")


if __name__ == "__main__":
    main()
