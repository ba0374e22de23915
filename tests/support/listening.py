"""Listens to a real publisher of KV events, and compares its events with the engine's cache."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from peek.adapters.kv_events import KvEvents, namespace_of
from peek.fleet import EventView
from peek.trie.keys import pack
from support.stepping import expected_tokens
from support.waiting import until


def matched(view: Any, key: Sequence[int], namespace: str = "") -> int:
    """Symbols of a prompt that a view says are cached."""
    held: int = view.advance(view.root(namespace), memoryview(pack(list(key))).cast("i"), 0)[0]
    return held


def settle(events: KvEvents, published: Callable[[], int]) -> None:
    """Until all batches are there that were published so far.

    Args:
        published: the number of the last one, -1 before the first.
    """
    until(lambda: events.next_batch > published() or (events.poll(), False)[1], f"batch {published()}")


def listen_until_quiet(events: KvEvents, quiet_s: float = 0.5) -> None:
    """Until nothing has come for a while, from a process that cannot be asked for its last batch."""
    heard = time.monotonic()
    while time.monotonic() < heard + quiet_s:
        if events.poll():
            heard = time.monotonic()
        time.sleep(0.01)


_names = count()


class Listener:
    """Follows an engine's own publisher in a play, and compares what it tells with the cache.

    Attributes:
        config: what the engine is told of its publisher.
        seen: prompts of which something was cached, and nothing.
    """

    def __init__(self, play: Any) -> None:
        number = next(_names)
        self.config = {"publisher": "zmq", "endpoint": f"inproc://events-{number}"}
        self.config["replay_endpoint"] = f"inproc://replay-{number}"
        self.seen: Counter[str] = Counter()
        self.view = EventView(play.units * play.unit)
        self._play = play
        self._events: KvEvents | None = None

    def listen(self) -> KvEvents:
        """From the first time on; the publisher is there by then."""
        replay = self.config["replay_endpoint"]
        if self._events is None:
            self._events = KvEvents(self.config["endpoint"], self.view, replay_endpoint=replay)
        return self._events

    def compare(self, publisher: Any, cached: Callable[[Any, list[int]], int]) -> None:
        """Each job's prompt, that with its answer, and one that parts from it; `cached` asks the engine."""
        events, unit = self.listen(), self._play.unit
        publisher._event_queue.join()
        settle(events, lambda: publisher._buffer[-1][0] if publisher._buffer else -1)
        for number, job in enumerate(self._play.jobs):
            for tokens in _prompts_of(job, number):
                truth = cached(job, tokens)
                held = matched(self.view, tokens, namespace_of(job.space, job.salt))
                assert held // unit * unit == truth, (number, len(tokens), held, truth)
                self.seen["cached" if truth else "cold"] += 1
        self.view.check()

    def close(self, publisher: Any) -> None:
        events = self.listen()
        assert (events.lost, events.reader.faults) == (0, 0)
        events.close()
        publisher.shutdown()


def _prompts_of(job: Any, number: int) -> Iterator[list[int]]:
    tokens = job.tokens(number)
    yield tokens
    yield tokens + expected_tokens(f"r{number}", len(tokens), job.max_tokens)
    yield [*tokens[: len(tokens) - 5], 7]


def events_config(ports: tuple[int, int]) -> dict[str, str]:
    """What a server is told of its publisher."""
    return {"publisher": "zmq", "endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}


def check_a_server(
    ports: tuple[int, int],
    tokens: int,
    unit: int,
    ask: Callable[[list[int], int, str | None], int],
    reset: Callable[[], object],
    salts: Sequence[str | None] = (None,),
) -> None:
    """A server finds what a view has foretold, which began to listen later.

    Args:
        tokens, unit: of its cache.
        ask: serves a prompt with so many tokens to generate and a salt; the tokens that were cached of it.
    """
    rnd = random.Random(3)
    heads = [[rnd.randrange(20, 1000) for _ in range(160)] for _ in range(4)]
    ask(heads[0] + [5] * 9, 4, None)  # before anybody listens
    view = EventView(tokens)
    address = "tcp://127.0.0.1"
    events = KvEvents(f"{address}:{ports[0]}", view, replay_endpoint=f"{address}:{ports[1]}")
    seen: Counter[bool] = Counter()
    for _ in range(40):
        head = rnd.choice([*heads, [rnd.randrange(20, 1000) for _ in range(160)]])
        tail = [rnd.randrange(20, 1000) for _ in range(rnd.randrange(1, 90))]
        prompt, salt = head[: rnd.randrange(1, len(head))] + tail, rnd.choice(salts)
        listen_until_quiet(events)
        foretold = matched(view, prompt[:-1], namespace_of(None, salt)) // unit * unit
        assert ask(prompt, rnd.randrange(1, 40), salt) == foretold
        seen[foretold > 0] += 1
    assert min(seen[True], seen[False]) > 5
    assert (events.lost, events.reader.faults) == (0, 0)
    reset()
    ask([9] * 5, 2, None)
    listen_until_quiet(events)
    assert len(view) <= 5 + 2, "what was cached before is gone"
    events.close()
