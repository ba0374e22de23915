"""What `tenant_lead` buys and costs: a flood's wait for others, and locality among equals.

    python -m bench.leads [--seeds 1 2 3]

Buys: the steady floods of `bench.floods`, everybody named; mean TTFT of the others, beside arrival order's.
Costs: six tenants, each of whom sends 1.5 requests a second, with one of four prefixes of 8,192 tokens, to
engines whose cache holds seven of the 24 and cannot keep up; mean TTFT of all.
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
    """Mean TTFT in seconds: of the others in both floods, and of the equals."""
    floods = [mixed(steady(per_s), "flood", load, seed) for per_s in (12.0, 14.0)]
    found = [waits(engine, flood, label)[0] for flood in floods]
    return [*found, waits(engine, mixed(EQUALS, "equals", load, seed), label, who="")[0]]


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
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
