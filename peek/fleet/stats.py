"""Counters of a fleet over its lifetime."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class FleetStats:
    """Running totals since the fleet was made; `as_dict` for export.

    Attributes:
        added: requests that came in.
        refused: requests that found the queue full.
        sticky: requests that went to a replica that had or expected half of their prompt or more.
        dispatched: times a request was sent to a replica; one that was requeued counts again.
        finished: requests that ended.
        cancelled: requests that were given up, waiting or under way.
        requeued: requests that came back from a replica that was lost.
        moved: waiting requests that got another home because theirs left or was lost.
        steals: times an idle replica took over others' requests.
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
        self.steals: i64 = 0
        self.stolen: i64 = 0

    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
        return {
            "added": self.added,
            "refused": self.refused,
            "sticky": self.sticky,
            "dispatched": self.dispatched,
            "finished": self.finished,
            "cancelled": self.cancelled,
            "requeued": self.requeued,
            "moved": self.moved,
            "steals": self.steals,
            "stolen": self.stolen,
        }
