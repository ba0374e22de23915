"""Measures gain and cost of `tenant_lead`: other tenants' waits in a flood, and locality among equal tenants.

    python -m bench.leads [--seeds 1 2 3]

Gain: mean TTFT of the other tenants in the steady floods of `bench.floods`, with all tenants named.
Cost: mean TTFT of six tenants, each with 1.5 requests a second and four prefixes of 8,192 tokens.  The engine
cannot keep up, and its cache holds seven of the 24 prefixes.
"""

from __future__ import annotations

import argparse

import numpy as np

from bench.builds import require_compiled
from bench.evaluation.plans import NAMED, SIMULATED
from bench.evaluation.traffic import Source, Traffic, mixed
from bench.floods import steady, waits

LEADS = (4096, 8192, 16_384, 32_768, 65_536)
EQUALS = Traffic(
    tuple(Source(f"t{place}", 1.5, 256, 128, prefixes=4, prefix=8192, pick="zipf") for place in range(6)),
    60_000,
    64,
)


def row(engine: str, label: str, load: str, seed: int) -> list[float]:
    """Return mean TTFT in seconds: of the other tenants in both floods, and of the equal tenants."""
    floods = [mixed(steady(per_s), "flood", load, seed) for per_s in (12.0, 14.0)]
    found = [waits(engine, flood, label)[0] for flood in floods]
    return [*found, waits(engine, mixed(EQUALS, "equals", load, seed), label, who="")[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    require_compiled()
    print("| engine | lead | others, flood of 12/s | others, flood of 14/s | six equals |")
    print("|---|---|---|---|---|")
    for engine in SIMULATED:
        rows = {"arrival order": ("fcfs+lru", "new"), "nobody named": ("peek", "new")}
        rows |= {f"{lead:,}": (f"peek:tenant_lead={lead}", NAMED) for lead in LEADS}
        for name, (label, load) in rows.items():
            cells = [row(engine, label, load, seed) for seed in seeds]
            shown = " | ".join(f"{cell:.1f}" for cell in np.mean(cells, axis=0))
            print(f"| {engine.removeprefix('simulated-')} | {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
