"""Policies that exist only for the evaluation, and how a label becomes a planner.

Most labels are the library's own.  The others are variants that the report compares: k-LPM, the three
ways to charge the lanes, `peek` with other exponents, and `peek` without its in-flight gate, its lanes, its
section of mostly cached requests, or the guard that leaves a queue without sharing or hits alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bench.planners import make_planner
from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.lanes import CACHE_LANE, FAIR_LANE, Lanes
from peek.policy.lpm import LongestPrefix
from peek.policy.response_ratio import ClusterResponseRatio
from peek.policy.sections import SIBLING
from peek.request import NO_LANE, PendingRequest
from peek.trie.node import Node

K = 8
K_LPM = "k-lpm+lru"
SHARE = 0.3
SETTINGS: dict[str, dict[str, Any]] = {
    "clpm, lanes by cycle": {"lanes": "cycle", "fair_share": SHARE},
    "clpm, lanes by work": {"lanes": "work", "fair_share": SHARE},
    **{f"peek, exponent {k}": {"exponent": float(k)} for k in (1, 3, 4, 6, 8)},
    "peek, no lanes": {"lanes": "none"},
    **{f"index, bias {bias:g}": {"mean_bias": bias} for bias in (0.3, 1.0)},
}
"""Of the variants that have settings of their own."""


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


class AdmissionLanes(Lanes):
    """Clocks that live across cycles, a fair lane by arrival, charged *one for each admission*."""

    CHARGES: Final = {FAIR_LANE: 1.0 / SHARE, CACHE_LANE: -1.0 / (1.0 - SHARE)}

    def __init__(self) -> None:
        self.lead = 0.0

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        for request in queue:
            request.lane = NO_LANE
        fair, cache, lead = iter(queue), iter(cache_lane), self.lead
        ordered = []
        for _ in queue:
            lane = FAIR_LANE if lead <= 0.0 else CACHE_LANE
            request = next(r for r in (fair if lane == FAIR_LANE else cache) if r.lane == NO_LANE)
            request.lane = lane
            lead += self.CHARGES[lane]
            ordered.append(request)
        return ordered

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        self.lead += self.CHARGES.get(request.lane, 0.0)


class CachedNotFirst(ClusterResponseRatio):
    """`peek`'s order without its section of mostly cached requests."""

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        super().order(queue, cycle)  # writes the sections, and the ratio of every subtree

        def place(request: PendingRequest) -> tuple[bool, list[tuple[float, int]]]:
            """Siblings last; depth first, the subtree of the largest ratio first."""
            path = []
            node: Node | None = cycle.tree.leaf(request.request_id)
            while node is not None:
                path.append((-node.acc_ratio, node.acc_first))
                node = node.parent
            return request.section == SIBLING, path[::-1]

        return sorted(queue, key=place)


def base_of(label: str) -> str:
    """The library's label that a variant starts from; one that is no variant is its own."""
    return "lpm-nolimit+lru" if label == K_LPM else label.partition(",")[0]


def config_of(label: str) -> PeekConfig:
    return PeekConfig.from_dict({"policy": base_of(label), **SETTINGS.get(label, {})})


def planner_for(label: str, *, blocks: bool, timer: Callable[[], float] | None = None) -> Planner | None:
    """The planner behind a label, None for a stock engine; `blocks`: vLLM's kind of cache."""
    config = config_of(label)
    if config.is_stock:
        return None
    policy: AdmissionPolicy | None = None
    if label == K_LPM:
        policy = KLongestPrefix()
    elif label == "peek, cached not first":
        policy = CachedNotFirst(config.exponent)
    elif label == "peek, no guard":
        policy = config.build_policy()
        policy.needs_sharing = False
    lanes = AdmissionLanes() if label == "clpm, lanes by admission" else None
    gated = not blocks and config.waits_for_prefills and label != "peek, no gate"
    return make_planner(config, policy, lanes=lanes, gated=gated, chained=blocks, timer=timer)
