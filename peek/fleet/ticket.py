"""Requests on their way through the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.errors import DuplicateRequest, UnknownRequest
from peek.request import PendingRequest
from peek.settings import require_within
from peek.trie.keys import pack

if TYPE_CHECKING:
    from peek.fleet.replica import Replica


@final
class Ticket:
    """What the fleet knows of a request.

    Attributes:
        request: as given to `FleetPlanner.add`.
        key: its packed prompt; empty while it waits for a replica, whose planner then has it.
        decode_tokens: tokens that its answer is expected to have.
        priority: of those who wait for one replica the smaller number goes first.
        replica: the one it waits for or runs on; None while there is none.
        work: uncached prompt tokens that it counts with there.
        sent: it has gone to its replica.
        started: its first token is known.
    """

    __slots__ = ("decode_tokens", "key", "priority", "replica", "request", "sent", "started", "work")

    def __init__(self, request: PendingRequest, key: bytes, decode_tokens: i64, priority: i64) -> None:
        self.request = request
        self.key = key
        self.decode_tokens: i64 = decode_tokens
        self.priority: i64 = priority
        self.replica: Replica | None = None
        self.work: i64 = 0
        self.sent: bool = False
        self.started: bool = False


@final
class Tickets:
    """All requests that wait or are under way.

    Args:
        unit_tokens: tokens per symbol of the keys.

    Attributes:
        ranked: whether a priority other than 0 was ever given.
    """

    __slots__ = ("_unit", "by_id", "ranked")

    def __init__(self, unit_tokens: i64) -> None:
        self._unit: i64 = unit_tokens
        self.by_id: dict[str, Ticket] = {}
        self.ranked = False

    def made_for(self, request: PendingRequest, decode_tokens: int, priority: int) -> Ticket:
        """A ticket for a request that comes in, not kept yet; fills its `num_tokens` if the key tells.  O(k).

        Raises `DuplicateRequest`, `InvalidKey`, and `InvalidConfig` for numbers that cannot be.
        """
        if request.request_id in self.by_id:
            raise DuplicateRequest(f"request {request.request_id!r} waits or is under way already")
        require_within("decode_tokens", decode_tokens, 0, 2**40)
        require_within("priority", priority, -(2**40), 2**40)
        key = pack(request.key)
        if request.num_tokens == 0:
            request.num_tokens = ((len(key) >> 2) + request.tail) * self._unit
        return Ticket(request, key, decode_tokens, priority)

    def keep(self, ticket: Ticket) -> None:
        """The request is in the fleet from now on.  O(1)."""
        self.ranked |= ticket.priority != 0
        self.by_id[ticket.request.request_id] = ticket

    def find(self, request_id: str) -> Ticket:
        """The ticket of a request.  O(1); `UnknownRequest`."""
        ticket = self.by_id.get(request_id)
        if ticket is None:
            raise UnknownRequest(f"request {request_id!r} neither waits nor is under way")
        return ticket

    def sent_to(self, request_id: str, name: str) -> Ticket | None:
        """The ticket of a request that is under way at a replica; None for any other.  O(1)."""
        ticket = self.by_id.get(request_id)
        if ticket is None or not ticket.sent or ticket.replica is None or ticket.replica.name != name:
            return None
        return ticket
