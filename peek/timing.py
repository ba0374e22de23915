"""Measures times, for `peek bench` and the project's own benchmarks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import thread_time
from typing import Final

import numpy as np

from peek.config import PeekConfig
from peek.offline.reordering import reorder
from peek.planner import Planner
from peek.request import PendingRequest
from peek.simulation.caches import RadixCache
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree

CLOCK: Final = thread_time
"""Clock of all measurements: processor time of this thread, because wall time counts other processes."""

NOW: Final = 1_000.0
"""Time of each cycle in seconds, on the clock of the rig's arrivals and later than all of them."""

VOCABULARY: Final = 150_000
"""Upper bound of random token ids, exclusive."""

FEW_ROUNDS: Final = 5
"""Rounds of a slow measurement, such as the offline order of all prompts."""

# -- rounds against the clock ---------------------------------------------------------------------------


class Rounds:
    """Times rounds of `action(*setup())`, without `setup` and without a first round, which warms up.

    Attributes:
        times_s: time of each round so far, seconds.
    """

    def __init__(
        self, action: Callable[..., object], setup: Callable[[], tuple[object, ...]] = tuple
    ) -> None:
        self.times_s: list[float] = []
        self._action = action
        self._setup = setup
        action(*setup())  # to warm up

    def do(self, count: int) -> None:
        for _ in range(count):
            arguments = self._setup()
            started = CLOCK()
            self._action(*arguments)
            self.times_s.append(CLOCK() - started)


def best_of(rounds: int, action: Callable[[], object]) -> float:
    """Return the time of the fastest of `rounds` calls, seconds."""
    best = float("inf")
    for _ in range(rounds):
        started = CLOCK()
        action()
        best = min(best, CLOCK() - started)
    return best


def readable(seconds: float) -> str:
    """Write a time with about three digits, in ms or us."""
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-4 else f"{seconds * 1e6:.0f} us"


def aligned(lines: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Align cells in columns; `sides` has `<` (left) or `>` (right) for each column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    ]


# -- the rig ----------------------------------------------------------------------------------------------


