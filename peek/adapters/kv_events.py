"""Reads the KV events that vLLM and SGLang publish into an `EventView`.  Needs `pyzmq` and `msgspec`.

With `--kv-events-config` an engine publishes over ZMQ which blocks it stores and removes, in numbered
batches.  A `KvEvents` listens to one socket; each data-parallel rank has its own::

    view = EventView(capacity=400_000)
    events = KvEvents("tcp://host:5557", view, replay_endpoint="tcp://host:5558")
    fleet.join("gpu0", view=view)
    ...
    events.poll()  # before `dispatch`, or some times a second

There is no thread: `poll` takes what has come and returns.  In asyncio a task calls it and sleeps in between.

Lost batches, and those before the first one received, are asked for again if the engine has a replay socket
and remembers them.  Otherwise the view goes on without them.  It may then lack blocks until they are stored
again, and show removed blocks until a request for them has been sent there.  It is not emptied, because that
would lose the most used blocks, which are never stored again.  A later batch with a lower number means that
the engine has restarted; then the view is emptied.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from struct import Struct
from typing import Any, Final

from peek.adapters.symbols import namespace_of
from peek.errors import needs
from peek.fleet import EventView
from peek.trie.keys import pack

__all__ = ["EventReader", "KvEvents", "namespace_of"]

BATCH_NUMBER: Final = Struct(">q")
"""How engines write the number of a batch."""

END: Final = BATCH_NUMBER.pack(-1)
"""Number of the message after the last replayed batch."""

REPLAY_S: Final = 5.0
"""Seconds to wait for the next replayed batch; an engine replays between publishing two batches."""


class KvEvents:
    """One engine's event socket.  Use it from one thread at a time.

    Args:
        endpoint: ZMQ address at which the engine publishes, under `topic`.
        view, symbols, namespace: see `EventReader`.
        replay_endpoint: ZMQ address at which it replays, None if it does not.
        most_held: batches kept while a replay is under way; more are dropped.

    Attributes:
        reader: applies the events.
        batches: number of batches applied.
        next_batch: number of the next batch.
        lost: batches that never came, including those before the first one.
        restarts: restarts of the engine that were noticed.
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
        try:
            import msgspec
            import zmq
        except ImportError:
            raise needs("msgspec and pyzmq", "KvEvents", "fleet") from None
        self.reader = EventReader(view, symbols, namespace)
        self.batches = self.lost = self.restarts = 0
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
        self._zmq: Any = zmq
        self._again: Any = zmq.Again
        self._replay_endpoint = replay_endpoint
        self._most_held = most_held
        self._clock = clock
        self.next_batch = 0
        self._last_s = 0.0
        """The engine's time stamp of the last batch applied, seconds."""
        self._held: deque[tuple[int, tuple[float, list[Any]]]] = deque()
        self._replay: Any = None
        self._replay_ends = 0.0
        self._asked = 0
        """Number of the first batch of the last replay asked for."""
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.set_hwm(100_000)  # as many as the engines keep for a slow reader
        self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        try:
            self._socket.connect(endpoint)
            if replay_endpoint is not None:
                self._ask_again()
        except zmq.ZMQError:
            self.close()
            raise

    def poll(self, most: int = 1_000) -> int:
        """Take up to `most` messages without waiting for any; return the number of batches applied."""
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
        """Close the sockets; the view stays as it is."""
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
        """Take a message of the event socket: a topic, a number, a batch."""
        try:
            number, batch = self._read(frames)
        except Exception:
            self.reader.leave_out()
            return
        if number < self.next_batch:
            if batch[0] <= self._last_s:
                return  # already replayed
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
        """Return a batch's number, and its time stamp with its events; raises if it is malformed.

        Both are checked well, because they tell a restart of the engine, which empties the view.
        """
        (number,) = BATCH_NUMBER.unpack(frames[-2])
        published_s, events, *_ = self._decode(frames[-1])
        if number < 0 or type(published_s) not in (int, float) or not isfinite(published_s):
            raise ValueError(f"batch {number} at {published_s!r} s")
        return number, (float(published_s), list(events))

    def _go_on(self) -> None:
        """Apply the held batches, up to the first gap that a replay may fill."""
        while self._held:
            if self._held[0][0] > self.next_batch and self._replay_endpoint is not None:
                self._ask_again()
                return
            self._take(*self._held.popleft())

    def _take(self, number: int, batch: tuple[float, list[Any]]) -> None:
        """Apply the next batch, or a later one if the batches between them are lost."""
        if number < self.next_batch:
            return
        self.lost += number - self.next_batch
        self.next_batch = number + 1
        self._last_s = batch[0]
        self.batches += 1
        self.reader.apply(batch[1])

    # -- replay --------------------------------------------------------------------------------------

    def _ask_again(self) -> None:
        """Ask for a replay of all batches from the next one on."""
        self._replay = self._zmq.Context.instance().socket(self._zmq.DEALER)
        self._replay.setsockopt(self._zmq.LINGER, 0)  # the engine may not answer
        self._replay.set_hwm(0)  # the answer has all batches that the engine remembers
        self._replay.connect(self._replay_endpoint)
        self._replay.send_multipart((b"", BATCH_NUMBER.pack(self.next_batch)))
        self._asked = self.next_batch
        self._replay_ends = self._clock() + REPLAY_S

    def _replayed(self, frames: list[bytes]) -> None:
        """Take a message of the replay socket: an empty frame, in newer versions a topic, number, batch."""
        if frames[-2:-1] == [END]:
            self._end_replay()
            return
        try:
            number, batch = self._read(frames)
        except Exception:
            self.reader.leave_out()
            return
        while self._held and self._held[0][0] < number:  # the engine no longer remembers these
            self._take(*self._held.popleft())
        self._take(number, batch)
        self._replay_ends = self._clock() + REPLAY_S

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        if self._held and self.next_batch == self._asked:  # the engine did not replay it
            self._take(*self._held.popleft())
        self._go_on()


