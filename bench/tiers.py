"""Measures what an order or an eviction could gain from KV in host memory, on the vLLM-like simulated engine.

    python -m bench.tiers [--kinds chat code] [--seeds 11 12] [--loads 1.1 1.5] [--csv FILE]

A device of 50,000 tokens has no tier behind it, or one of 2 or 8 times its size.  Tokens are loaded from the
tier 10 or 50 times as fast as they are computed.  Loads are relative to the capacity of engine and tier.
There are policies, and two bounds:

    peek, tier as cached     the planner takes tokens in the tier for cached, as if loading cost nothing
    peek, next use known     without a tier, the block needed last is evicted (Belady, 1966); the admissions
                             of a run of `peek` foretell those of a second run, and these those of a third

Each row is the geometric mean over seeds and loads; hits are arithmetic means, shares of prompt tokens.
"""

from __future__ import annotations

import argparse
import csv
from collections import deque
from collections.abc import Iterator
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.arena.kinds import ARENAS, KINDS, LOADS, TUNING, at_load, build
from peek.config import PeekConfig
from peek.planner import Planner
from peek.protocols import CacheView
from peek.simulation.caches import BlockCache
from peek.simulation.cost import cost_model_for
from peek.simulation.engines import BlockEngine, Job, StepWork, Tier
from peek.simulation.simulate import figures, make_planner
from peek.simulation.workload import Workload

TIMES: Final = cost_model_for("w1c")
COMPUTED_PER_S: Final = 1.0 / (2.0 * TIMES.model.parameters / (TIMES.hardware.flops * TIMES.hardware.mfu))
"""Tokens that the engine computes in a second, without attention."""
LOADING: Final = (10, 50)
"""Speeds of loading, as multiples of the speed of computing."""
SIZES: Final = (2, 8)
"""Sizes of a tier, as multiples of the device's."""
AS_CACHED: Final = "peek, tier as cached"
KNOWN: Final = "peek, next use known"
FOUR: Final = ("agents", "chat", "documents", "code")
POLICIES: Final = ("fcfs+lru", "lpm-nolimit+lru", "peek", AS_CACHED, KNOWN)
TIMED: Final = {"ttft": "ttft_s", "p99": "ttft_s", "e2e": "e2e_s", "job": "job_s"}


class Cell(NamedTuple):
    """One workload on a device with a tier; a size of 0 means no tier."""

    kind: str
    seed: int
    load: float
    size: int
    loading: int

    @property
    def tier(self) -> Tier | None:
        return Tier(self.size * ARENAS[0], self.loading * COMPUTED_PER_S) if self.size else None


class Whole:
    """The view of a cache and its tier together."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self.unit_tokens: int = cache.unit_tokens
        self.block_symbols = 1

    @property
    def version(self) -> int:
        return int(self._cache.version)

    def root(self, namespace: str) -> object:
        return self._cache.root(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        tier = self._cache.tier
        assert tier is not None
        count = 0
        for symbol in segment:
            if not (self._cache.holds(symbol) or tier.holds(symbol)):
                break
            count += 1
        return count, segment[count - 1] if count else cursor

    def node_id(self, cursor: object) -> int:
        return self._cache.node_id(cursor)


class TierAsCached(BlockEngine):
    """An engine whose planner does not distinguish cache and tier."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._whole = Whole(self.cache)

    def view(self) -> CacheView:
        return self._whole


class NextUseKnown(BlockEngine):
    """An engine that evicts the block that is needed last, as far as another run has foretold it.

    Attributes:
        order: each request's place in the order of first admissions, by id.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.order: dict[str, int] = {}
        self._uses: dict[int, deque[tuple[int, str]]] = {}

    def foretell(self, admitted: dict[str, int]) -> None:
        """Take the `order` of another run as the order in which requests will be admitted."""
        requests = {each.request_id: each for each in self.workload.requests}
        for name, place in admitted.items():
            job = self.make_job(requests[name], 0.0)
            for symbol in job.symbols[: (job.prompt_tokens - 1) // self.block_tokens]:
                self._uses.setdefault(symbol, deque()).append((place, name))

    def _try_admit(self, job: Job, budget: int, work: StepWork) -> int:
        tokens = super()._try_admit(job, budget, work)
        if tokens:
            self.order.setdefault(job.request_id, len(self.order))
        return tokens

    def _take(self, count: int) -> list[int]:
        if not self._uses:
            return super()._take(count)
        return self.cache.take(count, self._soon, self.cache.n_blocks)

    def _soon(self, symbol: int) -> float:
        uses = self._uses.get(symbol)
        while uses and uses[0][1] in self.order:
            uses.popleft()
        return 1.0 / (1 + uses[0][0]) if uses else 0.0


def run(workload: Workload, policy: str, tier: Tier | None) -> dict[str, float]:
    """Return the figures of one run: times in seconds, hits as shares."""
    config = PeekConfig.from_label(policy.partition(",")[0])

    def planner() -> Planner | None:
        return None if config.is_stock else make_planner(config, "blocks", None)

    if policy == KNOWN:
        admitted: dict[str, int] = {}
        for _ in range(3):
            knowing = NextUseKnown(workload, planner(), TIMES, tier=tier)
            knowing.foretell(admitted)
            jobs = knowing.run()
            admitted = knowing.order
    else:
        kind = TierAsCached if policy == AS_CACHED else BlockEngine
        jobs = kind(workload, planner(), TIMES, tier=tier).run()
    found = figures(workload, jobs, tiered=True)
    timed = {
        column: found[name]["p99" if column == "p99" else "mean"]
        for column, name in TIMED.items()
        if name in found
    }
    return {**timed, "hit": found["cache_hit"], "tier hit": found["tier_hit"]}


def run_cell(cell: Cell) -> dict[str, dict[str, float]]:
    """Return the figures of each policy in a cell; each bound runs either with or without a tier."""
    workload = at_load(build(cell.kind, cell.seed), cell.load, "blocks", cell.tier)
    left_out = KNOWN if cell.size else AS_CACHED
    return {policy: run(workload, policy, cell.tier) for policy in POLICIES if policy != left_out}


def rows(found: dict[Cell, dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    """Yield the table's heading, then a row for each kind, tier and policy."""
    columns = [*TIMED, "hit", "tier hit"]
    yield ["kind", "tier", "loading", "policy", *columns]
    for place in dict.fromkeys((cell.kind, cell.size, cell.loading) for cell in found):
        runs = [each for cell, each in found.items() if (cell.kind, cell.size, cell.loading) == place]
        for policy in runs[0]:
            line = [str(place[0]), f"{place[1]}x", f"{place[2]}x", policy]
            for column in columns:
                values = [each[policy][column] for each in runs if column in each[policy]]
                if not values:
                    line.append("")
                elif column in TIMED:
                    line.append(f"{np.exp(np.mean(np.log(values))):.3f}")
                else:
                    line.append(f"{np.mean(values):.3f}")
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(FOUR), choices=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(TUNING[:2]))
    parser.add_argument("--loads", nargs="*", type=float, default=list(LOADS[1:]))
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    arguments = parser.parse_args()
    tiers = [(0, 0), *product(SIZES, LOADING)]
    cells = [
        Cell(kind, seed, load, *tier)
        for kind, tier, seed, load in product(arguments.kinds, tiers, arguments.seeds, arguments.loads)
    ]
    with Pool() as pool:
        found = dict(zip(cells, pool.map(run_cell, cells, chunksize=1), strict=True))
    table = list(rows(found))
    for number, line in enumerate(table):
        print("| " + " | ".join(line) + " |")
        if not number:
            print("|---" * len(line) + "|")
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
