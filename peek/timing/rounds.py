"""Rounds of an action against the clock, and their times as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time
from typing import Final

CLOCK: Final = thread_time
"""Processor time of the one thread there is: on a shared machine wall time counts the neighbours, too."""


class Rounds:
    """Times `action(*setup())`, a few rounds at a time; `setup` is not timed, a first round neither.

    Attributes:
        times_s: seconds of each round so far.
    """

    def __init__(
        self, action: Callable[..., object], setup: Callable[[], tuple[object, ...]] = tuple
    ) -> None:
        self.times_s: list[float] = []
        self._action = action
        self._setup = setup
        action(*setup())  # to warm up

    def do(self, count: int) -> None:
        """`count` more rounds."""
        for _ in range(count):
            arguments = self._setup()
            started = CLOCK()
            self._action(*arguments)
            self.times_s.append(CLOCK() - started)


def best_of(rounds: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest of `rounds` calls."""
    best = float("inf")
    for _ in range(rounds):
        started = CLOCK()
        action()
        best = min(best, CLOCK() - started)
    return best


def readable(seconds: float) -> str:
    """A time with three digits or so."""
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-4 else f"{seconds * 1e6:.0f} us"


def aligned(lines: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Cells as text in columns, each to the side that `sides` says (`<` or `>`)."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    ]
