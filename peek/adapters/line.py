"""A waiting queue between two looks at it: who came, who left, and how it is put in order.

The queue is a list that an engine (SGLang) appends to and takes out of, and that it replaces by a shorter one
after each prefill batch; it moves nothing.  So the queue is what it was, less those who left, with those who
came behind.  `Line` keeps a copy: comparing two lists of the same objects takes a nanosecond each, however
little has changed.

In order, a queue has a *head*, the requests that the next batch may admit, as the plan has them.  Behind it
stand all others in the order in which the engine put them into the queue; a request that leaves the head
without being admitted goes back to its place there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final

MOST_GONE: Final = 32
"""Requests that are found missing one by one; with more it is cheaper to look at each that is there."""

_STRIDE: Final = 256
"""Places that are compared at a time where two lists differ."""


class Line:
    """A copy of the queue as it was last seen, and of its order.

    It holds on to the engine's requests: `left` and `forget` have to be called when they are gone.

    Attributes:
        requests: the queue, first to go first.
        head: how many of the first stand as planned.
        known: whether this is the queue; if not, it is empty.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.head = 0
        self.known = False
        self._numbers: dict[Any, int] = {}
        """By request, in the order in which the engine put them into the queue."""
        self._count = 0

    def __len__(self) -> int:
        return len(self.requests)

    # -- what has changed --------------------------------------------------------------------------

    def begin(self, queue: list[Any]) -> None:
        """The queue as it is now, all of it as planned.  O(queue)."""
        self.requests = list(queue)
        self.head = len(queue)
        self.known = True
        known, self._numbers = self._numbers, {}
        for request in queue:
            number = known.get(request)
            self._numbers[request] = self._next() if number is None else number

    def forget(self) -> None:
        """Nothing is known of the queue."""
        self.requests = []
        self._numbers = {}
        self.head = 0
        self.known = False

    def left(self, requests: Iterable[Any]) -> None:
        """These left the queue, the others may or may not.  O(head + requests x log(queue))."""
        gone = {request for request in requests if request in self._numbers}
        if not gone:
            return
        front = [request for request in self.requests[: self.head] if request not in gone]
        behind = gone.difference(self.requests[: self.head])
        for request in behind:
            del self.requests[self._place_behind(request)]
        self.requests[: self.head] = front
        self.head = len(front)
        for request in gone:
            del self._numbers[request]

    def follow(self, queue: list[Any]) -> tuple[list[Any], list[Any]] | None:
        """Who left since the last look, and who came; the copy is that of `queue` then.

        A nanosecond for each that waits, O(queue) at C speed for each that left without `left`.  None where
        too much is different; nothing is known then.
        """
        if not self.known:
            return None
        mine = self.requests
        gone: list[Any] = []
        same = 0
        while True:
            known = len(mine)
            mine.extend(queue[known:])
            if mine == queue:
                break
            del mine[known:]
            same = _first_difference(mine, queue, same)
            if same == known or len(gone) == MOST_GONE:
                self.forget()
                return None
            request = mine.pop(same)
            gone.append(request)
            del self._numbers[request]
            self.head -= same < self.head
        arrived = mine[known:]
        if gone and not set(gone).isdisjoint(arrived):  # somebody else has moved them
            self.forget()
            return None
        for request in arrived:
            self._numbers[request] = self._next()
        return gone, arrived

    # -- its order ---------------------------------------------------------------------------------

    def put(self, queue: list[Any], planned: list[Any]) -> bool:
        """Bring `queue`, which is as `requests`, into order behind a planned head; whether anything moved.

        O(head), and for each that comes into the head or leaves it O(log(queue)) and moving the others by
        one place.  O(n log n) where that is most of the queue.
        """
        mine, size = self.requests, self.head
        if size <= len(planned) and mine[: len(planned)] == planned:
            self.head = len(planned)
            return False
        wanted, had = set(planned), set(mine[:size])
        coming = [request for request in planned if request not in had]
        going = [request for request in mine[:size] if request not in wanted]
        front = max(size, len(planned))
        before = mine[:front]
        if 8 * (len(coming) + len(going)) > len(mine):
            ordered = planned + sorted(set(mine).difference(wanted), key=self._numbers.__getitem__)
            moved = mine != ordered
            mine[:] = queue[:] = ordered
        else:
            for request in coming:
                place = self._place_behind(request)
                del mine[place], queue[place]
            for request in going:
                place = self._place_behind(request)
                mine.insert(place, request)
                queue.insert(place, request)
            mine[:size] = queue[:size] = planned
            moved = mine[:front] != before
        self.head = len(planned)
        return moved

    def _place_behind(self, request: Any) -> int:
        """The place of a request behind the head, where it stands or belongs.  O(log(queue))."""
        numbers = self._numbers
        return bisect_left(self.requests, numbers[request], self.head, key=numbers.__getitem__)

    def _next(self) -> int:
        self._count += 1
        return self._count


def _first_difference(one: list[Any], other: list[Any], start: int) -> int:
    """The first place from `start` on where two lists are not the same, or where one of them ends."""
    end = min(len(one), len(other))
    while start < end and one[start : start + _STRIDE] == other[start : start + _STRIDE]:
        start += _STRIDE
    start = min(start, end)
    while start < end and one[start] is other[start]:
        start += 1
    return start
