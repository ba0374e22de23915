"""Finds what has changed in an SGLang queue between two looks, and reorders the queue.

The queue is a list.  SGLang appends to it, removes requests, and replaces it by a shorter list after each
prefill batch, but never moves a request.  So the queue is its last state without the requests that left, then
the new ones.  `Line` keeps a copy: comparing two lists of the same objects costs 1 ns per request.

A queue in order begins with a *head*, the requests that the next batch may admit, in the plan's order.  All
others follow in the order in which SGLang queued them.  A request that leaves the head without being admitted
goes back to its place there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final

MOST_GONE: Final = 32
"""Missing requests that are found one by one; with more, a look at each present request is cheaper."""

_STRIDE: Final = 256
"""Places that are compared at a time where two lists differ."""


class Line:
    """A copy of the queue as it was last seen.  It keeps requests alive: call `left` or `forget`.

    Attributes:
        requests: the queue, first to go first; empty if it is not `known`.
        head: number of requests at the front that stand as planned.
        known: whether the copy is valid.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.head = 0
        self.known = False
        self._numbers: dict[Any, int] = {}
        """By request: its number in the order in which the engine queued the requests."""
        self._count = 0

    # -- what has changed --------------------------------------------------------------------------

    def begin(self, queue: list[Any]) -> None:
        """Copy the queue as it is now, all of it as planned.  O(queue)."""
        self.requests = list(queue)
        self.head = len(queue)
        self.known = True
        known, self._numbers = self._numbers, {}
        for request in queue:
            number = known.get(request)
            self._numbers[request] = self._next() if number is None else number

    def forget(self) -> None:
        """Drop the copy."""
        self.requests, self._numbers, self.head, self.known = [], {}, 0, False

    def left(self, requests: Iterable[Any]) -> None:
        """Remove requests that left the queue; others may have left too.  O(head + requests x log(queue))."""
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
        """Bring the copy up to `queue`; return the requests that left and those that came since.

        1 ns per waiting request, and O(queue) at C speed for each departure that `left` did not report.
        Returns None, and drops the copy, if too much differs.
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
        if gone and not set(gone).isdisjoint(arrived):  # other code has moved them
            self.forget()
            return None
        for request in arrived:
            self._numbers[request] = self._next()
        return gone, arrived

    # -- its order ---------------------------------------------------------------------------------

    def put(self, queue: list[Any], planned: list[Any]) -> bool:
        """Reorder `queue`, which equals the copy, to begin with `planned`; return whether anything moved.

        O(head), and for each request that enters or leaves the head O(log(queue)) and a shift of the list.
        O(n log n) if these are more than an eighth of the queue.
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
        """Return the index behind the head at which a request stands or belongs.  O(log(queue))."""
        numbers = self._numbers
        return bisect_left(self.requests, numbers[request], self.head, key=numbers.__getitem__)

    def _next(self) -> int:
        self._count += 1
        return self._count


def _first_difference(one: list[Any], other: list[Any], start: int) -> int:
    """Return the first index from `start` on where two lists differ or one of them ends."""
    end = min(len(one), len(other))
    while start < end and one[start : start + _STRIDE] == other[start : start + _STRIDE]:
        start += _STRIDE
    start = min(start, end)
    while start < end and one[start] is other[start]:
        start += 1
    return start
