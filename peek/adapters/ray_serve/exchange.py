"""What the routers of one deployment tell each other: what each has at the replicas, what prompts it sent.

`classes.FleetExchangeActor` makes an actor of `Exchange`, one for a deployment.  Each router calls it a few
times a second, off the path of its requests.  What it says replaces what it said before, so nothing has to be
made up for when a call is lost, or the actor is a new one.  A router that gets no answer goes on alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final

from peek.adapters.ray_serve.decider import Asked, Decider, Loads

logger = logging.getLogger("ray.serve.peek")

EXCHANGE_S: Final = 0.25
"""How old what a router knows of the others may be, while it has requests under way."""

IDLE_S: Final = 1.0
"""The same while it has none; without an answer for that long it forgets their loads."""

LEASE_S: Final = 3.0
"""A router that has not called for that long has died, or has nothing any more."""

LONGEST_PAUSE_S: Final = 5.0
"""Between two tries to reach the exchange; the pauses double up to this."""

PROMPT_BYTES: Final = 4 << 20
"""Prompts that the exchange remembers: the first that a new router hears."""

AT_ONCE: Final = 32
"""Prompts that a router takes in before it lets its own requests through."""


class Exchange:
    """Of each router the loads it told last, and the newest prompts of all.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: dict[str, tuple[float, Loads]] = {}
        self._sent: deque[tuple[str, Asked]] = deque()
        self._bytes = 0
        self._count = 0
        """Prompts that were ever told."""

    async def swap(
        self, router: str, loads: Loads, sent: list[Asked], heard: int
    ) -> tuple[list[Loads], list[Asked], int]:
        """A router says what it has now, and what it sent since its last call.

        Args:
            router: its name.
            loads: of its own requests under way.
            sent: its requests since then.
            heard: what the last call returned, 0 before.

        Returns:
            The loads of the others, what they sent meanwhile as far as it is remembered, and `heard`.
        """
        now = self._clock()
        self._loads[router] = (now, loads)
        self._loads = {name: each for name, each in self._loads.items() if now - each[0] <= LEASE_S}
        forgotten = self._count - len(self._sent)
        start = heard - forgotten if forgotten <= heard <= self._count else 0
        news = [asked for name, asked in islice(self._sent, start, None) if name != router]
        for asked in sent:
            self._sent.append((router, asked))
            self._bytes += _size(asked)
        self._count += len(sent)
        while self._bytes > PROMPT_BYTES:
            self._bytes -= _size(self._sent.popleft()[1])
        return [each for name, (_, each) in self._loads.items() if name != router], news, self._count

    async def status(self) -> dict[str, Any]:
        """What each router told last, and how many prompts are remembered."""
        return {
            "routers": {name: each for name, (_, each) in self._loads.items()},
            "prompts": len(self._sent),
        }


class ExchangeClient:
    """One router's calls of the exchange.  All of it runs in the router's event loop.

    Args:
        decider: knows what is new, and is told what others say.
        find: the exchange as it is now, or None; may block, is called in a thread.
    """

    def __init__(self, decider: Decider, find: Callable[[], Any]) -> None:
        self.routers = 1
        """Those that this one hears of, itself included."""
        self.failures = 0
        """Times that the exchange could not be reached."""
        self._decider = decider
        self._find = find
        self._told = False
        self._heard = 0
        self._wanted = asyncio.Event()
        self._task = in_no_context(self._keep())

    def want(self, wanted: bool) -> None:
        """Whether there is a replica to route to: without one there is nothing to exchange."""
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    async def _keep(self) -> None:
        pause_s = 0.0
        while True:
            await asyncio.sleep(pause_s)
            await self._wanted.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s + 0.1)
            try:
                exchange = await asyncio.get_running_loop().run_in_executor(None, self._find)
                if exchange is None:
                    raise ConnectionError("there is none")
                while self._wanted.is_set():
                    await self._swap_with(exchange)
                    pause_s = 0.0
            except Exception as error:
                self.failures += 1
                if not self._told:
                    self._told = True
                    why = str(error).partition("\n")[0]
                    logger.warning("a router goes on alone: %s, %s", type(error).__name__, why)
            self.routers = 1
            self._decider.set_others([])

    async def _swap_with(self, exchange: Any) -> None:
        said = (self._decider.loads(), self._decider.take_sent(), self._heard)
        call = exchange.swap.remote(self._decider.name, *said)
        try:
            others, sent, self._heard = await asyncio.wait_for(call, IDLE_S)
        except asyncio.TimeoutError:
            raise ConnectionError(f"no answer within {IDLE_S:g} s") from None
        if self._told:
            self._told = False
            logger.info("a router hears of the others again")
        self.routers = 1 + len(others)
        self._decider.set_others(others)
        for place, asked in enumerate(sent):
            self._decider.hear(asked)
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        await asyncio.sleep(EXCHANGE_S if said[0] or said[1] else IDLE_S)


def _size(asked: Asked) -> int:
    """Bytes, about."""
    return len(asked.key) + 200


def in_no_context(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that belongs to no request: with a request Ray cancels the calls made in its context."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, work)
