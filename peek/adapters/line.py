"""Finds what has changed in an SGLang queue between two looks, and reorders the queue.

The queue is a list.  SGLang appends to it, removes requests, and replaces it by a shorter list after each
prefill batch, but never moves a request.  So the queue is its last state without the requests that left,
followed by the new ones.  `Line` keeps a copy: comparing two lists of the same objects costs 1 ns each.

A queue in order begins with a *head*, the requests that the next batch may admit, in the plan's order.  All
others follow in the order in which SGLang queued them, or by SGLang's priorities.  A request that leaves the
head without being admitted goes back to its place there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any


class Line:
    """A copy of the queue as it was last seen.  It keeps requests alive until they are seen to have left.

    `rank` returns the key by which SGLang sorts; equal requests, or all without `rank`, go by arrival.

    Attributes:
        requests: the queue, first to go first.
        head: number of requests at the front that are in planned order.
    """

    def __init__(self, rank: Callable[[Any], Any] | None = None) -> None:
        self.requests: list[Any] = []
        self.head = 0
        self._rank = rank
        self._numbers: dict[Any, Any] = {}
        """By request: its rank, if any, and its number in the order in which the engine queued requests."""
        self._count = 0

    # -- what has changed --------------------------------------------------------------------------

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

    def follow(self, queue: list[Any]) -> tuple[list[Any], list[Any]]:
        """Bring the copy up to `queue`; return the requests that left and those that came since.

        1 ns per waiting request; O(queue) if one left that `left` did not report, or came with a rank.
        """
        mine, known = self.requests, len(self.requests)
        gone: list[Any] = []
        arrived = queue[known:]
        mine += arrived
        if mine != queue:
            here = set(queue)
            gone = [request for request in mine[:known] if request not in here]
            arrived = [request for request in queue if request not in self._numbers]
            stayed = [request for request in mine[:known] if request in here]
            self.head -= sum(request not in here for request in mine[: self.head])
            if stayed + arrived != queue:  # other code has moved them
                self.head = len(queue)
            mine[:] = queue
        for request in gone:
            del self._numbers[request]
        for request in arrived:
            self._count += 1
            self._numbers[request] = self._count if self._rank is None else (self._rank(request), self._count)
        if self._rank is not None and arrived:
            self.head = len(queue)  # SGLang appends them, whatever their rank
        return gone, arrived

    # -- its order ---------------------------------------------------------------------------------

    def put(self, queue: list[Any], planned: list[Any]) -> bool:
        """Reorder `queue`, which equals the copy, to begin with `planned`; return whether anything moved.

        2 ns per waiting request, and for each that enters or leaves the head O(log(queue)) and a shift of the
        copy.  O(n log n) if these are over an eighth of the queue.  If this raises, the queue is unchanged.
        """
        mine, size = self.requests, self.head
        if size <= len(planned) and mine[: len(planned)] == planned:
            self.head = len(planned)
            return False
        wanted, had = set(planned), set(mine[:size])
        coming = [request for request in planned if request not in had]
        going = [request for request in mine[:size] if request not in wanted]
        if 8 * (len(coming) + len(going)) > len(mine):
            rest = [request for request in mine if request not in wanted]
            mine[:] = planned + sorted(rest, key=self._numbers.__getitem__)
        else:
            for request in coming:
                place = self._place_behind(request)
                assert mine[place] is request, "it does not stand where its number says"
                del mine[place]
            for request in going:
                mine.insert(self._place_behind(request), request)
            mine[:size] = planned
        self.head = len(planned)
        moved = mine != queue
        assert len(mine) == len(queue), "not every planned request is in the queue, and once"
        if moved:
            queue[:] = mine  # at once: the engine's own list is never without a request
        return moved

    def _place_behind(self, request: Any) -> int:
        """Return the index after the head at which a request stands or belongs.  O(log(queue))."""
        numbers = self._numbers
        return bisect_left(self.requests, numbers[request], self.head, key=numbers.__getitem__)
