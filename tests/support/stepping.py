"""The common part of both engines' steppers: requests with predictable answers, and a record of each request.

A fake model stands in for the workers.  The token at a position of a request depends only on the request and
the position.  So each answer can be predicted, and must be the same under any scheduler.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_STEPS = 4000
STEP_S = 0.05


def token_at(name: str, position: int) -> int:
    """What the fake model says: nothing but the request and the position counts."""
    return 3 + zlib.crc32(f"{name}/{position}".encode()) % 1000


def expected_tokens(name: str, prompt: int, count: int) -> list[int]:
    return [token_at(name, prompt + i) for i in range(count)]


@dataclass(frozen=True)
class Admission:
    """A request entered a batch (later chunks of it are not admissions)."""

    rid: str
    step: int
    cached: int
    uncached: int
    oldest: bool
    """Of those that wait and never ran, it had waited longest."""
    again: bool = False
    """It had been preempted."""


@dataclass
class Record:
    """What became of a request."""

    arrived: int
    admissions: list[Admission] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    preemptions: int = 0
    finished: bool = False
    aborted: bool = False


class Steps:
    """What both engines' steppers have: time, and what was seen; what is only declared is an engine's own.

    Attributes:
        at: steps so far.
        records, admissions: of all requests, by id, and in order.
        decisions: what the scheduler decided in each step of a play, in a form that compares.
        watch: called before each step, with None, and after the decision, with it.
        beside: the attachment of `peek`, None without.
    """

    beside: Any = None
    idle: Any
    add: Callable[[Any], None]
    abort: Callable[[str], None]
    request_of: Callable[..., Any]
    """The engine's request for a `Job`, its name and number, in a `Play`."""
    reset: Callable[[], None] = staticmethod(lambda: None)
    """Empty the cache, if the engine does."""
    step: Callable[[], Any]
    """One step; what the scheduler decided."""
    essence: Callable[[Any], Any]
    """That in a form that compares."""
    check: Callable[[], None]
    """Nobody is in two lists, or in none."""
    check_nothing_is_left: Callable[[], None]
    """Of an idle engine: everything is free, and `peek` remembers nobody."""

    def __init__(self) -> None:
        self.at = 0
        self.records: dict[str, Record] = {}
        self.admissions: list[Admission] = []
        self.decisions: list[Any] = []
        self.watch: Callable[[Any, Any], None] = lambda stepper, decided: None

    @property
    def now(self) -> float:
        return self.at * STEP_S

    def note(self, admission: Admission) -> None:
        self.admissions.append(admission)
        self.records[admission.rid].admissions.append(admission)

    def run_out(self, limit: int = MAX_STEPS) -> None:
        for _ in range(limit):
            if self.idle:
                return
            self.step()
        raise AssertionError(f"nothing ends: {self.records}")

    @property
    def preemptions(self) -> int:
        return sum(record.preemptions for record in self.records.values())