class Queue:
    """A `WaitingQueue` that does as little as possible, so that only the planner is timed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.ids: list[str] = []
        self.keys: dict[str, bytes] = {}
        self.arrivals: dict[str, float] = {}
        for key in keys:
            self.arrive(key)

    def arrive(self, key: bytes) -> str:
        """Add a request; return its id."""
        request_id = f"request-{len(self.keys)}"
        self.arrivals[request_id] = 0.01 * len(self.keys)
        self.keys[request_id] = key
        self.ids.append(request_id)
        return request_id

    def waiting_ids(self) -> list[str]:
        return self.ids

    def translate(self, request_id: str) -> PendingRequest:
        return PendingRequest(request_id, self.keys[request_id], self.arrivals[request_id])

    def uncached_tokens(self, request_id: str) -> int:
        return 100

    def reorder(self, order: Sequence[str]) -> None:
        self.ids = list(order)


class Rig:
    """A planner of the policy `label`, its queue of packed prompts and a cache, after one full cycle.

    `own_at` is the index of the first token that a request does not share; see `one_arrival`.
    """

    def __init__(self, keys: Sequence[bytes], cache: RadixCache, label: str, own_at: int = 0) -> None:
        self.queue = Queue(keys)
        self.cache = cache
        self.planner = Planner(PeekConfig.from_label(label), strict=True)
        self._rng = np.random.default_rng(2)
        self._own_at = own_at
        self._extra = ""
        self.cycle()

    def cycle(self) -> None:
        self.planner.cycle(self.queue, self.cache, NOW)

    def turn_over(self) -> None:
        """Admit the head of the queue, add a request, and mark the cache as changed."""
        gone = self.queue.ids.pop(0)
        self.queue.arrive(self.queue.keys[gone])
        self.cache.version += 1

    def one_arrival(self) -> None:
        """Remove the request that the last call added, then add a new one.

        It is as long as the request in the middle of the queue and shares that one's first `own_at` tokens.
        """
        if self._extra:
            self.queue.ids.remove(self._extra)
            self.cycle()
        key = self.queue.keys[self.queue.ids[len(self.queue.ids) // 2]]
        cut = 4 * self._own_at
        self._extra = self.queue.arrive(key[:cut] + random_key(self._rng, (len(key) - cut) // 4))


def match_each(cache: RadixCache, keys: Sequence[bytes]) -> None:
    """Match each prompt with the cache, as an engine does without a pending tree.

    A match changes recency and, the first time, splits nodes.
    """
    for key in keys:
        cache.match(key, "", len(key) >> 2)


def random_key(rng: np.random.Generator, n: int) -> bytes:
    return rng.integers(0, VOCABULARY, size=n, dtype=np.int32).tobytes()


# -- what `peek bench` measures ---------------------------------------------------------------------------

CHANGES: Final[dict[str, Callable[[Rig], None]]] = {
    "one left, one came, cache changed": Rig.turn_over,
    "one came": Rig.one_arrival,
}
"""Changes between two plans, by the name that a row gives them."""


@dataclass(frozen=True)
class Figure:
    """One row of `peek bench`.

    Attributes:
        what: name of the operation.
        best_s, median_s: time of one operation in the fastest and in the median round, seconds.
        ratio: `best_s` over the time of one cache match per request; None if the two are not comparable.
    """

    what: str
    best_s: float
    median_s: float
    ratio: float | None = None


class Bench:
    """Measures the operations of `peek` on one queue, under the policy `label`, each in `rounds` rounds.

    The last `waiting` of the packed prompts `keys` wait, and every second one before them is in the cache.
    `block_symbols` are those of a cache block, for the offline order.
    """

    def __init__(
        self, keys: Sequence[bytes], waiting: int, label: str, rounds: int, block_symbols: int
    ) -> None:
        self._all = keys
        self.waiting = keys[-waiting:]
        self.cached = keys[:-waiting][::2]
        self._ids = [f"request-{place}" for place in range(len(self.waiting))]
        self._label = label
        self._rounds = rounds
        self._block_symbols = block_symbols

    def figures(self) -> Iterator[Figure]:
        """Yield the figures, each measured when the iterator reaches it."""
        n = len(self.waiting)
        yield self._measured("tree, insert one", self._tree, operations=n)
        yield self._measured("tree, remove one", self._drain, lambda: (self._tree(),), operations=n)
        cache = self._cache()
        each_s = best_of(FEW_ROUNDS, lambda: match_each(cache, self.waiting))
        yield Figure("one cache match per request", each_s, each_s, 1.0)
        yield self._walk(each_s)
        for what, happen in CHANGES.items():
            rig = Rig(self.waiting, self._cache(), self._label)
            yield self._measured(f"plan, {what}", rig.cycle, partial(_changed, happen, rig), each_s)
        what = f"offline order of {len(self._all):,} prompt{'s' * (len(self._all) != 1)}"
        order = partial(reorder, self._all, block_tokens=self._block_symbols)
        yield self._measured(what, order, rounds=FEW_ROUNDS)

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
        return Figure(what, best, middle, best / beside_s if beside_s else None)

    def _cache(self) -> RadixCache:
        cache = RadixCache(1)
        for key in self.cached:
            cache.insert(key, "")
        return cache

    def _tree(self) -> PendingTree:
        tree = PendingTree()
        for request_id, key in zip(self._ids, self.waiting, strict=True):
            tree.insert(request_id, key)
        return tree

    def _drain(self, tree: PendingTree) -> None:
        for request_id in self._ids:
            tree.remove(request_id)

    def _walk(self, each_s: float) -> Figure:
        walk = DualWalk(self._tree())
        cache = self._cache()

        def setup() -> tuple[RadixCache]:
            cache.version += 1
            return (cache,)

        return self._measured("dual-walk, cache changed", walk.walk, setup, each_s)


def _changed(happen: Callable[[Rig], None], rig: Rig) -> tuple[()]:
    """Make a change; the cycle that is timed takes no argument."""
    happen(rig)
    return ()
