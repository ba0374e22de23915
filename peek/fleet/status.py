"""What a fleet looks like from outside, and whether its books are in order."""

from __future__ import annotations

from typing import Any, NamedTuple

from peek.fleet.members import Members
from peek.fleet.replica import Replica
from peek.fleet.ticket import Ticket


class ReplicaStatus(NamedTuple):
    name: str
    accepting: bool
    waiting: int
    queued: int
    under_way: int
    backlog: float


_status: Any = ReplicaStatus  # assigned, because a named tuple loses its docstring when compiled
_status.__doc__ = """The load of one replica.

Attributes:
    name: the host's.
    accepting: it may be sent requests.
    waiting: requests that wait for it in the fleet.
    queued: requests that were sent there and have no first token.
    under_way: requests that were sent there and have not ended.
    backlog: tokens it has to compute and decode, as a replica of speed 1.0 would count them.
"""


def status_of(replica: Replica) -> ReplicaStatus:
    """The load of a replica.  O(1)."""
    return ReplicaStatus(
        replica.name,
        replica.accepting,
        len(replica.planner),
        replica.unstarted,
        len(replica.under_way),
        replica.backlog,
    )


def check_fleet(members: Members, tickets: dict[str, Ticket], waiting: int) -> None:
    """Every request is in one place, and every sum is that of its parts; `AssertionError`."""
    placed = 0
    homeless = 0
    for ticket in tickets.values():
        if ticket.replica is None:
            assert not ticket.sent and ticket.key, "a request is nowhere"
            homeless += 1
    for replica in members.all:
        queue = [tickets[request.request_id] for request in replica.planner.tree.requests()]
        placed += len(queue)
        for ticket in queue:
            assert ticket.replica is replica and not ticket.sent, "a request waits where it is not"
        for request_id, ticket in replica.under_way.items():
            assert tickets[request_id] is ticket, "under way and unknown"
            assert ticket.replica is replica and ticket.sent, "a request is under way where it is not"
        sent = list(replica.under_way.values())
        new = [ticket for ticket in sent if not ticket.started]
        assert replica.waiting_tokens == sum(t.work + t.decode_tokens for t in queue), "waiting tokens"
        assert replica.decode_tokens == sum(t.decode_tokens for t in sent), "tokens of answers"
        assert replica.unstarted_tokens == sum(t.work for t in new), "unstarted tokens"
        assert replica.unstarted == len(new) == len(replica.coming), "unstarted requests"
        assert sent or not replica.leaving, "a replica that left is there"
    assert waiting == placed + homeless, "waiting requests"
    on_their_way = sum([len(replica.under_way) for replica in members.all])
    assert len(tickets) == waiting + on_their_way, "a request is lost"
