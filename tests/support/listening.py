"""Listening to a real publisher of KV events, and what it should have told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from peek.adapters.kv_events import KvEvents
from peek.trie.keys import pack
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
