"""The waiting requests in the order of their arrival."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.planner.plan import Plan
from peek.request import NO_LANE, PendingRequest
from peek.trie.pending_tree import PendingTree


@final
class ArrivalOrder:
    """Waiting requests by (arrival_time, sequence), put together again only when the tree has changed.

    Requests mostly arrive in the order of their `arrival_time`, which is the order in which the tree keeps
    them; only once one did not does this sort.
    """

    __slots__ = ("_in_order", "_latest", "_requests", "_unsized", "_version")

    def __init__(self) -> None:
        self._unsized: list[PendingRequest] = []
        self._requests: list[PendingRequest] = []
        self._version: i64 = -1
        self._in_order: bool = True
        self._latest: float = float("-inf")

    def note(self, request: PendingRequest) -> None:
        """A request was added to the tree.  O(1)."""
        if request.arrival_time < self._latest:
            self._in_order = False
        else:
            self._latest = request.arrival_time
        if request.num_tokens == 0:
            self._unsized.append(request)

    def fill_lengths(self, unit_tokens: i64) -> None:
        """Prompt lengths in tokens, where the caller left them to the key.  O(those added since)."""
        for request in self._unsized:
            if request.num_tokens == 0:
                request.num_tokens = (request.length + request.tail) * unit_tokens
        self._unsized = []

    def of(self, tree: PendingTree) -> list[PendingRequest]:
        """The tree's requests, first to arrive first; the same list until the tree changes.

        O(1) while the tree stands, else O(n), and O(n log n) where arrival times are out of order.
        """
        if self._version != tree.version:
            self._requests = tree.requests()
            if not self._in_order:
                self._requests.sort(key=_arrival)
            self._version = tree.version
        return self._requests


def _arrival(request: PendingRequest) -> tuple[float, int]:
    return (request.arrival_time, request.sequence)


def kept_order(queue: list[PendingRequest], reason: str, stood_aside: bool) -> Plan:
    """A plan that leaves the queue as it is; no lane has picked anybody.  O(n)."""
    ids: list[str] = []
    for request in queue:
        request.lane = NO_LANE
        ids.append(request.request_id)
    return Plan(ids, False, reason, stood_aside)
