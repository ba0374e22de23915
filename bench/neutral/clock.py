"""Shows what another clock would change: `python -m bench.neutral.clock`.

The default clock is set to the paper.  The other has the step times that SGLang's simulator takes from
`aiconfigurator`'s tables, as near as our model comes: `mfu` 0.70, and 0.82 of the bandwidth.  Printed is the
mean TTFT of `peek` over that of the best stock policy, requests arriving as the cells say.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from bench.builds import require_compiled
from bench.neutral.loads import SEED, load
from peek.simulation.cost import H100, CostModel
from peek.simulation.simulate import CACHES, simulate

CELLS: Final = ("w1a", "w1c", "w1d")
STOCK: Final = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru")
TABLES: Final = CostModel(replace(H100, mfu=0.70, bandwidth=0.82 * H100.bandwidth))


def ratio(name: str, cache: str, clock: CostModel) -> float:
    """Return the mean TTFT of `peek` in a cell over that of the best stock policy."""
    workload = load(name, SEED, cache)
    runs = [simulate(workload, policy, cache, cost=clock) for policy in (*STOCK, "peek")]
    *stock, peek = [run["ttft_s"]["mean"] for run in runs]
    return float(peek / min(stock))


def main() -> None:
    require_compiled()
    print("| cell, engine | default clock | by the tables |\n|---|---|---|")
    for name, cache in product(CELLS, CACHES):
        row = [f"{ratio(name, cache, clock):.2f}" for clock in (CostModel(), TABLES)]
        print(f"| {name}, {cache} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
