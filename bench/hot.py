"""Shows in which modules an uncompiled library spends its time, to find those that are worth compiling.

    cd build/pure && PYTHONPATH=.:../.. python -m bench.hot

Figures are per cent of the time in the library's own code, under a profiler, which makes small functions look
more expensive than they are.  A module that stays under one per cent everywhere gains nothing from a
compiler.
"""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random

import peek
from peek.offline import reorder
from peek.simulation.cells import cell
from peek.simulation.fleet import FleetShape, simulate_fleet
from peek.simulation.simulate import simulate
from peek.simulation.workload import Workload

REQUESTS = 400


def main_workload() -> Workload:
    """Return the first requests of W1 C at heavy load."""
    whole = cell("w1c", "heavy", 42)
    return replace(whole, requests=whole.requests[:REQUESTS], warmup=0)


def simulated(label: str, cache: str) -> Callable[[], object]:
    """Return a function that runs the workload on one simulated engine."""
    return lambda: simulate(main_workload(), label, cache)


def batch() -> None:
    """Reorder a batch with twenty prefixes."""
    random = Random(1)
    prefixes = [[random.randrange(1000) for _ in range(1200)] for _ in range(20)]
    reorder([prefixes[i % 20] + [random.randrange(1000) for _ in range(100)] for i in range(1500)])


def fleet() -> object:
    """Run the same requests on three replicas behind one queue."""
    shape = FleetShape("peek", (1.0, 1.0, 1.0))
    return simulate_fleet(main_workload(), "peek", shape)


WORK: dict[str, Callable[[], object]] = {
    "peek radix": simulated("peek", "radix"),
    "peek blocks": simulated("peek", "blocks"),
    "published": simulated("clpm+gm+dl+pe", "radix"),
    "eviction": simulated("fcfs+pe", "blocks"),
    "hrrn": simulated("hrrn+lru", "radix"),
    "fleet": fleet,
    "batch": batch,
}


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Return each module's share of the time in the library's own code, in per cent."""
    profile = cProfile.Profile()
    profile.runcall(work)
    seconds: dict[str, float] = defaultdict(float)
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    entries = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (path, _, _), (_, _, own_s, _, _) in entries.items():
        _, found, module = path.rpartition("/peek/")
        if found:
            seconds[module] += own_s
    total = sum(seconds.values())
    return {module: 100.0 * spent / total for module, spent in seconds.items()}


def main() -> None:
    """Print a row for each module, in descending order of its largest share."""
    assert peek.backend() == "interpreted", "run it on an uncompiled build"
    found = {name: shares(work) for name, work in WORK.items()}
    modules = {module for each in found.values() for module in each}
    print(f"{'module':<32}" + "".join(f"{name:>12}" for name in found))
    for module in sorted(modules, key=lambda module: -max(each.get(module, 0.0) for each in found.values())):
        print(f"{module:<32}" + "".join(f"{each.get(module, 0.0):>12.1f}" for each in found.values()))


if __name__ == "__main__":
    main()
