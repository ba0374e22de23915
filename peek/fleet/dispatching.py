"""Whom to send now, and where: every replica is filled from its own queue, and idle ones help others."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.fleet.config import FleetConfig
from peek.fleet.homes import Homes
from peek.fleet.members import Members
from peek.fleet.replica import Replica
from peek.fleet.stats import FleetStats
from peek.fleet.stealing import Raid, budget
from peek.fleet.ticket import Tickets
from peek.fleet.windows import Windows


@final
class Dispatcher:
    """Sends those who wait.

    Args:
        config: settings of the fleet.
        members: the replicas.
        homes: where those wait who are to be sent.
        tickets: of all requests.
        stats: counts what is sent and stolen.
    """

    __slots__ = ("_homes", "_members", "_sent", "_stats", "_stickiness", "_tickets", "_windows", "waiting")

    def __init__(
        self,
        config: FleetConfig,
        members: Members,
        homes: Homes,
        tickets: Tickets,
        stats: FleetStats,
    ) -> None:
        self._members = members
        self._homes = homes
        self._tickets = tickets
        self._stats = stats
        self._stickiness: float = config.stickiness
        self._windows = Windows(config)
        self._sent: list[tuple[str, str]] = []
        self.waiting: i64 = 0
        """Requests that wait, those without a home included."""

    def send_all(self, now: float) -> list[tuple[str, str]]:
        """Whom to send where: every replica from its own queue, then the idle ones from others'."""
        if self.waiting == 0:
            return self._posted()
        self._homes.settle()
        for replica in self._members.all:
            if replica.accepting and len(replica.planner) > 0 and self._windows.may_send(replica):
                self._send(replica, now)
        helped = True
        while helped and self.waiting > 0:  # whoever was helped may be able to help now, or have to be
            helped = False
            idle = [each for each in self._members.all if each.accepting and len(each.planner) == 0]
            idle.sort(key=_backlog)
            for replica in idle:
                if self._help(replica):
                    self._send(replica, now)
                    helped = True
        return self._posted()

    def send_to(self, replica: Replica, now: float) -> list[tuple[str, str]]:
        """Whom to send to one replica, out of its own queue or, where nobody waits for it, another's."""
        self._homes.settle()
        if replica.accepting and (len(replica.planner) > 0 or self._help(replica)):
            self._send(replica, now)
        return self._posted()

    def _posted(self) -> list[tuple[str, str]]:
        """What was sent since the last answer; also by a call that a view or policy ended with an error."""
        sent = self._sent
        self._sent = []
        return sent

    def _send(self, replica: Replica, now: float) -> None:
        """Send a replica those who wait for it, first to be served first, as far as they may.

        Orders anew after requests that it did not hold: others may share what they bring.
        """
        replica.due = False
        brought = True
        while brought and len(replica.planner) > 0:
            brought = False
            for request_id in self._ranked(replica.planner.plan(replica.view, now)):
                if self._windows.is_full(replica):
                    replica.due = True
                    return
                request = replica.planner.request(request_id)
                if 2 * replica.planner.cached_len(request_id) < request.num_tokens:
                    if not self._windows.has_room(replica):
                        return
                    brought = True
                replica.send(self._tickets.by_id[request_id])
                self.waiting -= 1
                self._stats.dispatched += 1
                self._sent.append((request_id, replica.name))

    def _ranked(self, plan: list[str]) -> list[str]:
        """Smaller priorities first, among equals as planned.  O(n log n) once there are any."""
        if not self._tickets.ranked:
            return plan
        tickets = self._tickets.by_id
        order = [(tickets[plan[place]].priority, place) for place in range(len(plan))]
        order.sort()
        return [plan[place] for _, place in order]

    def _help(self, thief: Replica) -> bool:
        """Let a replica for which nobody waits take over some of the longest backlog; whether it got any."""
        if not self._windows.has_room(thief):
            return False
        victim: Replica | None = None
        for replica in self._members.all:
            if len(replica.planner) > 0 and (victim is None or _needs_more_help(replica, victim)):
                victim = replica
        if victim is None or self._is_known_to_spare(thief, victim):
            return False
        taken = Raid(victim, thief, self._tickets.by_id, self._stickiness).choose()
        if not taken:
            thief.fruitless = self._homes.settled
            thief.spared = victim
            thief.spared_budget = budget(victim, thief)
            return False
        self._homes.settled += 1
        self._stats.steals += 1
        self._stats.stolen += len(taken)
        for request_id in taken:
            ticket = self._tickets.by_id[request_id]
            work = thief.added_tokens(ticket.request, victim.planner.tree.key_of(request_id))
            victim.release(ticket)
            thief.hold(ticket, work)
        return True

    def _is_known_to_spare(self, thief: Replica, victim: Replica) -> bool:
        """Whether it took nothing from this one when it could have paid as much, and nobody came since."""
        if thief.fruitless != self._homes.settled or thief.spared is not victim:
            return False
        return budget(victim, thief) <= thief.spared_budget


def _needs_more_help(replica: Replica, other: Replica) -> bool:
    """Those who are paused first, then the longest backlog."""
    if replica.accepting != other.accepting:
        return other.accepting
    return replica.backlog > other.backlog


def _backlog(replica: Replica) -> float:
    return replica.backlog
