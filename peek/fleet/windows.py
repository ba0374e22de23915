"""How much queues at a replica."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.fleet.config import FleetConfig
from peek.fleet.replica import Replica


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
        if self.is_full(replica):
            return False
        if replica.unstarted < self._requests:
            return True
        return float(replica.unstarted_tokens) < self._tokens + self._late_tokens * replica.speed

    def may_send(self, replica: Replica) -> bool:
        """Whether one of those who wait for it may go there, as far as can be told without a look.  O(1)."""
        return self.has_room(replica) or (replica.due and not self.is_full(replica))

    def is_full(self, replica: Replica) -> bool:
        """Whether nobody at all may be sent there.  O(1)."""
        return replica.unstarted >= self._warm_requests
