"""The vLLM-like simulated engine with host memory behind its cache, a tier that evicted blocks fall into.

A block is in the pool or in the tier, never in both: it leaves the tier when it is loaded or computed again.
A full tier loses the block that was evicted first.  An admitted request loads the blocks that follow its hit
from the tier, and the step waits for the load.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from peek.simulation.caches import NAMELESS
from peek.simulation.engines import BlockEngine, Job, StepWork
from peek.simulation.workload import Workload


class Tier(NamedTuple):
    """Host memory for evicted KV: its size in tokens, and its loading speed in tokens per second."""

    tokens: int
    tokens_per_s: float


class HostTier:
    """The names of the blocks in a tier of `n_blocks`, the first evicted at the front."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._names: OrderedDict[int, None] = OrderedDict()

    def names(self) -> list[int]:
        """Return the names of all blocks here, the next to be lost first.  O(blocks)."""
        return list(self._names)

    def holds(self, symbol: int) -> bool:
        return symbol in self._names

    def put(self, symbol: int) -> None:
        """Take a block that the pool evicted.  O(1)."""
        self._names[symbol] = None
        if len(self._names) > self.n_blocks:
            self._names.popitem(last=False)

    def drop(self, symbol: int) -> None:
        """Remove the block of that name, if it is here, since the pool has it again.  O(1)."""
        self._names.pop(symbol, None)

    def run(self, symbols: list[int], start: int, end: int) -> int:
        """Return how many leading symbols of `symbols[start:end]` are here.  O(that number)."""
        at = start
        while at < min(end, len(symbols)) and symbols[at] in self._names:
            at += 1
        return at - start


class TieredEngine(BlockEngine):
    """A `BlockEngine` with a tier, or None.

    Attributes:
        load_s: time to load one block, in seconds.
        loading_s: seconds that the last step waits for loads.
        loaded: tokens that each request loaded when it was first admitted, by id.
    """

    def __init__(self, *arguments: Any, tier: Tier | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tier = None if tier is None else HostTier(tier.tokens // self.block_tokens)
        self.load_s = 0.0 if tier is None else self.block_tokens / tier.tokens_per_s
        self.loading_s = 0.0
        self.loaded: dict[str, int] = {}
        self._loads: list[int] = []
        """What the request that is admitted now finds in the tier."""

    def begin_step(self) -> StepWork:
        self.loading_s = 0.0
        work = super().begin_step()
        self.now += self.loading_s
        return work

    def beyond_hit(self, job: Job, hit: int, limit: int) -> int:
        self._loads = (
            [] if self.tier is None else job.symbols[hit : hit + self.tier.run(job.symbols, hit, limit)]
        )
        return len(self._loads)

    def _try_admit(self, job: Job, budget: int) -> int:
        tokens = super()._try_admit(job, budget)
        loads, self._loads = self._loads, []
        if tokens:
            self.loading_s += len(loads) * self.load_s
            self.loaded.setdefault(job.request_id, len(loads) * self.block_tokens)
        return tokens

    def _take(self, count: int) -> list[int]:
        return self.take(count, self.eviction_score(), 4 * max(1, len(self.waiting)))

    def take(self, count: int, score: Callable[[int], float] | None, scan_limit: int) -> list[int]:
        """Take `count` blocks as `BlockCache.take`; what they cached falls into the tier."""
        if self.tier is None:
            return self.cache.take(count, score, scan_limit)
        for symbol in self._loads:
            self.tier.drop(symbol)  # before room for them pushes others out
        names = list(self.cache._names)
        taken = self.cache.take(count, score, scan_limit)
        for block in taken:
            if names[block] != NAMELESS and not self.cache.holds(names[block]):
                self.tier.put(names[block])
        return taken

    def _schedule(self, job: Job, tokens: int, work: StepWork) -> None:
        first = job.named
        super()._schedule(job, tokens, work)
        if self.tier is not None:
            for symbol in job.symbols[first : job.named]:
                self.tier.drop(symbol)


def tier_hit(workload: Workload, engine: TieredEngine) -> float:
    """Return the share of prompt tokens after the warm-up that was loaded from the tier."""
    measured = workload.requests[workload.warmup :]
    loaded = sum(engine.loaded[each.request_id] for each in measured)
    return loaded / sum(each.num_tokens for each in measured)
