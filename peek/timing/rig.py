"""The least that a planner can be driven with: a queue of ids and the library's radix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from peek.config import PeekConfig
from peek.planner import Planner
from peek.request import PendingRequest
from peek.simulation.caches import RadixCache

NOW: Final = 1_000.0
"""Seconds on the rig's clock; all arrivals are before it."""

VOCABULARY: Final = 150_000
"""Drawn tokens are below this."""


class Queue:
    """A `WaitingQueue` that does nothing of its own, so that the planner is what is timed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.ids: list[str] = []
        self.keys: dict[str, bytes] = {}
        self.arrivals: dict[str, float] = {}
        for key in keys:
            self.arrive(key)

    def arrive(self, key: bytes) -> str:
        """One more request waits; its id."""
        request_id = f"request-{len(self.keys)}"
        self.arrivals[request_id] = 0.01 * len(self.keys)
        self.keys[request_id] = key
        self.ids.append(request_id)
        return request_id

    def waiting_ids(self) -> list[str]:
        """As `WaitingQueue`."""
        return self.ids

    def translate(self, request_id: str) -> PendingRequest:
        """As `WaitingQueue`."""
        return PendingRequest(request_id, self.keys[request_id], self.arrivals[request_id])

    def uncached_tokens(self, request_id: str) -> int:
        """As `WaitingQueue`."""
        return 100

    def reorder(self, order: Sequence[str]) -> None:
        """As `WaitingQueue`."""
        self.ids = list(order)


class Rig:
    """A planner, its queue, and a cache.  One full cycle has run.

    Args:
        keys: packed prompts that wait.
        cache: what an engine holds.
        label: of the policy.
        own_at: where the tokens of a request of its own begin; see `one_arrival`.
    """

    def __init__(self, keys: Sequence[bytes], cache: RadixCache, label: str, own_at: int = 0) -> None:
        self.queue = Queue(keys)
        self.cache = cache
        self.planner = Planner(PeekConfig.from_label(label))
        self._rng = np.random.default_rng(2)
        self._own_at = own_at
        self._extra = ""
        self.cycle()

    def cycle(self) -> None:
        """The planner is told who came and went, and reorders the queue."""
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
        cut = 4 * self._own_at
        self._extra = self.queue.arrive(key[:cut] + random_key(self._rng, (len(key) - cut) // 4))


def match_each(cache: RadixCache, keys: Sequence[bytes]) -> None:
    """What an engine does without a pending tree: one cache match per request.

    Changes recency and, the first time, splits nodes.
    """
    match = cache.match
    for key in keys:
        match(key, "", len(key) >> 2)


def random_key(rng: np.random.Generator, n: int) -> bytes:
    """`n` packed tokens that nobody shares."""
    return rng.integers(0, VOCABULARY, size=n, dtype=np.int32).tobytes()
