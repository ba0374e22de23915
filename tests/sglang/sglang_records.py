"""What `Stepper` writes down about each request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sglang_versions import prefix_len


@dataclass(frozen=True)
class Admission:
    """A request entered a prefill batch (later chunks of it are not admissions)."""

    rid: str
    step: int
    prefix_len: int
    uncached: int
    oldest: bool
    """Of those that wait and were never retracted, it had waited longest."""
    again: bool
    """It had been retracted."""


@dataclass
class Record:
    """What became of a request."""

    arrived: int
    admissions: list[Admission] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    retractions: int = 0
    finished: bool = False
    aborted: bool = False

    @property
    def waited(self) -> int:
        """Steps until the first admission."""
        return self.admissions[0].step - self.arrived


def admissions_of(waiting: list[Any], entered: list[Any], step: int) -> Iterator[Admission]:
    """Those of `waiting` that a batch took, in its order; without the next chunk of an older one."""
    queued = set(waiting)
    fresh = [request for request in waiting if not request.retracted_stain]
    by_age = sorted(fresh, key=lambda request: request.time_stats.wait_queue_entry_time)
    for request in entered:
        if request not in queued:
            continue
        again = bool(request.retracted_stain)
        cached = prefix_len(request)
        whole = len(request.origin_input_ids) + len(request.output_ids)
        oldest = not again and by_age[0] is request
        yield Admission(request.rid, step, cached, whole - cached, oldest, again)
        if not again:
            by_age.remove(request)
