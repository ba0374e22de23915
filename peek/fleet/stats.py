"""What a fleet reports: its counters and the load of each replica."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

from peek.native import i64

_COUNTERS: Final = (
    "added", "refused", "sticky", "dispatched", "finished", "cancelled", "requeued", "moved",
    "sessions_moved", "steals", "stolen",
)  # fmt: skip


@final
class FleetStats:
    """Running totals since the fleet was made; `as_dict` for export.

    Attributes:
        added: requests that came in and were not refused.
        refused: requests that found the queue full.
        sticky: requests that went to a replica that had, or was about to have, at least half of their prompt.
        dispatched: times a request was sent to a replica; one that was requeued counts again.
        finished: requests that were answered.
        cancelled: requests that were given up, waiting or under way.
        requeued: requests that came back from a replica that was lost.
        moved: waiting requests that lost their home because it left or was lost.
        sessions_moved: turns of a session that went to another replica than the turn before.
        steals: times an idle replica took over requests of another.
        stolen: requests taken over.
    """

    def __init__(self) -> None:
        self.added: i64 = 0
        self.refused: i64 = 0
        self.sticky: i64 = 0
        self.dispatched: i64 = 0
        self.finished: i64 = 0
        self.cancelled: i64 = 0
        self.requeued: i64 = 0
        self.moved: i64 = 0
        self.sessions_moved: i64 = 0
        self.steals: i64 = 0
        self.stolen: i64 = 0

    def as_dict(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def __repr__(self) -> str:
        return f"FleetStats({self.as_dict()})"


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
