"""How the routers of one deployment share their loads and the prompts that they sent.

`classes.FleetExchangeActor` makes `Exchange` an actor of each deployment, which each router calls a few times
a second.  A router's loads replace its earlier ones, so a lost call or a new actor needs no repair.
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

from peek.adapters.ray_serve.decider import MOST_UNTOLD, Asked, Decider, Loads

logger = logging.getLogger("ray.serve.peek")

EXCHANGE_S: Final = 0.25  # seconds between two calls of a router that has requests under way
IDLE_S: Final = 1.0  # seconds between two calls of an idle router, and those after which a call has failed
LEASE_S: Final = 3.0  # seconds without a call after which a router's loads are forgotten
LONGEST_PAUSE_S: Final = 5.0  # between two attempts to reach the exchange; the pause doubles up to this
PROMPT_BYTES: Final = 4 << 20  # bytes of prompts that the exchange remembers, for routers that are new
AT_ONCE: Final = 32  # prompts of others that a router notes before it lets its own requests run


class Exchange:
    """Keeps the latest loads of each router, and the newest prompts of all routers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: dict[str, tuple[float, Loads]] = {}
        self._sent: deque[tuple[str, Asked]] = deque()
        self._bytes = 0
        self._count = 0  # number of prompts received so far, including forgotten ones

    async def swap(
        self, router: str, loads: Loads, sent: list[Asked], heard: int
    ) -> tuple[list[Loads], list[Asked], int]:
        """Take a router's loads, and the requests that it `sent` since its last call.

        Returns the others' loads, their prompts since `heard` (0 at first), and the next `heard`.
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
        """Return the latest loads of each router, and the number of remembered prompts."""
        routers = {name: each for name, (_, each) in self._loads.items()}
        return {"routers": routers, "prompts": len(self._sent)}


class ExchangeClient:
    """One router's connection to the exchange.  `find`, called in a thread, returns the exchange or None."""

    def __init__(self, decider: Decider, find: Callable[[], Any]) -> None:
        self.routers = 1  # number of routers that this one knows of, itself included
        self.failures = 0  # number of times that the exchange could not be reached
        self._decider = decider
        self._find = find
        self._told = False
        self._heard = 0
        self._untold: list[Asked] = []  # what this router has sent, until the exchange has answered
        self._wanted = asyncio.Event()
        self._task = in_no_context(self._keep())

    def want(self, wanted: bool) -> None:
        """Start or stop the calls; without a replica there is nothing to exchange."""
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
        self._untold = [*self._untold, *self._decider.take_sent()][-MOST_UNTOLD:]
        said = (self._decider.loads(), self._untold, self._heard)
        # Not `wait_for`: before Python 3.12 it can swallow this task's cancellation.
        answer = asyncio.ensure_future(exchange.swap.remote(self._decider.name, *said))
        try:
            await asyncio.wait([answer], timeout=IDLE_S)
            if not answer.done():
                raise ConnectionError(f"no answer within {IDLE_S:g} s")
            others, sent, self._heard = answer.result()
            self._untold = []
        finally:
            answer.cancel()
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
    """Approximate bytes of a remembered prompt."""
    return len(asked.key) + 200


def in_no_context(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task outside any request's context: Ray cancels a request's calls together with it."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, work)
