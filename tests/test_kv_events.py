"""KV events from decoded messages to the view, and over real ZMQ sockets that lose some of them.

The engines' own publishers are in tests/vllm and tests/sglang; here it is one whose losses can be chosen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.listening import matched
from support.waiting import PATIENCE_S, until

from peek.adapters.kv_events import END, FIELDS, EventReader, KvEvents, namespace_of
from peek.fleet import EventView
from peek.trie.keys import pack

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

PAIR = 2
"""Tokens of a block."""


def stored(hashes: list[int], parent: int | None, tokens: list[int], **more: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return {**event, "block_size": PAIR, "lora_id": None, "medium": "GPU", **more}


def removed(hashes: list[int], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def read(*events: Any) -> EventReader:
    reader = EventReader(EventView(1_000))
    reader.apply(events)
    return reader


# -- events ----------------------------------------------------------------------------------------------


def test_events_as_arrays_mean_the_same() -> None:
    events = [stored([1, 2], None, [5, 6, 7, 8]), removed([2]), stored([9], 1, [3, 3]), CLEARED]
    events += [stored([1], None, [5, 6], lora_name="l")]
    as_arrays = [
        [event["type"], *(event.get(field) for field in FIELDS[event["type"]])]  # type: ignore[index]
        for event in events
    ]
    for form in (events, as_arrays):
        view = read(*form[:3]).view
        assert (matched(view, [5, 6, 3, 3]), len(view)) == (4, 2)
        view = read(*form).view
        assert (matched(view, [5, 6]), matched(view, [5, 6], namespace_of("l", None))) == (0, 2)


def test_lora_and_salt_are_namespaces() -> None:
    vllm = stored([1, 2], None, [5, 6, 7, 8], lora_name="l", extra_keys=[["l", "salt"], ["l"]])
    sglang = stored([3], None, [5, 6], cache_salt="salt")
    reader = read(vllm, sglang, stored([4], 2, [9, 9], lora_name="l", extra_keys=[["l"]]))
    key = [5, 6, 7, 8, 9, 9]
    assert matched(reader.view, key, namespace_of("l", "salt")) == 6
    assert matched(reader.view, key, namespace_of(None, "salt")) == 2
    assert matched(reader.view, key, namespace_of("l", None)) == 0
    assert reader.faults == 0


@pytest.mark.parametrize(
    ("lora", "salt", "keys", "held"),
    [
        ("l", None, [["l"], [1234]], 2),  # only a key that begins with the adapter's name has it
        ("l", "l", [["l", "l"], ["l"]], 4),  # a salt named as the LoRA is a salt
        (None, None, [None, [["image", 3]]], 2),  # what follows an image is left out
        (None, None, [None, [b"embeddings"]], 2),
    ],
)
def test_what_else_a_block_hangs_on(lora: str | None, salt: str | None, keys: list[Any], held: int) -> None:
    event = stored([1, 2, 3], None, [5, 6, 7, 8, 9, 9], lora_name=lora, extra_keys=keys)
    reader = read(event if held < 4 else {**event, "block_hashes": [1, 2], "token_ids": [5, 6, 7, 8]})
    assert matched(reader.view, [5, 6, 7, 8, 9, 9], namespace_of(lora, salt)) == held
    assert (reader.faults, len(reader.view)) == (0, held // 2)


@pytest.mark.parametrize("elsewhere", [{"medium": "CPU"}, {"medium": "DISK"}, {"locality": "REMOTE"}])
def test_other_memory_than_the_engines_own_does_not_count(elsewhere: dict[str, str]) -> None:
    reader = read(stored([1], None, [5, 6]), stored([2], 1, [7, 8], **elsewhere), removed([1], **elsewhere))
    assert matched(reader.view, [5, 6, 7, 8]) == 2


def test_of_several_kinds_of_caches_the_first_with_full_attention_counts() -> None:
    window = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    reader = read(stored([1], None, [5, 6], **window), stored([1], None, [5, 6], **full))
    reader.apply([removed([1], group_idx=0), stored([1], None, [5, 6], **{**full, "group_idx": 2})])
    assert matched(reader.view, [5, 6]) == 2
    reader.apply([removed([1], group_idx=1)])
    assert matched(reader.view, [5, 6]) == 0


def test_what_cannot_be_read_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    good = stored([1], None, [5, 6])
    bad: list[Any] = [
        {"type": "BlockMoved"},
        {},
        7,
        ["BlockStored"],
        stored([2], None, [1]),
        stored([[3]], None, [1, 2]),  # type: ignore[list-item]
        stored([3], "parent", [1, 2]),  # type: ignore[arg-type]
        stored([4], None, [(1, 2), (2, 3)]),  # type: ignore[list-item]
        removed([None]),  # type: ignore[list-item]
    ]
    with caplog.at_level(logging.ERROR):
        reader = read(*bad, good, *bad)
    reader.view.check()
    assert (reader.faults, len(reader.view), len(caplog.records)) == (2 * len(bad), 1, 1)


def test_a_host_may_number_pages_of_tokens() -> None:
    pages: dict[tuple[int, ...], int] = {}

    def symbols(tokens: list[int]) -> bytes:
        pairs = zip(tokens[::2], tokens[1::2], strict=True)
        return pack([pages.setdefault(pair, len(pages)) for pair in pairs])

    reader = EventReader(EventView(100, unit_tokens=2), symbols)
    reader.apply([stored([1, 2], None, [5, 6, 7, 8]), stored([3], 1, [5, 6])])
    assert matched(reader.view, [pages[5, 6], pages[5, 6]]) == 2
    assert matched(reader.view, [pages[5, 6], pages[7, 8], pages[5, 6]]) == 2


# -- sockets ---------------------------------------------------------------------------------------------


class Publisher:
    """Publishes and replays as engines do; `publish` can lose what it sends."""

    def __init__(self, remembered: int = 1_000, topic: bool = True) -> None:
        self.out = zmq.Context.instance().socket(zmq.XPUB)
        self.replay = zmq.Context.instance().socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self.out.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self.replay.bind_to_random_port('tcp://127.0.0.1')}"
        self.number = 0
        self.time = 0.0
        self.sent: list[tuple[int, bytes]] = []
        self._remembered = remembered
        self._topic = [b""] if topic else []

    def publish(self, *events: dict[str, Any], lose: bool = False) -> None:
        self.time += 1.0
        payload = msgspec.msgpack.encode([self.time, events, 0])
        self.sent = [*self.sent, (self.number, payload)][-self._remembered :]
        if not lose:
            self.out.send_multipart([b"", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def start_anew(self) -> None:
        self.number = 0
        self.sent = []

    def answer(self) -> None:
        """Replay to the listeners that have asked."""
        while self.replay.poll(0):
            client, empty, start = self.replay.recv_multipart()
            for number, payload in self.sent:
                if number >= int.from_bytes(start, "big"):
                    frames = [*self._topic, number.to_bytes(8, "big"), payload]
                    self.replay.send_multipart([client, empty, *frames])
            self.replay.send_multipart([client, empty, *self._topic, END, b""])

    def close(self) -> None:
        self.out.close(linger=0)
        self.replay.close(linger=0)


class Line:
    """A publisher and a listener that is known to hear it."""

    def __init__(self, replay: bool = True, **more: Any) -> None:
        self.now = 0.0
        self.publisher = Publisher(**more)
        self.replays = replay
        self.view = EventView(1_000)
        self.events = KvEvents(
            self.publisher.endpoint,
            self.view,
            replay_endpoint=self.publisher.replay_endpoint if replay else None,
            clock=lambda: self.now,
        )
        assert self.publisher.out.poll(1000 * PATIENCE_S), "no listener subscribes"
        self.publisher.out.recv()

    def settle(self) -> None:
        """Until the last batch that was not lost is there."""

        def settled() -> bool:
            self.publisher.answer()
            while self.events.poll():
                self.publisher.answer()
            return self.events._replay is None and self.events.next_batch >= self.publisher.number

        until(settled, "the last batch")

    def close(self) -> None:
        self.events.close()
        self.publisher.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def numbered(number: int) -> dict[str, Any]:
    return stored([number], None, [number, number])


def known(view: EventView, count: int) -> list[int]:
    return [number for number in range(count) if matched(view, [number, number]) == 2]


@given(
    lost=st.lists(st.booleans(), max_size=12),
    replay=st.booleans(),
    remembered=st.integers(1, 15),
    topic=st.booleans(),
    polls=st.lists(st.booleans(), min_size=13, max_size=13),
)
def test_what_is_lost_is_asked_for_as_long_as_it_is_remembered(
    lost: list[bool], replay: bool, remembered: int, topic: bool, polls: list[bool]
) -> None:
    line = Line(replay, remembered=remembered, topic=topic)
    try:
        for number, lose in enumerate([*lost, False]):
            line.publisher.publish(numbered(number), lose=lose)
            if polls[number]:
                line.events.poll()
                line.publisher.answer()
        line.settle()
        count = len(lost) + 1
        held = known(line.view, count)
        assert line.events.lost == count - len(held)
        assert line.events.batches == len(held)
        if not replay:
            assert held == [number for number, lose in enumerate([*lost, False]) if not lose]
        elif remembered >= count:
            assert held == list(range(count))
        else:
            assert held[-remembered:] == list(range(count))[-remembered:]
    finally:
        line.close()


def test_a_late_listener_is_told_what_was_before() -> None:
    publisher = Publisher()
    publisher.publish(numbered(0))
    publisher.publish(numbered(1))
    view = EventView(100)
    events = KvEvents(publisher.endpoint, view, replay_endpoint=publisher.replay_endpoint, clock=lambda: 0.0)

    def answered() -> int:
        publisher.answer()
        return events.poll()

    until(answered, "what was before")
    until(lambda: (events.poll(), events._replay is None)[1], "the end of it")
    assert (known(view, 2), events.lost) == ([0, 1], 0)
    events.close()
    publisher.close()


def test_what_came_meanwhile_may_be_older_than_what_the_engine_remembers() -> None:
    line = Line(remembered=2)
    line.publisher.publish(numbered(0), lose=True)
    for number in range(1, 6):
        line.publisher.publish(numbered(number))
    until(lambda: (line.events.poll(), len(line.events._held) == 5)[1], "five batches while it asks")
    line.settle()
    assert (known(line.view, 6), line.events.lost) == ([1, 2, 3, 4, 5], 1)
    line.close()


def test_an_engine_that_was_started_anew_has_an_empty_cache(line: Line) -> None:
    for number in range(4):
        line.publisher.publish(numbered(number))
    line.settle()
    line.publisher.start_anew()
    line.publisher.publish(numbered(7), lose=True)
    line.publisher.publish(numbered(8))
    line.events.next_batch = 4
    until(lambda: (line.events.poll(), line.events.restarts)[1], "the restart")
    line.settle()
    assert known(line.view, 10) == [7, 8]
    assert (line.events.lost, line.events.restarts) == (0, 1)


def test_a_listener_without_an_answer_goes_on_without(line: Line) -> None:
    line.publisher.publish(numbered(0), lose=True)
    line.publisher.publish(numbered(1))
    until(lambda: (line.events.poll(), line.events._held)[1], "a batch behind one that is missing")
    assert known(line.view, 2) == []
    line.now = 5.5
    line.events.poll()
    assert known(line.view, 2) == [1]
    assert line.events.lost == 1


def test_the_end_of_a_replay_is_numbered_as_the_engines_do() -> None:
    """`END_SEQ` of vLLM's and of SGLang's publisher."""
    assert END == b"\xff" * 8


@pytest.mark.parametrize("package", ["msgspec", "zmq"])
def test_what_an_event_socket_lacks_is_said(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"needs msgspec and pyzmq: pip install 'peek-kv\[fleet\]'"):
        KvEvents("tcp://127.0.0.1:1", EventView(10))


@pytest.mark.parametrize(("endpoint", "replay"), [("nowhere", None), ("tcp://127.0.0.1:1", "nowhere")])
def test_an_endpoint_that_is_none_is_said_and_leaves_no_socket(endpoint: str, replay: str | None) -> None:
    with pytest.raises(zmq.ZMQError) as said:
        KvEvents(endpoint, EventView(10), replay_endpoint=replay)
    events = said.traceback[1].frame.f_locals["self"]
    assert events._socket.closed
    assert events._replay is None


def payload(time_s: object, events: object = ()) -> bytes:
    encoded: bytes = msgspec.msgpack.encode([time_s, events, 0])
    return encoded


SECOND = (1).to_bytes(8, "big")
NOT_BATCHES = [
    [b"x"],
    [b"", b"", b"\xc1"],
    [b"", b"\0" * 8, b"\x01"],
    [b"", b"1", b"\x91\x01"],
    [b"", b"", payload(9.0)],
    [b"", b"\0" * 7, payload(9.0)],
    [b"", b"\0" * 9, payload(9.0)],
    [b"", END, payload(9.0)],
    *[[b"", b"\0" * 8, payload(time_s)] for time_s in (nan, inf, -inf, "9", None)],
    [b"", SECOND, payload(nan)],
    [b"", b"\0" * 8, payload(9.0, 7)],
]


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("frames", NOT_BATCHES)
def test_messages_that_are_no_batches_are_left_out(frames: list[bytes], replays: bool) -> None:
    line = Line(replays)
    line.publisher.publish(numbered(0))
    line.publisher.out.send_multipart(frames)
    line.publisher.publish(numbered(1))
    line.settle()
    assert (known(line.view, 2), line.events.reader.faults, line.events.lost) == ([0, 1], 1, 0)
    assert line.events.restarts == 0
    line.close()
