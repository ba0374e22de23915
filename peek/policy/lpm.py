"""SGLang's cache-aware baselines: longest prefix match and shortest prefill first.

Source: `sglang/srt/managers/schedule_policy.py` (LPM in 0.5.9 and later, shortest-prefill-first in
0.5.23).  Both defer siblings of a cold prefix within the batch.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from peek.errors import InvalidConfig
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.sections import SIBLING, TAU, assign_sections
from peek.request import PendingRequest

_LAST = 1 << 60


@mypyc_attr(allow_interpreted_subclasses=True)
class LongestPrefix(AdmissionPolicy):
    """Longest cached prefix first, deferred siblings last, ties in arrival order.  O(n log n).

    Args:
        queue_limit: with more requests waiting the order is FCFS and the cache is not looked at
            (SGLang: 128); None lifts the limit.
    """

    def __init__(self, queue_limit: int | None = 128) -> None:
        super().__init__()
        if queue_limit is not None and queue_limit < 1:
            raise InvalidConfig(f"queue_limit is {queue_limit}; need at least 1, or None")
        self.queue_limit = queue_limit

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        if over_limit(self.queue_limit, queue):
            return list(queue)
        assign_sections(queue, TAU)
        return sorted(queue, key=_longest_prefix)


def _longest_prefix(request: PendingRequest) -> int:
    return _LAST if request.section == SIBLING else -request.cached_len


def over_limit(queue_limit: int | None, queue: list[PendingRequest]) -> bool:
    """SGLang's guard against the cost of matching a long queue."""
    return queue_limit is not None and len(queue) > queue_limit


@mypyc_attr(allow_interpreted_subclasses=True)
class ShortestPrefill(AdmissionPolicy):
    """Fewest uncached tokens first, deferred siblings last, ties in arrival order.  O(n log n)."""

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        assign_sections(queue, TAU)
        return sorted(queue, key=_shortest_prefill)


def _shortest_prefill(request: PendingRequest) -> int:
    work = uncached_tokens(request)
    return _LAST + work if request.section == SIBLING else work


def uncached_tokens(request: PendingRequest) -> i64:
    """Prompt tokens an engine would compute if it admitted the request now; at least 1."""
    work = request.num_tokens - request.cached_len
    return work if work > 1 else 1
