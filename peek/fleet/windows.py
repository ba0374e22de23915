"""How much queues at a replica."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.fleet.config import FleetConfig
from peek.fleet.replica import Replica
from peek.fleet.ticket import Ticket


@final
class Windows:
    """How much queues at a replica: enough to keep it busy, and little that could still go elsewhere.

    Args:
        config: settings of the fleet.
    """

    __slots__ = ("_late_tokens", "_requests", "_tokens", "_warm_requests")

    def __init__(self, config: FleetConfig) -> None:
        self._tokens: float = float(config.window_tokens)
        self._late_tokens: float = config.news_s * config.tokens_per_s
        self._requests: i64 = config.window_requests
        self._warm_requests: i64 = int(config.warm_requests * (1.0 + config.news_s))

    def has_room(self, replica: Replica) -> bool:
        """Whether it may be sent a request that it does not hold.  O(1)."""
        if replica.unstarted >= self._warm_requests:
            return False
        if replica.unstarted < self._requests:
            return True
        return float(replica.unstarted_tokens) < self._tokens + self._late_tokens * replica.speed

    def may_send(self, replica: Replica) -> bool:
        """Whether there is anything for `fill` to do where somebody waits.  O(1)."""
        return self.has_room(replica) or (replica.due and replica.unstarted < self._warm_requests)

    def fill(self, replica: Replica, tickets: dict[str, Ticket], now: float) -> list[str]:
        """Send a replica those who wait for it, first to be served first, as far as they may.

        Orders anew after requests that it did not hold: others may share what they bring.
        O(n) for each time it orders n requests, and O(k) for each that is sent.
        """
        sent: list[str] = []
        replica.due = False
        brought = True
        while brought and len(replica.planner) > 0:
            brought = False
            for request_id in replica.planner.plan(replica.view, now):
                if replica.unstarted >= self._warm_requests:
                    replica.due = True
                    return sent
                request = replica.planner.request(request_id)
                if 2 * replica.planner.cached_len(request_id) < request.num_tokens:
                    if not self.has_room(replica):
                        return sent
                    brought = True
                ticket = tickets[request_id]
                replica.release(ticket, True)
                replica.begin(ticket, ticket.work)
                sent.append(request_id)
        return sent
