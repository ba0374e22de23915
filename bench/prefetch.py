"""Measures what prefetching gains if it goes by the plan, on the vLLM-like simulated engine.

    python -m bench.prefetch [--kinds chat code] [--seeds 11 12] [--loads 1.1 1.5] [--csv FILE]
    python -m bench.prefetch --real vllm --streams w1c:heavy live:new          only `foretold`

A device of 50,000 tokens has storage of 8 times its size behind it.  One link loads from storage, 4 or 20
times as fast as the engine computes.  If a request finds tokens in storage, the step that admits it
*stalls*: it waits while the link loads them.  A buffer in host memory, half the size of the device, takes
what is prefetched while the link is idle; loading from the buffer takes no time.  A full buffer drops what
it has held longest.

    none       everything is loaded at admission
    arrival    waiting requests are prefetched in order of arrival, as by SGLang's HiCache
    plan       `Planner.upcoming` is prefetched after each step, as far as the buffer holds it

Times are geometric means over seeds and loads.  Shares are of all prompt tokens: found on the device, in the
buffer, loaded in a stall.  `foretold` is the share of the first 1, 4 and 16 requests of `upcoming` that were
among as many requests admitted from then on; requests admitted at one time count as one place.

On a real scheduler the head comes from its attachment, `announce`.  The engine's own Python runs it, with
this checkout and the engine's folder of tests on `PYTHONPATH`.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import product
from math import isnan, nan
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.arena.cells import show
from bench.arena.kinds import ARENAS, KINDS, LOADS, TUNING, at_load, build
from bench.evaluation.record import real_engine
from bench.evaluation.streams import as_tokens
from bench.evaluation.streams import build as build_stream
from bench.tiered import Tier, TieredEngine
from bench.tiers import COMPUTED_PER_S, FOUR, TIMES
from peek.config import PeekConfig
from peek.simulation.cost import cost_model_for
from peek.simulation.engines import Job
from peek.simulation.simulate import figures, make_planner
from peek.simulation.workload import Workload

LOADING: Final = (4, 20)
"""Speeds of the link, as multiples of the speed of computing."""
MODES: Final = ("none", "arrival", "plan")
SOON: Final = 128
"""Requests of the plan that are prefetched."""
FORETOLD: Final = (1, 4, 16)


Head = tuple[float, list[str]]
"""The time of a plan, and the requests that it has first."""


def head_of(planner: Any, now: float) -> Head:
    return now, [each.request_id for each in planner.upcoming(FORETOLD[-1])]


class PrefetchingEngine(TieredEngine):
    """An engine that loads in advance, while the link is idle, what the requests that are up soon will need.

    Attributes:
        stalled_s: seconds that steps waited for the link.
        shares: tokens found in the buffer, and tokens loaded in a stall.
        foretold: the time of each plan, and its head.
    """

    def __init__(self, *arguments: Any, mode: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.mode = mode
        self.stalled_s = 0.0
        self.shares = [0, 0]
        self.foretold: list[Head] = []
        self._buffer: OrderedDict[int, None] = OrderedDict()
        self._room = ARENAS[0] // 2 // self.block_tokens

    def turn(self) -> bool:
        began, stalled_s = self.now, self.stalled_s
        computes = super().turn()
        self._prefetch(self.now - began - (self.stalled_s - stalled_s))
        return computes

    def plan(self) -> None:
        super().plan()
        if self.planner is not None and self.waiting:
            self.foretold.append(head_of(self.planner, self.now))

    def _soon(self) -> list[Job]:
        """Return the waiting jobs in the order in which they are prefetched."""
        if self.mode == "none":
            return []
        if self.mode == "arrival" or self.planner is None:
            return sorted(self.waiting, key=lambda job: job.arrival_s)
        return [self.jobs[each.request_id] for each in self.planner.upcoming(SOON)]

    def _missing(self, job: Job) -> list[int]:
        """Return the symbols that a job would load from storage now."""
        assert self.tier is not None
        limit = (job.total_tokens - 1) // self.block_tokens
        hit = len(self.cache.match(job.symbols, limit))
        return job.symbols[hit : hit + self.tier.run(job.symbols, hit, limit)]

    def _prefetch(self, idle_s: float) -> None:
        """Load for `idle_s` seconds, for requests that were waiting all that time."""
        blocks = int(idle_s / self.load_s)
        wanted = 0
        for job in self._soon():
            missing = self._missing(job)
            wanted += len(missing)
            if blocks <= 0 or (wanted > self._room and self.mode == "plan"):
                break
            for symbol in missing:
                if symbol in self._buffer:
                    if self.mode == "plan":
                        self._buffer.move_to_end(symbol)
                elif blocks > 0:
                    blocks -= 1
                    self._buffer[symbol] = None
                    if len(self._buffer) > self._room:
                        self._buffer.popitem(last=False)

    def _try_admit(self, job: Job, budget: int) -> int:
        missing = self._missing(job)
        ready = sum(symbol in self._buffer for symbol in missing)
        tokens = super()._try_admit(job, budget)
        if tokens:
            if not job.preemptions:
                self.shares[0] += ready * self.block_tokens
                self.shares[1] += (len(missing) - ready) * self.block_tokens
            for symbol in missing:
                self._buffer.pop(symbol, None)
            self.loading_s -= ready * self.load_s
            self.stalled_s += (len(missing) - ready) * self.load_s
        return tokens


def accuracy(heads: Sequence[Head], jobs: Sequence[Any], k: int) -> float:
    """Return the share of the first `k` of each head that were among the next `k` admitted."""
    admitted_s = {each.request_id: each.admitted_s for each in jobs}
    times = sorted(admitted_s.values())
    found, asked = 0, 0
    for now, names in heads:
        first = bisect_left(times, now)
        named = names[:k]
        asked += len(named)
        found += sum(admitted_s[name] <= times[min(first + k, len(times)) - 1] for name in named)
    return found / asked if asked else 0.0


def run(workload: Workload, policy: str, mode: str, tier: Tier) -> dict[str, float]:
    """Return the figures of one run: times in seconds, the rest as shares."""
    config = PeekConfig.from_label(policy)
    planner = None if config.is_stock else make_planner(config, "blocks", None)
    engine = PrefetchingEngine(workload, planner, TIMES, tier=tier, mode=mode)
    jobs = engine.run()
    found = figures(workload, jobs)
    prompts = sum(each.num_tokens for each in workload.requests)
    return {
        "ttft": found["ttft_s"]["mean"],
        "p99": found["ttft_s"]["p99"],
        "e2e": found["e2e_s"]["mean"],
        "stalled": engine.stalled_s / engine.now,
        "device": found["cache_hit"],
        "buffer": engine.shares[0] / prompts,
        "loaded": engine.shares[1] / prompts,
        **{
            f"foretold {k}": accuracy(engine.foretold, jobs, k) if planner is not None else nan
            for k in FORETOLD
        },
    }


TIMED: Final = ("ttft", "p99", "e2e")
POLICIES: Final = ("fcfs+lru", "lpm-nolimit+lru", "peek")


def run_cell(cell: tuple[str, int, float, int]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the figures of a kind, seed, load and loading speed, by policy and mode."""
    kind, seed, load, loading = cell
    tier = Tier(8 * ARENAS[0], loading * COMPUTED_PER_S)
    workload = at_load(build(kind, seed), load, "blocks", tier)
    return {(policy, mode): run(workload, policy, mode, tier) for policy, mode in product(POLICIES, MODES)}


