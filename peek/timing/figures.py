"""What `peek bench` measures: tree, walk, plan and offline order of one queue."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from peek.offline.reordering import reorder
from peek.simulation.caches import RadixCache
from peek.timing.rig import Rig, match_each
from peek.timing.rounds import Rounds, best_of
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree

FEW_ROUNDS: Final = 5
"""Of what takes long: the offline order of all prompts."""

CHANGES: Final[dict[str, Callable[[Rig], None]]] = {
    "one left, one came, cache changed": Rig.turn_over,
    "one came": Rig.one_arrival,
}
"""What happens between two plans."""


@dataclass(frozen=True)
class Figure:
    """One row.

    Attributes:
        best_s, median_s: seconds of one operation in the fastest and the median round.
        ratio: of the fastest to one cache match per request; 0 where the two have nothing in common.
    """

    what: str
    best_s: float
    median_s: float
    ratio: float = 0.0


class Bench:
    """Measures on one queue.

    Args:
        keys: packed prompts; the last ones wait, every second one of those before is in the cache.
        waiting: how many wait, at least 1.
        label: of the policy.
        rounds: of each measurement.
        block_symbols: symbols of a cache block, for the offline order.
    """

    def __init__(
        self, keys: Sequence[bytes], waiting: int, label: str, rounds: int, block_symbols: int
    ) -> None:
        self._all = keys
        self.waiting = keys[-waiting:]
        self.cached = keys[:-waiting][::2]
        self._label = label
        self._rounds = rounds
        self._block_symbols = block_symbols

    def figures(self) -> Iterator[Figure]:
        """One after another, each measured when it is asked for."""
        n = len(self.waiting)
        yield from self._tree(n)
        each_s = best_of(FEW_ROUNDS, self._match_each())
        yield Figure("one cache match per request", each_s, each_s, 1.0)
        yield self._walk(each_s)
        for what, happen in CHANGES.items():
            rig = Rig(self.waiting, self._cache(), self._label)
            yield self._measured(f"plan, {what}", rig.cycle, _setup(rig, happen), each_s)
        yield self._measured(f"offline order of {len(self._all):,} prompts", self._offline, rounds=FEW_ROUNDS)

    def _measured(
        self,
        what: str,
        action: Callable[..., object],
        setup: Callable[[], tuple[object, ...]] = tuple,
        beside_s: float = 0.0,
        operations: int = 1,
        rounds: int = 0,
    ) -> Figure:
        gc.collect()
        timed = Rounds(action, setup)
        timed.do(rounds or self._rounds)
        best, middle = min(timed.times_s) / operations, median(timed.times_s) / operations
        return Figure(what, best, middle, best / beside_s if beside_s else 0.0)

    def _cache(self) -> RadixCache:
        cache = RadixCache(1)
        for key in self.cached:
            cache.insert(key, "")
        return cache

    def _tree(self, n: int) -> Iterator[Figure]:
        ids = [f"request-{place}" for place in range(n)]

        def fill() -> PendingTree:
            tree = PendingTree()
            for request_id, key in zip(ids, self.waiting, strict=True):
                tree.insert(request_id, key)
            return tree

        def drain(tree: PendingTree) -> None:
            for request_id in ids:
                tree.remove(request_id)

        yield self._measured("tree, insert one", fill, operations=n)
        yield self._measured("tree, remove one", drain, lambda: (fill(),), operations=n)

    def _match_each(self) -> Callable[[], None]:
        cache = self._cache()
        return lambda: match_each(cache, self.waiting)

    def _walk(self, each_s: float) -> Figure:
        tree = PendingTree()
        for place, key in enumerate(self.waiting):
            tree.insert(f"request-{place}", key)
        cache = self._cache()

        def setup() -> tuple[RadixCache]:
            cache.version += 1
            return (cache,)

        return self._measured("dual-walk, cache changed", DualWalk(tree).walk, setup, each_s)

    def _offline(self) -> object:
        return reorder(self._all, block_tokens=self._block_symbols)


def _setup(rig: Rig, happen: Callable[[Rig], None]) -> Callable[[], tuple[object, ...]]:
    def setup() -> tuple[object, ...]:
        happen(rig)
        return ()

    return setup
