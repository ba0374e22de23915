"""A router of a handle, as the queue knows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Router:
    """Who of its requests is where, and what it is to be told.

    Attributes:
        called_s: when it last called.
        waiting: serials of its requests that wait.
        sent: those at a replica: its name, and since when.
        answers: what the next `poll` brings.
    """

    def __init__(self, now: float) -> None:
        self.called_s = now
        self.waiting: set[int] = set()
        self.sent: dict[int, tuple[str, float]] = {}
        self.answers: list[tuple[int, str]] = []
        self._ready = asyncio.Event()

    def answer(self, serial: int, answer: str) -> None:
        """A request no longer waits."""
        self.waiting.discard(serial)
        self.answers.append((serial, answer))
        self._ready.set()

    async def collect(self, timeout_s: float) -> list[tuple[int, str]]:
        """The answers, as soon as there is one."""
        if not self.answers:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ready.wait(), timeout_s)
        self._ready.clear()
        answers, self.answers = self.answers, []
        return answers
