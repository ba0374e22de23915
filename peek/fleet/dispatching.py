"""Whom to send now, and where: every replica is filled from its own queue, and idle ones help others."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.fleet.config import FleetConfig
from peek.fleet.homes import Homes
from peek.fleet.members import Members
from peek.fleet.replica import Replica
from peek.fleet.stats import FleetStats
from peek.fleet.stealing import Raid
from peek.fleet.ticket import Ticket
from peek.fleet.windows import Windows


@final
class Dispatcher:
    """Sends those who wait.

    Args:
        config: settings of the fleet.
        members: the replicas.
        homes: where those wait who are to be sent.
        tickets: of all requests, by id.
        stats: counts what is sent and stolen.
    """

    __slots__ = ("_homes", "_members", "_stats", "_stickiness", "_tickets", "_windows", "waiting")

    def __init__(
        self,
        config: FleetConfig,
        members: Members,
        homes: Homes,
        tickets: dict[str, Ticket],
        stats: FleetStats,
    ) -> None:
        self._members = members
        self._homes = homes
        self._tickets = tickets
        self._stats = stats
        self._stickiness: float = config.stickiness
        self._windows = Windows(config)
        self.waiting: i64 = 0
        """Requests that wait, those without a home included."""

    def send_all(self, now: float) -> list[tuple[str, str]]:
        """Whom to send where: every replica from its own queue, then the idle ones from others'."""
        sent: list[tuple[str, str]] = []
        if self.waiting == 0:
            return sent
        for replica in self._members.all:
            if replica.accepting and len(replica.planner) > 0 and self._windows.may_send(replica):
                self._send(replica, now, sent)
        helped = True
        while helped and self.waiting > 0:  # whoever was helped may be able to help now, or have to be
            helped = False
            idle = [each for each in self._members.all if each.accepting and len(each.planner) == 0]
            idle.sort(key=_backlog)
            for replica in idle:
                if self._help(replica):
                    self._send(replica, now, sent)
                    helped = True
        return sent

    def send_to(self, replica: Replica, now: float) -> list[tuple[str, str]]:
        """Whom to send to one replica, out of its own queue or, where nobody waits for it, another's."""
        sent: list[tuple[str, str]] = []
        if replica.accepting and (len(replica.planner) > 0 or self._help(replica)):
            self._send(replica, now, sent)
        return sent

    def _send(self, replica: Replica, now: float, sent: list[tuple[str, str]]) -> None:
        for request_id in self._windows.fill(replica, self._tickets, now):
            self.waiting -= 1
            self._stats.dispatched += 1
            sent.append((request_id, replica.name))

    def _help(self, thief: Replica) -> bool:
        """Let a replica for which nobody waits take over some of the longest backlog; whether it got any."""
        settled = self._homes.settled
        if thief.fruitless == settled or not self._windows.has_room(thief):
            return False
        victim: Replica | None = None
        for replica in self._members.all:
            if len(replica.planner) > 0 and (victim is None or _needs_more_help(replica, victim)):
                victim = replica
        if victim is None:
            return False
        taken = Raid(victim, thief, self._tickets, self._stickiness).choose()
        if not taken:
            thief.fruitless = settled
            return False
        self._homes.settled += 1
        self._stats.steals += 1
        self._stats.stolen += len(taken)
        for request_id in taken:
            ticket = self._tickets[request_id]
            victim.release(ticket)
            thief.hold(ticket, thief.added_tokens(ticket))
        return True


def _needs_more_help(replica: Replica, other: Replica) -> bool:
    """Those who are paused first, then the longest backlog."""
    if replica.accepting != other.accepting:
        return other.accepting
    return replica.backlog > other.backlog


def _backlog(replica: Replica) -> float:
    return replica.backlog
