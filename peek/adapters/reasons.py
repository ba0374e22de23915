"""Why a request stands where it stands: facts of the plan, never of the prompt."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from peek.planner import LazyPlan, Plan
from peek.planner.plan import ORDERED
from peek.policy.lanes import CACHE_LANE, FAIR_LANE
from peek.request import PendingRequest
from peek.trie.pending_tree import Cluster

logger = logging.getLogger("peek")

_LANES: Final = {CACHE_LANE: "cache", FAIR_LANE: "fair"}


def facts(
    request: PendingRequest, cluster: Cluster | None, plan: Plan | LazyPlan | None, now: float, earlier: int
) -> dict[str, Any]:
    """What a plan knew of a request that waits.  O(place in the plan).

    Args:
        cluster: whom it shares a prefix with, None for nobody.
        plan: the last one, None before the first.
        now: the time it was made at, on the clock of `arrival_time`.
        earlier: requests that arrived before it and still wait.
    """
    places = enumerate(plan or (), 1)
    place = next((number for number, name in places if name == request.request_id), None)
    return {
        "request_id": request.request_id,
        "place": place,
        "place_by_arrival": earlier + 1,
        "waited_s": round(max(now - request.arrival_time, 0.0), 3),
        "num_tokens": int(request.num_tokens),
        "cached_len": int(request.cached_len),
        "coming_len": int(request.coming_len),
        "cluster_size": 1 if cluster is None else int(cluster.size),
        "cluster_depth": 0 if cluster is None else int(cluster.depth),
        "lane": _LANES.get(int(request.lane), "none"),
        "reason": _reason(request, cluster, plan, place),
    }


def _reason(
    request: PendingRequest, cluster: Cluster | None, plan: Plan | LazyPlan | None, place: int | None
) -> str:
    if plan is None or place is None:
        return "no plan has been made since it came"
    if plan.reason != ORDERED:
        return plan.reason
    if request.lane == FAIR_LANE:
        return "the fair lane's turn: it is the oldest there"
    if request.cached_len > 0:
        return f"{request.cached_len} of its {request.num_tokens} prompt tokens are cached"
    if request.coming_len > 0:
        return f"a prefill under way will have cached {request.coming_len} of its tokens"
    if cluster is not None:
        return f"it shares a prefix with {cluster.size - 1} others that wait"
    return "it shares nothing with anybody that waits, and nothing of it is cached"


LINES_A_SECOND: Final = 10
"""Admissions that are logged in any one second: enough to read, too few to slow an engine or fill a disk."""


class Decisions:
    """The last so many admissions with their facts.  A sample of them is logged: the first of each second.

    Args:
        keep: how many; 0 keeps and logs none.
        clock: seconds; never goes back.
    """

    def __init__(self, keep: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.keep = keep
        self._last: deque[dict[str, Any]] = deque(maxlen=keep)
        self._clock = clock
        self._second = -inf
        """When the second began in which lines are counted."""
        self._lines = 0
        self._left_out = 0

    def note(self, decision: dict[str, Any]) -> None:
        """One request was admitted."""
        self._last.append(decision)
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        if self._lines >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            logger.info(
                "peek: %d admissions before the next are not in the log, which has %d a second",
                self._left_out,
                LINES_A_SECOND,
            )
            self._left_out = 0
        logger.info("peek: admitted %s", json.dumps(decision))

    def all(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return list(self._last)

    def of(self, request_id: str) -> dict[str, Any] | None:
        """The last decision on a request, None if it is not among those kept."""
        found: Iterable[dict[str, Any]] = (d for d in reversed(self._last) if d["request_id"] == request_id)
        return next(iter(found), None)
