"""The least that a planner can be driven with: a queue of ids and the library's radix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import peek
from bench.worksets import VOCABULARY, WorkSet

if TYPE_CHECKING:
    from peek.simulation.radix_cache import RadixCache
else:
    try:
        from peek.simulation.radix_cache import RadixCache
    except ImportError:  # where `against.py` measures an older checkout
        from peek.adapters.simulated.radix_cache import RadixCache

__all__ = ["NOW", "Queue", "RadixCache", "Rig", "half_cached", "random_key"]

NOW = 1_000.0
"""Seconds on the benchmarks' clock; all arrivals are before it."""


class Queue:
    """A `WaitingQueue` that does nothing of its own, so that the planner is what is timed."""

    def __init__(self, work: WorkSet) -> None:
        self.ids: list[str] = []
        self.keys: dict[str, bytes] = {}
        self.arrivals: dict[str, float] = {}
        for key in work.packed():
            self.arrive(key)

    def arrive(self, key: bytes) -> str:
        request_id = f"request-{len(self.keys)}"
        self.arrivals[request_id] = 0.01 * len(self.keys)
        self.keys[request_id] = key
        self.ids.append(request_id)
        return request_id

    def waiting_ids(self) -> list[str]:
        return self.ids

    def translate(self, request_id: str) -> peek.PendingRequest:
        return peek.PendingRequest(request_id, self.keys[request_id], self.arrivals[request_id])

    def uncached_tokens(self, request_id: str) -> int:
        return 100

    def reorder(self, order: Sequence[str]) -> None:
        self.ids = list(order)


class Rig:
    """A planner, its queue, and a cache that holds every second prefix.  One full cycle has run."""

    def __init__(self, work: WorkSet, label: str) -> None:
        self.queue = Queue(work)
        self.cache = half_cached(work)
        self.planner = peek.Planner(peek.PeekConfig.from_label(label))
        self._rng = np.random.default_rng(2)
        self._prefix_len = work.prefix_len
        self._extra = ""
        self.cycle()

    def cycle(self) -> None:
        self.planner.cycle(self.queue, self.cache, NOW)

    def turn_over(self) -> None:
        """The head of the queue was admitted, another request came, the cache is another one."""
        gone = self.queue.ids.pop(0)
        self.queue.arrive(self.queue.keys[gone])
        self.cache.version += 1

    def one_arrival(self) -> None:
        """Nothing happened since the last cycle except for one more request, as long as the others."""
        if self._extra:
            self.queue.ids.remove(self._extra)
            self.cycle()
        key = self.queue.keys[self.queue.ids[len(self.queue.ids) // 2]]
        cut = 4 * self._prefix_len
        self._extra = self.queue.arrive(key[:cut] + random_key(self._rng, (len(key) - cut) // 4))


def half_cached(work: WorkSet) -> RadixCache:
    """A cache in which two finished requests with every second prefix have left their tokens."""
    cache = RadixCache(1)
    rng = np.random.default_rng(1)
    for prefix in work.prefixes()[::2]:
        for _ in range(2):
            cache.insert(prefix + random_key(rng, 64), "")
    return cache


def random_key(rng: np.random.Generator, n: int) -> bytes:
    """`n` packed tokens that nobody shares."""
    return rng.integers(0, VOCABULARY, size=n, dtype=np.int32).tobytes()
