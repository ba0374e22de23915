"""A stated bound on waiting, on the simplest engine there is: one prompt at a time, at a steady pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from peek.policy.base import AdmissionPolicy
from peek.testing.readable import show_arrival
from peek.testing.replay import Replay
from peek.testing.scenes import Arrival
from peek.testing.twins import Place, longest

TOKENS_PER_S = 10.0

Bound = Callable[[float, float], float]
"""`bound(ahead_s, largest_s)`: the longest wait in seconds, see `check_policy`."""


class SerialEngine:
    """Admits the first of the order whenever it is free; every prompt it has begun is cached for ever."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.clock = 0.0
        """Seconds; when the engine is free."""
        self.ahead_s: dict[str, float] = {}
        """Of every request: how long the engine needed for what was before it when it arrived."""
        self._policy = policy
        self._replay = Replay(policy=policy)
        self._waiting: dict[str, Arrival] = {}
        self._cached: list[Place] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def seconds(self, row: Arrival) -> float:
        """How long it would compute a prompt now."""
        tokens = row.num_tokens or len(row.symbols)
        return (tokens - longest(self._cached, row.place)) / TOKENS_PER_S

    def arrive(self, row: Arrival) -> None:
        busy = max(0.0, self.clock - row.arrival_time)
        self.clock = max(self.clock, row.arrival_time)
        self.ahead_s[row.request_id] = busy + sum(map(self.seconds, self._waiting.values()))
        self._waiting[row.request_id] = row
        self._replay.arrive([row])

    def admit(self) -> tuple[Arrival, float]:
        """Admit the first of the policy's order; returns it and how long it has waited."""
        prepared = self._replay.prepare(tuple(self._cached), self.clock, self._policy.theta)
        first = prepared.order(self._policy)[0]
        row = self._waiting.pop(first)
        waited = self.clock - row.arrival_time
        self.clock += self._replay.admit(first) / TOKENS_PER_S
        self._cached.append(row.place)
        return row, waited


def check_bound(policy: AdmissionPolicy, queue: Sequence[Arrival], bound: Bound) -> None:
    """Serve all of `queue`, which is in arrival order; `AssertionError` if somebody waits too long."""
    engine = SerialEngine(policy)
    largest_s = max(map(engine.seconds, queue))
    coming = deque(queue)
    while coming or len(engine) > 0:
        while coming and (len(engine) == 0 or coming[0].arrival_time <= engine.clock):
            engine.arrive(coming.popleft())
        row, waited = engine.admit()
        allowed = bound(engine.ahead_s[row.request_id], largest_s)
        if waited > allowed + 1e-6:
            fault = f"{row.request_id} waited {waited:g} s, the bound allows {allowed:g} s"
            lines = [
                f"{type(policy).__name__}: {fault}",
                f"  engine: {TOKENS_PER_S:g} tokens a second, one prompt at a time, forgets nothing",
                *(f"    {show_arrival(row)}" for row in queue),
            ]
            raise AssertionError("\n".join(lines))
