"""Where a request waits: on the replica that ends with it first, if what is computed twice counts more."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.fleet.members import Members
from peek.fleet.replica import Replica
from peek.fleet.stats import FleetStats
from peek.fleet.ticket import Ticket


@final
class Homes:
    """Gives requests their homes, each replica in turn among equals.

    The home of a request is the replica with the least `backlog + stickiness x added tokens / speed`.  It
    adds what neither the replica's cache holds nor those who wait there have in common with it: so a family
    of prompts gathers while its prefix is nowhere yet, and parts once being together costs too much.

    Args:
        members: the replicas.
        stickiness: what a token counts that is computed in a second place.
        stats: counts requests that find half of their prompt.
    """

    __slots__ = ("_homeless", "_members", "_stats", "_stickiness", "_turn", "settled")

    def __init__(self, members: Members, stickiness: float, stats: FleetStats) -> None:
        self._members = members
        self._stickiness: float = stickiness
        self._stats = stats
        self._homeless: dict[str, Ticket] = {}
        self._turn: i64 = 0
        self.settled: i64 = 0
        """Grows whenever there may be something new to take over: somebody waits, a replica pauses."""

    def choose(self, ticket: Ticket) -> tuple[Replica | None, i64]:
        """The home, None if there is no replica, and the prompt tokens that the request adds there.

        A replica that is paused is no home unless all are, one that leaves never.  O(R) views asked.
        """
        replicas = self._members.all
        best: Replica | None = None
        best_cost = 0.0
        best_work: i64 = 0
        count: i64 = len(replicas)
        self._turn += 1
        for i in range(count):
            replica = replicas[(i + self._turn) % count]
            if replica.leaving:
                continue
            if best is not None and best.accepting and not replica.accepting:
                continue
            work = replica.added_tokens(ticket.request, ticket.key)
            cost = replica.backlog + self._stickiness * float(work) / replica.speed
            if best is None or cost < best_cost or (replica.accepting and not best.accepting):
                best = replica
                best_cost = cost
                best_work = work
        if best is not None and 2 * best_work <= ticket.request.num_tokens:
            self._stats.sticky += 1
        return best, best_work

    def wait(self, ticket: Ticket) -> None:
        """A request waits, without a home until `settle`.  O(1)."""
        self.settled += 1
        ticket.replica = None
        self._homeless[ticket.request.request_id] = ticket

    def settle(self) -> None:
        """Give those without a home one, if there is a replica.  For each the cost of `choose`, and O(k)."""
        for request_id, ticket in list(self._homeless.items()):
            replica, work = self.choose(ticket)
            if replica is None:
                return
            if 2 * replica.cold_tokens(ticket.request, ticket.key) <= ticket.request.num_tokens:
                replica.due = True
            del self._homeless[request_id]
            replica.hold(ticket, work)

    def give_up(self, ticket: Ticket) -> None:
        """Somebody no longer waits.  O(k)."""
        if ticket.replica is None:
            del self._homeless[ticket.request.request_id]
        else:
            ticket.replica.release(ticket)