def foretell(engine: str, stream: str) -> list[float]:
    """Return `accuracy` on a real scheduler that plays a stream of the evaluation."""
    (workload,) = build_stream(stream, TUNING[0], engine, None)
    real = real_engine(engine)(as_tokens(workload), "peek", cost_model_for(workload.name))
    attachment = real.decision[0].peek
    heads: list[Head] = []
    attachment.announce(FORETOLD[-1], lambda *_: heads.append(head_of(attachment.adapter.planner, real.now)))
    real.run()
    return [accuracy(heads, list(real.jobs.values()), k) for k in FORETOLD]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(FOUR), choices=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(TUNING[:2]))
    parser.add_argument("--loads", nargs="*", type=float, default=list(LOADS[1:]))
    parser.add_argument("--csv", type=Path, default=None, help="write the table")
    parser.add_argument("--real", choices=("vllm", "sglang"), default=None)
    parser.add_argument("--streams", nargs="*", default=[])
    asked = parser.parse_args()
    if asked.real:
        for stream in asked.streams:
            shares = " | ".join(f"{each:.3f}" for each in foretell(asked.real, stream))
            print(f"| {asked.real} | {stream} | {shares} |", flush=True)
        return
    cells = list(product(asked.kinds, asked.seeds, asked.loads, LOADING))
    with Pool() as pool:
        found = dict(zip(cells, pool.map(run_cell, cells, chunksize=1), strict=True))
    table: list[list[str]] = []
    for kind, loading in product(asked.kinds, LOADING):
        runs = [each for cell, each in found.items() if (cell[0], cell[3]) == (kind, loading)]
        for policy, mode in product(POLICIES, MODES):
            rows = [each[policy, mode] for each in runs]
            means = {
                column: np.exp(np.mean(np.log([row[column] for row in rows])))
                if column in TIMED
                else np.mean([row[column] for row in rows])
                for column in rows[0]
            }
            if not table:
                table.append(["kind", "loading", "policy", "prefetch", *means])
            said = ("" if isnan(each) else f"{each:.3f}" for each in means.values())
            table.append([kind, f"{loading}x", policy, mode, *said])
    show(table, asked.csv)


if __name__ == "__main__":
    main()
