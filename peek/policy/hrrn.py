"""Highest response ratio next, as SGLang 0.5.23 has it.

Source: `schedule_policy.py`, `_sort_by_hrrn`: the ratio is 1 + wait / service time with both in
tokens, i.e. (tokens processed since the request arrived) / (tokens it still has to prefill).  The
token clock makes it independent of the speed of the engine.
"""

from __future__ import annotations

from math import inf

from mypy_extensions import i64, mypyc_attr

from peek.errors import InvalidConfig
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.lpm import over_limit
from peek.policy.sections import SIBLING, TAU, assign_sections
from peek.request import PendingRequest


@mypyc_attr(allow_interpreted_subclasses=True)
class Hrrn(AdmissionPolicy):
    """Largest (work done since arrival) / (uncached tokens) first; deferred siblings last.

    Fully cached requests go first of all.  Ties in arrival order.  O(n log n).

    Args:
        queue_limit: FCFS beyond this many waiting (SGLang: 128).  None, the default here, is the
            stronger baseline.
    """

    def __init__(self, queue_limit: int | None = None) -> None:
        super().__init__()
        if queue_limit is not None and queue_limit < 1:
            raise InvalidConfig(f"queue_limit is {queue_limit}; need at least 1, or None")
        self.queue_limit = queue_limit

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        if over_limit(self.queue_limit, queue):
            return list(queue)
        assign_sections(queue, TAU)
        work_done = cycle.work_done
        # Stable, so ties stay in arrival order; floats compare much faster than tuples.
        falling = [-_ratio(request, work_done) for request in queue]
        return [queue[i] for i in sorted(range(len(queue)), key=falling.__getitem__)]


def _ratio(request: PendingRequest, work_done: i64) -> float:
    if request.section == SIBLING:
        return -inf
    uncached = request.num_tokens - request.cached_len
    if uncached <= 0:
        return inf
    return float(work_done - request.arrival_work) / float(uncached)