# -- the events ---------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

FIELDS: Final = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""Fields of events that are published as arrays (vLLM before 0.24, SGLang before 0.5.23), in order."""

WHOLE_PROMPT: Final = (None, "full_attention", "mla_attention")
"""Kinds of KV groups in which a block can be used only with all blocks before it."""


class EventReader:
    """Applies one engine's events to a view; no I/O.

    Only the engine's own memory counts: medium `GPU`, which vLLM also reports on a CPU.  In a model with
    several KV groups, the first one with full attention counts, so a hit may be shorter than the view says.
    Blocks after images or embeddings are left out, because the tokens do not show that content.

    Args:
        view: the view to keep current.
        symbols: returns packed symbols for the tokens of some whole blocks, independent of what precedes
            them. None makes each token a symbol, for a fleet whose `unit_tokens` is 1.
        namespace: returns `PendingRequest.namespace` for a LoRA name and a cache salt; either may be None.

    Attributes:
        faults: unreadable events, which were left out; the first is logged.
    """

    def __init__(
        self,
        view: EventView,
        symbols: Callable[[list[int]], bytes] | None = None,
        namespace: Callable[[str | None, str | None], str] = namespace_of,
    ) -> None:
        self.view = view
        self.faults = 0
        self._symbols: Callable[[list[int]], bytes] = pack if symbols is None else symbols
        self._namespace = namespace
        self._group: int | None = None
        """Number of the KV group that counts; None until it is known."""

    def apply(self, events: Sequence[Any]) -> None:
        """Apply events in their order, as decoded from msgpack; an unreadable one is left out."""
        for event in events:
            try:
                self._apply(event)
            except Exception:
                self.leave_out()

    def leave_out(self) -> None:
        """Count an unreadable event; call it in an `except` block."""
        self.faults += 1
        if self.faults == 1:
            logger.exception("a KV event could not be read; it and others like it are left out")

    def _apply(self, event: Any) -> None:
        if not isinstance(event, dict):  # an array
            event = {"type": event[0], **dict(zip(FIELDS[event[0]], event[1:], strict=False))}
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.view.clear()
        elif event.get("medium") not in (None, "GPU") or event.get("locality") not in (None, "LOCAL"):
            return
        elif kind == "BlockStored":
            if self._counts(event):
                self._stored(event)
        elif kind == "BlockRemoved":
            if event.get("group_idx") in (None, self._group):
                self.view.removed(_hashes(event["block_hashes"]))
        else:
            raise ValueError(f"event of type {kind!r}")

    def _counts(self, event: Mapping[str, Any]) -> bool:
        group = event.get("group_idx")
        if group is None:
            return True
        if self._group is None and event.get("kv_cache_spec_kind") in WHOLE_PROMPT:
            self._group = group
        return bool(group == self._group)

    def _stored(self, event: Mapping[str, Any]) -> None:
        hashes = _hashes(event["block_hashes"])
        parent = event["parent_block_hash"]
        _hashes([] if parent is None else [parent])
        size, tokens, lora = event["block_size"], event["token_ids"], event.get("lora_name")
        salt = event.get("cache_salt")
        if len(tokens) != len(hashes) * size:
            raise ValueError(f"{len(tokens)} tokens in {len(hashes)} blocks of {size}")
        for number, keys in enumerate(event.get("extra_keys") or ()):
            other = list(keys or ())
            if lora is not None and other[:1] == [lora]:
                del other[0]
            if number == 0 and parent is None and len(other) == 1 and isinstance(other[0], str):
                salt = other[0]
            elif other:
                hashes, tokens = hashes[:number], tokens[: number * size]
                break
        if hashes:
            self.view.stored(hashes, parent, self._symbols(tokens), self._namespace(lora, salt))


def _hashes(hashes: Any) -> list[object]:
    """Return block hashes as a list; `TypeError` if one is neither an int nor bytes."""
    for each in hashes:
        if type(each) not in (int, bytes):
            raise TypeError(f"block hash {each!r}")
    return list(hashes)
