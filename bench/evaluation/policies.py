"""Policies that exist only for the evaluation, and how a label becomes a planner.

Most labels are the library's own.  The others are k-LPM and orders of a batch that was reordered before it
was sent (`fcfs+lru, reordered`).
"""

from __future__ import annotations

from collections.abc import Callable

from bench.planners import make_planner
from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.stock import LongestPrefix
from peek.request import PendingRequest

K = 8
K_LPM = "k-lpm+lru"
REORDERED = ", reordered"
"""Ends the label of a policy whose batch is put in order by `peek.offline` first."""


class EngineMissing(Exception):
    """The engine's package is not in this environment, or lacks the policy."""


class KLongestPrefix(AdmissionPolicy):
    """k-LPM: of every k admissions the first is the oldest request, the others longest prefix first.

    Admissions are counted across cycles, by who of the last order has left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._longest = LongestPrefix(None)
        self._admitted = 0
        self._last: list[str] = []

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        present = {request.request_id for request in queue}
        self._admitted += sum(1 for request_id in self._last if request_id not in present)
        oldest, longest = iter(queue), iter(self._longest.order(queue, cycle))
        ordered: dict[str, PendingRequest] = {}
        for turn in range(self._admitted, self._admitted + len(queue)):
            lane = oldest if turn % K == 0 else longest
            request = next(request for request in lane if request.request_id not in ordered)
            ordered[request.request_id] = request
        self._last = list(ordered)
        return list(ordered.values())


def base_of(label: str) -> str:
    """The library's label that a variant starts from; one that is no variant is its own."""
    return "lpm-nolimit+lru" if label == K_LPM else label.removesuffix(REORDERED)


def config_of(label: str) -> PeekConfig:
    """The settings behind a label of the evaluation."""
    return PeekConfig.from_label(base_of(label))


def planner_for(label: str, *, blocks: bool, timer: Callable[[], float] | None = None) -> Planner | None:
    """The planner behind a label, None for a stock engine; `blocks`: vLLM's kind of cache."""
    config = config_of(label)
    if config.is_stock:
        return None
    policy = KLongestPrefix() if label == K_LPM else None
    gated = not blocks and config.sees_prefills
    return make_planner(config, policy, gated=gated, chained=blocks, timer=timer)
