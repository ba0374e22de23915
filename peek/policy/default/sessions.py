"""Since when a request counts as waiting, if it is a later turn of a session.

A conversation, or an agent's job, is served turn by turn, and its user waits for the last turn.  So a later
turn counts as a little older: by `PART` of the time since its session began.  Its context is likely to be
cached still, and a session that ends gives up its memory.

What a client can gain by naming sessions is bounded by `PART * LONGEST_S` seconds of age.  A session belongs
to one namespace; equal names in two namespaces are two sessions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from peek.request import PendingRequest

PART: Final = 0.1
"""Part of a session's time that counts as age.  A tenth makes jobs 3 % and the mean TTFT 2 % shorter on the
kinds of `bench.arena`; all of it another 2 % each, at a p99 that is a tenth longer (`bench.ablation`)."""

LONGEST_S: Final = 600.0
"""Maximum time of a session that counts: agents take minutes, and an old name must not become a pass."""

_MOST: Final = 65536
"""Maximum number of sessions whose beginning is kept; the sessions with the latest requests stay."""


@final
class Sessions:
    """When each session began."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        """Number of sessions that are known."""
        return len(self._began)

    def arrived(self, request: PendingRequest) -> None:
        """Note a request that waits from now on; the first one of a session begins it.  O(1)."""
        if not request.session:
            return
        name = (request.namespace, request.session)
        if name in self._began:
            self._began.move_to_end(name)
            return
        self._began[name] = request.arrival_time
        if len(self._began) > _MOST:
            self._began.popitem(last=False)

    def since(self, request: PendingRequest) -> float:
        """Since when a request counts as waiting, in seconds; its arrival if it begins its session.  O(1)."""
        came = request.arrival_time
        if not request.session:
            return came
        began = self._began.get((request.namespace, request.session), came)
        return came - PART * min(max(0.0, came - began), LONGEST_S)
