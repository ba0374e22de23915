"""The KV events that vLLM and SGLang publish, read into an `EventView`.  Needs `pyzmq` and `msgspec`.

An engine that is told to (`--kv-events-config`) publishes over ZMQ which blocks it stores and lets go of, in
numbered batches.  `KvEvents` listens to one of them (one data-parallel rank: each has a socket of its own)::

    view = EventView(capacity=400_000)
    events = KvEvents("tcp://host:5557", view, replay_endpoint="tcp://host:5558")
    fleet.join("gpu0", view=view)
    ...
    events.poll()  # before `dispatch`, or some times a second

There is no thread: `poll` takes what has come and returns.  In asyncio a task calls it and sleeps between.

Batches that were lost are asked for again where the engine has a replay socket and still remembers them; one
is also asked for what was before the first.  Otherwise the view goes on without them: it may then lack blocks
that are there, until they are stored anew, and have some that are gone, which are stored anew once a request
was sent there for them.  Emptying it would forget what is used most and hence never stored again.
A number that goes back, in a later batch, is an engine that was started anew: the view is emptied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from peek.adapters.kv_reader import EventReader
from peek.adapters.sglang.symbols import namespace_of
from peek.fleet import EventView

__all__ = ["EventReader", "KvEvents", "namespace_of"]

END: Final = (-1).to_bytes(8, "big", signed=True)
"""The number of the message behind the last replayed batch."""

REPLAY_S: Final = 5.0
"""How long an engine may take to answer; it does so between two batches."""


class KvEvents:
    """One engine's event socket.  For one thread at a time.

    Args:
        endpoint: where the engine publishes, as ZMQ is to connect to it.
        view, symbols, namespace: see `EventReader`.
        replay_endpoint: where it replays, if it does.
        topic: the engine's.
        most_held: batches that are kept while a replay is under way.
        clock: seconds.

    Attributes:
        reader: what applies the events.
        batches: applied so far.
        next_batch: the number of the next one.
        lost: batches that never came, those before the first one included.
        restarts: times the engine was found to be started anew.
    """

    def __init__(
        self,
        endpoint: str,
        view: EventView,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        symbols: Callable[[list[int]], bytes] | None = None,
        namespace: Callable[[str | None, str | None], str] = namespace_of,
        most_held: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import msgspec
        import zmq

        self.reader = EventReader(view, symbols, namespace)
        self.batches = 0
        self.lost = 0
        self.restarts = 0
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
        self._zmq: Any = zmq
        self._again: Any = zmq.Again
        self._replay_endpoint = replay_endpoint
        self._most_held = most_held
        self._clock = clock
        self.next_batch = 0
        self._last_s = 0.0
        """The engine's time of the last batch applied."""
        self._held: deque[tuple[int, tuple[float, list[Any]]]] = deque()
        self._replay: Any = None
        self._replay_ends = 0.0
        self._asked = 0
        """The first batch that is asked for."""
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.set_hwm(100_000)  # as many as the engines keep for one who is slow
        self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._socket.close()
            raise
        if replay_endpoint is not None:
            self._ask_again()

    def poll(self, most: int = 1_000) -> int:
        """Take what has come, up to `most` messages, and return at once: how many batches were applied."""
        before = self.batches
        for _ in range(most):
            frames = self._receive(self._socket)
            if frames is not None:
                self._published(frames)
                continue
            if self._replay is None:
                break
            frames = self._receive(self._replay)
            if frames is not None:
                self._replayed(frames)
            elif self._clock() > self._replay_ends:
                self._end_replay()
            else:
                break
        return self.batches - before

    def close(self) -> None:
        """Listen no more; the view stays as it is."""
        self._held.clear()
        self._end_replay()
        self._socket.close()

    def _receive(self, socket: Any) -> list[bytes] | None:
        try:
            frames: list[bytes] = socket.recv_multipart(self._zmq.NOBLOCK)
        except self._again:
            return None
        return frames

    # -- batches -------------------------------------------------------------------------------------

    def _published(self, frames: list[bytes]) -> None:
        """A batch has come by the event socket: a topic, a number, a batch."""
        try:
            number, batch = self._read(frames)
        except Exception:
            self.reader.leave_out()
            return
        if number < self.next_batch:
            if batch[0] <= self._last_s:
                return  # was replayed already
            self.restarts += 1
            self.reader.view.clear()
            self.next_batch = 0
            self._held.clear()
            self._end_replay()
        if len(self._held) < self._most_held:
            self._held.append((number, batch))
        if self._replay is None:
            self._go_on()

    def _read(self, frames: list[bytes]) -> tuple[int, tuple[float, list[Any]]]:
        """The number of a batch, and the engine's time of it with its events."""
        published_s, events, *_ = self._decode(frames[-1])
        return int.from_bytes(frames[-2], "big"), (float(published_s), list(events))

    def _go_on(self) -> None:
        """Take what is held, up to where a batch is missing that can be asked for."""
        while self._held:
            if self._held[0][0] > self.next_batch and self._replay_endpoint is not None:
                self._ask_again()
                return
            self._take(*self._held.popleft())

    def _take(self, number: int, batch: tuple[float, list[Any]]) -> None:
        """The next batch, or a later one if those between are lost."""
        if number < self.next_batch:
            return
        self.lost += number - self.next_batch
        self.next_batch = number + 1
        self._last_s = batch[0]
        self.batches += 1
        self.reader.apply(batch[1])

    # -- replay --------------------------------------------------------------------------------------

    def _ask_again(self) -> None:
        """Ask for all batches from the next one on."""
        self._replay = self._zmq.Context.instance().socket(self._zmq.DEALER)
        self._replay.setsockopt(self._zmq.LINGER, 0)  # nobody may be there to ask
        self._replay.set_hwm(0)  # the answer is as long as what the engine remembers
        self._replay.connect(self._replay_endpoint)
        self._replay.send_multipart((b"", self.next_batch.to_bytes(8, "big")))
        self._asked = self.next_batch
        self._replay_ends = self._clock() + REPLAY_S

    def _replayed(self, frames: list[bytes]) -> None:
        """An answer: an empty frame, a topic in newer versions, a number, a batch."""
        if frames[-2:-1] == [END]:
            self._end_replay()
            return
        try:
            number, batch = self._read(frames)
        except Exception:
            self.reader.leave_out()
            return
        while self._held and self._held[0][0] < number:  # the engine has forgotten what we have
            self._take(*self._held.popleft())
        self._take(number, batch)
        self._replay_ends = self._clock() + REPLAY_S

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        if self._held and self.next_batch == self._asked:  # it is not to be had
            self._take(*self._held.popleft())
        self._go_on()
