"""Since when a request counts as waiting, if it is a later turn of a session.

A conversation, or an agent's job, is served turn by turn, and its user waits for the last turn.  So a later
turn counts as older: by `PART` of what the session's earlier turns have waited.  Its context is likely to
be cached still, and a session that ends gives up its memory.  Time in which the engine had nothing of the
session to do does not count: people think, and tools run.

What a client can gain by naming sessions is bounded by `PART * LONGEST_S` seconds of age.  A session belongs
to one namespace; equal names in two namespaces are two sessions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from peek.request import PendingRequest

PART: Final = 0.2
"""Part of a session's waiting that counts as age.  With it mean TTFT and job time are 1 % shorter on the
kinds of `bench.arena`, and p99 is 4 % longer.  With all of the waiting they are another 1 % shorter, and p99
another 5 % longer (`bench.ablation`)."""

LONGEST_S: Final = 300.0
"""Maximum waiting of a session that counts: an old name must not become a pass."""

_MOST: Final = 65536
"""Maximum number of sessions that are remembered; the ones with the latest admissions stay."""


@final
class Sessions:
    """How long each session has waited."""

    __slots__ = ("_waited",)

    def __init__(self) -> None:
        self._waited: OrderedDict[tuple[str, str], tuple[float, str, float]] = OrderedDict()
        """Of each session: its waiting without the request admitted last, that request, and with it."""

    def __len__(self) -> int:
        """Number of sessions that are known."""
        return len(self._waited)

    def admitted(self, request: PendingRequest, now: float) -> None:
        """Add a request's wait to its session's; once, also if it was preempted and waited again.  O(1)."""
        if not request.session:
            return
        before = self._before(request)
        waited = min(before + max(0.0, now - request.arrival_time), LONGEST_S)
        name = (request.namespace, request.session)
        self._waited[name] = (before, request.request_id, waited)
        self._waited.move_to_end(name)
        if len(self._waited) > _MOST:
            self._waited.popitem(last=False)

    def since(self, request: PendingRequest) -> float:
        """Since when a request counts as waiting, in seconds; its arrival if it begins its session.  O(1)."""
        return request.arrival_time - PART * self._before(request)

    def _before(self, request: PendingRequest) -> float:
        """Return the waiting of a request's session without its own, in seconds.  O(1)."""
        if not request.session:
            return 0.0
        known = self._waited.get((request.namespace, request.session))
        if known is None:
            return 0.0
        return known[0] if known[1] == request.request_id else known[2]
