"""Writes the evaluation's pages and figures from the stored runs.

    python -m bench.evaluation.report [bench/evaluation/results.csv] [--into docs]

No figure in the pages is typed in: pages/ has the prose, with a {name} where something computed goes.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from bench.evaluation import listing, plans, plots, tables, verdicts
from bench.evaluation.cells import Results
from bench.evaluation.check import TOLERANCE
from bench.evaluation.plans import FULL, NAMES, SIMULATED, runs_of
from bench.evaluation.results import RESULTS, fitted, read

PAGES = Path(__file__).with_name("pages")
DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITTEN = ("evaluation", "evaluation_method", "evaluation_losses")
"""Pages that have places to fill; `evaluation_cells` is the listing's."""


def constants() -> dict[str, str]:
    """What the pages name and no run decides."""
    return {
        "seeds": ", ".join(map(str, plans.FRESH)),
        "paper_seeds": ", ".join(map(str, plans.SEEDS)),
        "loss": f"{100 * tables.LOSS:.0f} %",
        "moved": f"{100 * TOLERANCE['ttft']:.0f} %",
        "hit_moved": f"{100 * TOLERANCE['hit']:.0f} points",
        "traffic": tables.traffic(),
        "arenas": tables.arenas(),
        "fits": tables.fits({family: fitted(family) for family in ("sglang", "vllm")}),
        "clients": tables.clients(),
    }


def bullets(sentences: Iterator[str]) -> str:
    """A list of sentences."""
    return "\n".join(f"- {line}" for line in sentences) or "Not run."


def computed(everything: Results, fresh: Results, paper: Results) -> dict[str, str]:
    """What the pages name and the runs decide."""
    engines = verdicts.engines_shown(fresh)
    losses = partial(tables.losses, fresh)
    all_engines = tuple(dict.fromkeys((*engines, *SIMULATED)))
    planned = Counter(run[0] for run in runs_of(FULL))
    w1 = (tables.residuals(paper, streams, (engine,)) for engine, streams in plans.PAPER_W1.items())
    return {
        "made": verdicts.made(everything, planned.total()),
        "answers": bullets(verdicts.answers(fresh, engines)),
        "summary": tables.summary(fresh, engines),
        "coverage": tables.coverage(everything, dict(planned)),
        "gives_up": tables.gives_up(),
        "near_paper": bullets(verdicts.near_paper(paper)),
        "residuals_w1": "\n\n".join(w1),
        "residuals_others": tables.residuals(paper, (*plans.W2, *plans.W3, *plans.W4, *plans.W5_WINDOW)),
        "twins": bullets(verdicts.twins(everything)),
        "ablation": tables.ablation(paper),
        "bounds": tables.bounds(fresh),
        "offline_verdicts": bullets(verdicts.offline(fresh)),
        "offline": tables.offline(fresh),
        "load_figures": "\n\n".join(
            f"![{label} over the load, {NAMES[engine]}](figures/{plots.curves_file(engine, figure)})"
            for engine, (figure, label) in product(SIMULATED, plots.CURVES.items())
        ),
        "losses_shared": losses(plans.SHARED, all_engines),
        "losses_lengths": losses((*plans.W5, "azure-code:1.0"), all_engines),
        "losses_sessions": losses((*plans.W4, *plans.AGENTS, *plans.LIVE, *plans.SESSIONS), all_engines),
        "losses_traces": losses((*plans.TRACE_STARTS, *plans.TRACES), all_engines),
        "losses_crowds": losses(tables.CROWDS, all_engines),
        "kept_apart": tables.kept_apart(fresh, engines),
        "losses_defaults": losses(plans.HEADLINE, all_engines, (plans.DEFAULT,)),
    }


def filled(name: str, parts: dict[str, str]) -> str:
    """A page with every {name} filled in."""
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]].strip("\n"), (PAGES / f"{name}.md").read_text())


def pages(runs: Path) -> dict[str, str]:
    """All pages, by their names in docs/."""
    records = read(runs)
    fresh = Results(run for run in records if run["seed"] not in plans.SEEDS)
    paper = Results(run for run in records if run["seed"] in plans.SEEDS)
    parts = constants() | computed(Results(records), fresh, paper)
    found = {f"{name}.md": filled(name, parts) for name in WRITTEN}
    return found | {"evaluation_cells.md": listing.as_page(listing.as_csv(fresh, paper))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--into", type=Path, default=DOCS)
    arguments = parser.parse_args()
    for name, text in pages(arguments.runs).items():
        (arguments.into / name).write_text(text)
    fresh = Results(run for run in read(arguments.runs) if run["seed"] not in plans.SEEDS)
    plots.draw(fresh, arguments.into / "figures", verdicts.engines_shown(fresh))
    print(f"{arguments.into / 'evaluation.md'} and what belongs to it are written")


if __name__ == "__main__":
    main()
