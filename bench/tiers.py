"""Measures what an order or an eviction could gain from KV in host memory, or from knowing when turns return.

    python -m bench.tiers [--kinds chat code] [--seeds 11 12] [--loads 1.1 1.5] [--csv FILE]

The vLLM-like simulated engine has a device of 50,000 tokens, with no tier behind it or one of 2 or 8 times
its size.  Tokens are loaded from the tier 10 or 50 times as fast as they are computed.  Loads are relative
to the capacity of engine and tier.  There are policies, and bounds on what they could reach:

    peek, tier as cached     the planner takes tokens in the tier for cached, as if loading cost nothing
    peek, next use known     the block needed last is evicted (Belady, 1966); a run of `peek` predicts the
                             admissions of a second run, and the second those of a third
    peek, returns known      between turns sessions keep their blocks, the next to return longest
    peek, returns expected   the same, by the rate at which sessions return after so long a pause; the kind's
                             distribution of pauses is known, and so is which sessions go on

With the last two, other blocks count as if they would return once in the time for which they have been idle.

Each row is the geometric mean over seeds and loads; hits are arithmetic means, shares of prompt tokens.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import product
from math import erfc, exp, log, pi, sqrt
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.arena.cells import show
from bench.arena.kinds import ARENAS, KINDS, LOADS, TUNING, at_load, build
from bench.tiered import HostTier, Tier, TieredEngine, tier_hit
from peek.config import PeekConfig
from peek.planner import Planner
from peek.protocols import CacheView
from peek.simulation.caches import BlockCache
from peek.simulation.cost import cost_model_for
from peek.simulation.engines import Job
from peek.simulation.simulate import figures, make_planner
from peek.simulation.workload import SimRequest, Workload

TIMES: Final = cost_model_for("w1c")
COMPUTED_PER_S: Final = 1.0 / (2.0 * TIMES.model.parameters / (TIMES.hardware.flops * TIMES.hardware.mfu))
"""Tokens that the engine computes in a second, without attention."""
LOADING: Final = (10, 50)
"""Speeds of loading, as multiples of the speed of computing."""
SIZES: Final = (2, 8)
"""Sizes of a tier, as multiples of the device's."""
AS_CACHED: Final = "peek, tier as cached"
KNOWN: Final = "peek, next use known"
RETURNS, EXPECTED = "peek, returns known", "peek, returns expected"
FOUR: Final = ("agents", "chat", "documents", "code")
POLICIES: Final = ("fcfs+lru", "lpm-nolimit+lru", "peek", AS_CACHED, KNOWN, RETURNS, EXPECTED)
PAUSES: Final = {"agents": (0.3, 1.0), "chat": (6.0, 0.8), "code": (2.5, 0.9)}
"""Median in seconds and sigma of the log-normal pauses between two turns (`bench.arena.kinds`)."""
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

    def __init__(self, cache: BlockCache, tier: HostTier) -> None:
        self._cache = cache
        self._tier = tier
        self.unit_tokens: int = cache.unit_tokens
        self.block_symbols = 1

    @property
    def version(self) -> int:
        return int(self._cache.version)

    def root(self, namespace: str) -> object:
        return self._cache.root(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        count = 0
        for symbol in segment:
            if not (self._cache.holds(symbol) or self._tier.holds(symbol)):
                break
            count += 1
        return count, segment[count - 1] if count else cursor

    def node_id(self, cursor: object) -> int:
        return self._cache.node_id(cursor)


class TierAsCached(TieredEngine):
    """An engine whose planner does not distinguish cache and tier."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert self.tier is not None
        self._whole = Whole(self.cache, self.tier)

    def view(self) -> CacheView:
        return self._whole


class NextUseKnown(TieredEngine):
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

    def _try_admit(self, job: Job, budget: int) -> int:
        tokens = super()._try_admit(job, budget)
        if tokens:
            self.order.setdefault(job.request_id, len(self.order))
        return tokens

    def _take(self, count: int) -> list[int]:
        if not self._uses:
            return super()._take(count)
        return self.take(count, self._soon, self.cache.n_blocks)

    def _soon(self, symbol: int) -> float:
        uses = self._uses.get(symbol)
        while uses and uses[0][1] in self.order:
            uses.popleft()
        return 1.0 / (1 + uses[0][0]) if uses else 0.0


class ReturnsKnown(TieredEngine):
    """An engine that evicts last what a session between two turns has cached, if the session returns soon."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pauses: dict[int, dict[str, tuple[float, float]]] = {}
        """By block, the begin and end of the pauses before the requests that will need it."""
        self._used: dict[int, float] = {}

    def schedule_arrival(self, request: SimRequest, at_s: float) -> None:
        super().schedule_arrival(request, at_s)
        if request.after is not None:
            for symbol in self.make_job(request, at_s).symbols:
                self._pauses.setdefault(symbol, {})[request.request_id] = (self.now, at_s)

    def _try_admit(self, job: Job, budget: int) -> int:
        tokens = super()._try_admit(job, budget)
        if tokens:
            for symbol in job.symbols:
                self._pauses.get(symbol, {}).pop(job.request_id, None)
        return tokens

    def release(self, job: Job) -> None:
        self._used.update(dict.fromkeys(job.symbols[: job.named], self.now))
        super().release(job)

    def _take(self, count: int) -> list[int]:
        return self.take(count, self._soon, self.cache.n_blocks)

    def _soon(self, symbol: int) -> float:
        pauses = self._pauses.get(symbol)
        if pauses:
            return self.rate(pauses.values())
        return 1.0 / max(1e-3, self.now - self._used.get(symbol, 0.0))

    def rate(self, pauses: Iterable[tuple[float, float]]) -> float:
        """Return how soon the sessions of these pauses return, in returns a second."""
        return 1.0 / max(1e-3, min(ends for _, ends in pauses) - self.now)


class ReturnsExpected(ReturnsKnown):
    """The same engine, which knows how long pauses are in general, but of none how long it will be."""

    def rate(self, pauses: Iterable[tuple[float, float]]) -> float:
        return sum(1e3 if ends <= self.now else self._hazard(self.now - began) for began, ends in pauses)

    def _hazard(self, paused_s: float) -> float:
        """Return the rate at which pauses that have lasted so long end."""
        median_s, sigma = PAUSES[self.workload.name]
        z = log(max(1e-3, paused_s) / median_s) / sigma
        density = exp(-z * z / 2.0) / (max(1e-3, paused_s) * sigma * sqrt(2.0 * pi))
        return 2.0 * density / max(1e-300, erfc(z / sqrt(2.0)))


ENGINES: Final = {AS_CACHED: TierAsCached, RETURNS: ReturnsKnown, EXPECTED: ReturnsExpected}


def run(workload: Workload, policy: str, tier: Tier | None) -> dict[str, float]:
    """Return the figures of one run: times in seconds, hits as shares."""
    config = PeekConfig.from_label(policy.partition(",")[0])

    def planner() -> Planner | None:
        return None if config.is_stock else make_planner(config, "blocks", None)

    if policy == KNOWN:
        admitted: dict[str, int] = {}
        for _ in range(3):
            engine: TieredEngine = NextUseKnown(workload, planner(), TIMES, tier=tier)
            assert isinstance(engine, NextUseKnown)
            engine.foretell(admitted)
            jobs = engine.run()
            admitted = engine.order
    else:
        engine = ENGINES.get(policy, TieredEngine)(workload, planner(), TIMES, tier=tier)
        jobs = engine.run()
    found = figures(workload, jobs)
    timed = {
        column: found[name]["p99" if column == "p99" else "mean"]
        for column, name in TIMED.items()
        if name in found
    }
    return {**timed, "hit": found["cache_hit"], "tier hit": tier_hit(workload, engine)}


def run_cell(cell: Cell) -> dict[str, dict[str, float]]:
    """Return the figures of each policy in a cell; without a tier, or without sessions, some are left out."""
    workload = at_load(build(cell.kind, cell.seed), cell.load, "blocks", cell.tier)
    left_out = set() if cell.size else {AS_CACHED}
    if cell.kind not in PAUSES:
        left_out |= {RETURNS, EXPECTED}
    return {policy: run(workload, policy, cell.tier) for policy in POLICIES if policy not in left_out}


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
    show(list(rows(found)), arguments.csv)


if __name__ == "__main__":
    main()
