"""Policies that exist only for the evaluation, and planners by label.

Most labels are the library's own.  The others are k-LPM, and orders of a batch that was reordered before it
was sent (`fcfs+lru, reordered`).
"""

from __future__ import annotations

from collections.abc import Callable

from bench.planners import make_planner
from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import Cycle
from peek.policy.stock import LongestPrefix
from peek.request import PendingRequest

K = 8
K_LPM = "k-lpm+lru"
REORDERED = ", reordered"
"""End of the label of a policy whose batch is first put in order by `peek.offline`."""


class EngineMissing(Exception):
    """The engine's package is not in this environment, or lacks the policy."""


class KLongestPrefix(LongestPrefix):
    """k-LPM: of every k admissions the first is the oldest request, the others are longest prefix first.

    Requests that have left since the last order count as admitted, across cycles.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._admitted = 0
        self._last: list[str] = []

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        present = {request.request_id for request in queue}
        self._admitted += sum(1 for request_id in self._last if request_id not in present)
        oldest, longest = iter(queue), iter(super().order(queue, cycle))
        ordered: dict[str, PendingRequest] = {}
        for turn in range(self._admitted, self._admitted + len(queue)):
            lane = oldest if turn % K == 0 else longest
            request = next(request for request in lane if request.request_id not in ordered)
            ordered[request.request_id] = request
        self._last = list(ordered)
        return list(ordered.values())


def base_of(label: str) -> str:
    """Return the library's label from which a variant starts; a label that is no variant is its own."""
    return "lpm-nolimit+lru" if label == K_LPM else label.removesuffix(REORDERED)


def config_of(label: str) -> PeekConfig:
    """Return the settings of a label of the evaluation."""
    return PeekConfig.from_label(base_of(label))


def planner_for(label: str, *, blocks: bool, timer: Callable[[], float] | None = None) -> Planner | None:
    """Return the planner of a label, None for a stock engine; `blocks`: whether the cache is vLLM's kind."""
    config = config_of(label)
    if config.is_stock:
        return None
    policy = KLongestPrefix() if label == K_LPM else None
    gated = not blocks and config.sees_prefills
    return make_planner(config, policy, gated=gated, chained=blocks, timer=timer)
