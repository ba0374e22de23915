"""Writes docs/evaluation.md and its figures from a results file.

    python -m bench.evaluation.report bench/evaluation/results.jsonl

No figure in the page is typed in: page.md has the prose, with a {name} where something computed goes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.evaluation import plans, plots, tables, verdicts
from bench.evaluation.results import Results, read

PAGE = Path(__file__).with_name("page.md")
DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDED = (*plans.SESSIONS, *plans.TRACE_STARTS, *plans.TRACES, "azure-code:1.0")
SHARED = (*plans.W1, *plans.W1_MODERATE, *plans.W2, *plans.W3)
QUIET = (*plans.W4, *plans.W5, *RECORDED)


def computed(results: Results) -> dict[str, str]:
    """What page.md names, but for the figures."""
    real, simulated, w1 = plans.REAL, plans.SIMULATED, plans.W1
    losses, variants = partial(tables.losses, results), partial(tables.variants, results)
    exponents = (*plans.EXPONENTS[:3], "peek", *plans.EXPONENTS[3:])

    def each(engines: Sequence[str], table: Callable[..., str], **more: Any) -> str:
        return "\n\n".join(filter(None, (table(results, engine, **more) for engine in engines)))

    def bullets(*sentences: Callable[[Results], Iterator[str]]) -> str:
        return "\n".join(f"- {line}" for some in sentences for line in some(results))

    return {
        "headline": each(plans.ALL, tables.headline, streams=SHARED),
        "gaps": bullets(verdicts.gaps, verdicts.first_figures, verdicts.on_front),
        "coverage": tables.coverage(results),
        "twins": bullets(verdicts.twins),
        "fitted": tables.fitted(),
        "against_paper": bullets(verdicts.against_paper),
        "beside_paper": each(real, tables.beside_paper),
        "window": each(plans.ALL, tables.window),
        "arena": tables.arena(results),
        "rates": tables.rates(results),
        "ablation_verdicts": bullets(verdicts.ablation),
        "ablation": each(real, tables.ablation),
        "lane_verdicts": bullets(verdicts.lanes),
        "lanes": variants(("clpm", *plans.LANES), w1),
        "parts": variants(("peek", "peek, no gate", "peek, no lanes"), w1),
        "exponents": variants(exponents, w1, simulated),
        "bounds": tables.bounds(results),
        "headline_quiet": each(plans.ALL, tables.headline, streams=QUIET),
        "guard": variants(("peek", *plans.UNGUARDED), QUIET),
        "cached_first": variants(("peek", *plans.UNSECTIONED), (*w1, *plans.W4)),
        "losses_shared": losses(SHARED, real),
        "losses_w3": losses(plans.W3, simulated),
        "losses_quiet": losses(QUIET, plans.ALL),
        "losses_defaults": losses((*SHARED, *QUIET), plans.ALL, plans.STOCK[:2]),
        "cpu": each(real, tables.cpu),
        "all_cells": tables.every_policy(results, (*SHARED, *plans.WINDOW, *plans.W4, *plans.W5), real),
        "recorded": tables.every_policy(results, RECORDED, plans.ALL),
    }


def page(parts: dict[str, str]) -> str:
    """The whole document; where a part is empty, nothing is left of its place."""
    place = re.compile(r"^\{(\w+)\}$", re.MULTILINE)
    text = place.sub(lambda name: parts[name[1]].strip("\n"), PAGE.read_text())
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
