"""How a router talks to the queue: in batches out, and by one standing call in.

While one `tell` is on its way, further news is collected for the next one.  Its reply says where those go
that need not wait; that of a `poll` brings the others.  The end of a request is told with the next arrival,
if one comes soon.  So a request costs a call or two in quiet times, and a fraction of one under load.
Whatever goes wrong with a call, the client disconnects: all requests that wait go by Ray's own rule, and the
client connects again to whichever queue is there.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

logger = logging.getLogger("ray.serve.peek")

STOCK: Final = ""
"""An answer of the queue: go by Ray's own rule."""

FULL: Final = "full"
"""An answer of the queue: too many wait.  No replica has this name, theirs are longer."""

FIRST_TRY_S: Final = 0.3
"""How long the first requests wait for the connection; then they go by Ray's own rule until there is one."""

ANSWER_S: Final = 1.0
"""A queue that has not answered a call for that long hangs."""

HELD_S: Final = 2.0
"""A `poll` is answered after that long at the latest."""

LINGER_S: Final = 0.002
"""How long the end of a request waits for an arrival to be told with, unless others of its router wait."""

LONGEST_PAUSE_S: Final = 5.0
"""Between two tries to connect; the pauses double up to this."""


class Arrival(NamedTuple):
    """What the queue is told of a request.

    Attributes:
        serial: its number at this client.
        key: packed symbols of the prompt.
        num_tokens: length of the prompt.
        namespace: what keeps it from sharing.
        decode_tokens: that its answer is expected to have.
        age_s: seconds since it came.
        session: the conversation that it is a turn of, "" where nobody says.
    """

    serial: int
    key: bytes
    num_tokens: int
    namespace: str
    decode_tokens: int
    age_s: float
    session: str = ""


class News(NamedTuple):
    """What a router tells the queue, in the order in which the queue is to read it.

    Attributes:
        ended: serials, and whether the prompt was computed; one that waits is given up.
        lost: replicas that are dead.
        full: replicas that refused a request.
        arrivals: new requests.
    """

    ended: list[tuple[int, bool]]
    lost: list[str]
    full: list[str]
    arrivals: list[Arrival]


class QueueClient:
    """One router's client of the queue.  All of it runs in the router's event loop.

    Args:
        find: the queue as it is now, or None; may block, is called in a thread.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self.name = uuid.uuid4().hex
        self.connected = False
        self.fallbacks = 0
        """Times that a request went by Ray's own rule."""
        self._find = find
        self._told = False
        self._serial = 0
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._news = News([], [], [], [])
        self._something_to_say = asyncio.Event()
        self._tried = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task = in_no_context(self._keep())

    @property
    def active(self) -> bool:
        """Whether the queue decides, or would: without a replica there is nothing to decide."""
        return self.connected or not self._wanted.is_set()

    def want(self, wanted: bool) -> None:
        """Whether there is a replica to route to: without one a lost connection is left alone.

        When replicas come back after there was none, the first requests wait for the connection once more.
        """
        if wanted and not self._wanted.is_set() and not self.connected:
            self._tried.clear()
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    async def acquire(self, arrival: Arrival) -> tuple[int, str]:
        """Wait in the queue.

        Returns:
            The serial to `end` the request with, and a replica's name, `STOCK` or `FULL`.
        """
        if not self._tried.is_set():
            try:
                await asyncio.wait_for(self._tried.wait(), FIRST_TRY_S)
            except asyncio.TimeoutError:
                self._tried.set()
        self._serial += 1
        serial = self._serial
        answer = await self._answer(arrival._replace(serial=serial)) if self.connected else STOCK
        if answer == STOCK:
            self.fallbacks += 1
        return serial, answer

    async def _answer(self, arrival: Arrival) -> str:
        """Tell of a request, and wait until the queue says what becomes of it."""
        serial = arrival.serial
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[serial] = future
        self._news.arrivals.append(arrival)
        self._something_to_say.set()
        try:
            return await future
        except asyncio.CancelledError:
            self.end(serial, False)
            raise
        finally:
            self._waiting.pop(serial, None)

    def end(self, serial: int, computed: bool) -> None:
        """A request has ended, or is given up."""
        self._say(self._news.ended, (serial, computed), 0.0 if self._waiting else LINGER_S)

    def lost(self, replica: str) -> None:
        """A replica is dead."""
        self._say(self._news.lost, replica)

    def full(self, replica: str) -> None:
        """A replica refused a request that the queue sent to it."""
        self._say(self._news.full, replica)

    def _say(self, words: list[Any], word: Any, soon_s: float = 0.0) -> None:
        if not self.connected:
            return
        words.append(word)
        if soon_s:
            asyncio.get_running_loop().call_later(soon_s, self._something_to_say.set)
        else:
            self._something_to_say.set()

    # -- the connection --------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Connect, and connect again whenever the connection is lost, as long as it is wanted."""
        pause_s = 0.0
        while True:
            await asyncio.sleep(pause_s)
            if not self._wanted.is_set():
                await self._wanted.wait()
                pause_s = 0.0
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s + 0.1)
            try:
                queue = await asyncio.get_running_loop().run_in_executor(None, self._find)
                if queue is not None:
                    await answered(queue.hello.remote(self.name))
                    self.connected, self._told, pause_s = True, False, 0.0
                    self._tried.set()
                    logger.info("peek's queue decides for this router from now on")
                    await self._talk_and_listen(queue)
                self._tell_once("there is none")
            except Exception as error:
                first_line = str(error).partition("\n")[0]
                self._tell_once(f"{type(error).__name__}, {first_line}")
            self._tried.set()
            self._disconnect()

    def _tell_once(self, why: str) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "peek's queue cannot be asked, Ray Serve's own rule decides until it can (%d wait): %s",
                len(self._waiting),
                why,
            )

    def _disconnect(self) -> None:
        self.connected = False
        self._news = News([], [], [], [])
        for future in self._waiting.values():
            if not future.done():
                future.set_result(STOCK)

    async def _talk_and_listen(self, queue: Any) -> None:
        tasks = [in_no_context(self._talk(queue)), in_no_context(self._listen(queue))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _talk(self, queue: Any) -> None:
        while True:
            await self._something_to_say.wait()
            self._something_to_say.clear()
            news, self._news = self._news, News([], [], [], [])
            if any(news):
                self._settle(await answered(queue.tell.remote(self.name, news)))

    async def _listen(self, queue: Any) -> None:
        while True:
            self._settle(await answered(queue.poll.remote(self.name), HELD_S))

    def _settle(self, answers: list[tuple[int, str]] | None) -> None:
        if answers is None:
            raise ConnectionError("the queue does not know this router")
        for serial, answer in answers:
            future = self._waiting.get(serial)
            if future is not None and not future.done():
                future.set_result(answer)


async def answered(call: Any, held_s: float = 0.0) -> Any:
    """What a call of the queue returns; `ConnectionError` if it takes `ANSWER_S` longer than it may."""
    try:
        return await asyncio.wait_for(call, held_s + ANSWER_S)
    except asyncio.TimeoutError:
        raise ConnectionError(f"no answer within {held_s + ANSWER_S:g} s") from None


def in_no_context(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that belongs to no request: with a request Ray cancels the calls made in its context."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, work)
