"""Since when a request has waited, where it goes on with a session.

A conversation, or an agent's job, is served turn by turn, and what is waited for is the last turn.  So a
later turn counts as if it had waited a little longer: by `PART` of the time since its session began.  Its
context is likely to be cached still, and a session that ends gives up its memory.

What a client can gain by it is bounded: `PART * LONGEST_S` seconds of age, whatever it says its sessions are.
Sessions of different namespaces have nothing to do with each other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from peek.request import PendingRequest

PART: Final = 0.1
"""A tenth makes jobs 3 % and the mean TTFT 2 % shorter on the kinds of `bench.arena`; all of it another 2 %
each, at a p99 that is a tenth longer (`bench.ablation`)."""

LONGEST_S: Final = 600.0
"""What counts of a session's time: agents take minutes, and a name used for days shall not be a pass."""

_MOST: Final = 65536
"""Sessions whose beginning is known, those that came last."""


@final
class Sessions:
    """When sessions began."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        """Sessions that are known."""
        return len(self._began)

    def arrived(self, request: PendingRequest) -> None:
        """A request waits; the first of its session begins it.  O(1)."""
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
