"""Writes the evaluation's pages and figures from the stored runs.

    python -m bench.evaluation.report [bench/evaluation/results.csv] [--into docs]

No figure in the pages is typed in: pages/ has the prose, with a {name} in place of each computed text.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from bench.evaluation import listing, plans, plots, tables, verdicts
from bench.evaluation.cells import Results
from bench.evaluation.check import TOLERANCE
from bench.evaluation.plans import FULL, NAMES, SIMULATED, runs_of
from bench.evaluation.results import RESULTS, fitted_arena, read
from bench.servers import table as measured

SERVERS = Path(__file__).resolve().parents[2] / "docs" / "data" / "servers.csv"
"""Runs that `make bench-servers` measured last and `make bench-servers-store` stored."""
PAGES = Path(__file__).with_name("pages")
DOCS = Path(__file__).resolve().parents[2] / "docs"
README = DOCS.parent / "README.md"
WRITTEN = ("evaluation", "evaluation_method", "evaluation_losses", "evaluation_cells")
PAPER_GROUPS = {"W2": plans.W2, "W3": plans.W3, "W4": plans.W4, "W5": plans.W5_WINDOW}
"""Streams that are compared with the paper, without the heavy W1 cells."""


def constants(servers: Path = SERVERS) -> dict[str, str]:
    """Return the texts of the pages that depend on no run."""
    rows = measured.read(servers)
    return {
        "servers": measured.table(rows, ("ttft", "ttft_p99", "cpu_s")),
        "servers_said": measured.said(rows),
        "servers_agree": measured.agreement(rows, ("ttft", "ttft_p99", "e2e", "cpu_s")),
        "seeds": ", ".join(map(str, plans.FRESH)),
        "paper_seeds": ", ".join(map(str, plans.SEEDS)),
        "loss": f"{100 * tables.LOSS:.0f} %",
        "moved": f"{100 * TOLERANCE['ttft']:.0f} %",
        "hit_moved": f"{100 * TOLERANCE['hit']:.0f} points",
        "arenas": tables.arenas(),
        "fits": tables.fits({family: fitted_arena(family) for family in ("sglang", "vllm")}),
    }


def bullets(sentences: Iterator[str]) -> str:
    """Return a list of sentences in Markdown."""
    return "\n".join(f"- {line}" for line in sentences) or "Not run."


def computed(everything: Results, fresh: Results, paper: Results) -> dict[str, str]:
    """Return the texts of the pages that depend on the runs."""
    engines = verdicts.engines_shown(fresh)

    def losses(streams: Iterable[str]) -> str:
        return tables.losses(tables.compared(fresh, streams, plans.ALL))

    planned = Counter(run[0] for run in runs_of(FULL))
    every = list(tables.compared(fresh, plans.HEADLINE, plans.ALL))
    return {
        "made": verdicts.made(everything, planned.total()),
        "answers": bullets(verdicts.answers(fresh, engines)),
        "headline": tables.headline(fresh, engines),
        "summary": tables.summary(fresh, engines),
        "coverage": tables.coverage(everything, dict(planned)),
        "gives_up": tables.gives_up(),
        "near_paper": bullets(verdicts.near_paper(paper)),
        "residuals": tables.residuals(
            paper,
            {engine: {"W1": w1} for engine, w1 in plans.PAPER_W1.items()}
            | dict.fromkeys(plans.SIMULATED, PAPER_GROUPS),
        ),
        "twins": bullets(verdicts.twins(everything)),
        "ablation": tables.ablation(paper),
        "bounds": tables.bounds(fresh),
        "offline": tables.offline(fresh),
        "load_figures": "\n\n".join(
            f"![{label} over the load, {NAMES[engine]}](figures/{plots.curves_file(engine, figure)})"
            for engine, (figure, label) in product(SIMULATED, plots.CURVES.items())
        ),
        "lost": f"{sum(each.lost for each in every)} of {len(every)}",
        "losses_shared": losses(plans.SHARED),
        "losses_lengths": losses((*plans.W5, "azure-code:1.0")),
        "losses_sessions": losses((*plans.W4, *plans.AGENTS, *plans.LIVE, *plans.SESSIONS)),
        "losses_traces": losses((*plans.TRACE_STARTS, *plans.TRACES)),
        "losses_crowds": losses(tables.CROWDS),
        "kept_apart": tables.kept_apart(fresh, engines),
        "losses_defaults": tables.losses_named(
            tables.compared(fresh, plans.HEADLINE, plans.ALL, (plans.DEFAULT,))
        ),
    }


def filled(name: str, parts: dict[str, str]) -> str:
    """Return a page with every {name} filled in."""
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]].strip("\n"), (PAGES / f"{name}.md").read_text())


def pages(runs: Path) -> dict[str, str]:
    """Return all pages, the files of complete tables and the readme, by their paths from docs/."""
    records = read(runs)
    fresh, paper = listing.parted(records)
    parts = constants() | computed(Results(records), fresh, paper)
    whole = {f"data/{name}.csv": listing.as_csv(of(fresh, paper)) for name, of in listing.LISTINGS.items()}
    readme = re.sub(
        r"(<!-- results -->\n).*?(<!-- /results -->)",
        lambda found: f"{found[1]}\n{parts['headline']}\n\n{found[2]}",
        README.read_text(),
        flags=re.DOTALL,
    )
    return {f"{name}.md": filled(name, parts) for name in WRITTEN} | whole | {"../README.md": readme}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--into", type=Path, default=DOCS)
    arguments = parser.parse_args()
    for name, text in pages(arguments.runs).items():
        path = arguments.into / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    fresh, _ = listing.parted(read(arguments.runs))
    plots.draw(fresh, arguments.into / "figures", verdicts.engines_shown(fresh))
    print(f"{arguments.into / 'evaluation.md'} and what belongs to it are written")


if __name__ == "__main__":
    main()
