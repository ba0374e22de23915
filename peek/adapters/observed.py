"""Observes a planner at work: how long plans take, what they gain, and why.

An `ObservedPlanner` takes the place of an adapter's planner; its `Observations` outlive the adapter.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from peek.planner import LazyPlan, Plan, Planner
from peek.planner.plan import ORDERED, Upcoming, first_of
from peek.policy.lanes import CACHE_LANE, FAIR_LANE
from peek.request import PendingRequest, require_tokens
from peek.trie.pending_tree import Cluster

if TYPE_CHECKING:
    from peek.protocols import CacheView

logger = logging.getLogger("peek")

PLAN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
PLACES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
TOKENS: Final = (-16384, -4096, -1024, -256, -64, -0.001, 0, 64, 256, 1024, 4096, 16384)
"""Values are whole numbers.  0 has a narrow bucket of its own, so that a quantile that falls there is 0."""

IN_SHADOW: Final = "in shadow the order of arrival stands"

LINES_A_SECOND: Final = 10
"""Most admissions logged in one second: enough to read, and too few to slow an engine or fill a disk."""

_LANES: Final = {CACHE_LANE: "cache", FAIR_LANE: "fair"}


class Tally:
    """A histogram: `counts` of values up to each bound and above the one before, then of those above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += 1
        self.sum += value


class Decisions:
    """The `last` admissions, `keep` at most; at most `LINES_A_SECOND` are logged, none if `keep` is 0."""

    def __init__(self, keep: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.keep = keep
        self.last: deque[dict[str, Any]] = deque(maxlen=keep)
        self._clock = clock
        self._second = -inf
        """Start of the second in which lines are counted."""
        self._lines = 0
        self._left_out = 0

    def note(self, decision: dict[str, Any]) -> None:
        self.last.append(decision)
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        if self._lines >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            text = "peek: %d admissions before the next are not in the log, which has %d a second"
            logger.info(text, self._left_out, LINES_A_SECOND)
            self._left_out = 0
        logger.info("peek: admitted %s", json.dumps(decision))

    def of(self, request_id: str) -> dict[str, Any] | None:
        """Return the last decision on a request; None if it is no longer kept."""
        return next((each for each in reversed(self.last) if each["request_id"] == request_id), None)


class Announcer:
    """Announces the next `k` requests of each plan, only when they change.

    It calls `tell(news, gone)`: those of the `k` requests that are new or need more or less than before, in
    the plan's order, and the ids that are no longer among them.
    """

    def __init__(self, k: int, tell: Callable[[list[Upcoming], list[str]], object]) -> None:
        require_tokens("k", k)
        self.k = k
        self._tell = tell
        self._told: dict[str, Upcoming] = {}

    def note(self, upcoming: list[Upcoming]) -> None:
        """Take the head of a new plan.  O(k)."""
        now = {each.request_id: each for each in upcoming}
        news = [each for each in upcoming if self._told.get(each.request_id) != each]
        gone = [request_id for request_id in self._told if request_id not in now]
        self._told = now
        if news or gone:
            self._tell(news, gone)


class Observations:
    """What was seen of the planners of one attachment.

    Attributes:
        plan_s: seconds of each plan, on the planner's timer.
        gains: earlier arrivals that still waited at each admission, i.e. places that a request moved forward.
        surprises: cached tokens found in the prompt of an admitted request, minus those expected.
        shadow_reordered: plans in shadow mode that differ from arrival order.
        decisions: the last `explain` admissions, with reasons.
        announcer: receives new plans that are in force; None without a listener.
    """

    def __init__(self, explain: int = 0) -> None:
        self.plan_s = Tally(PLAN_SECONDS)
        self.gains = Tally(PLACES)
        self.surprises = Tally(TOKENS)
        self.shadow_reordered = 0
        self.decisions = Decisions(explain)
        self.announcer: Announcer | None = None

    def announce(self, plan: Plan | LazyPlan, planner: Planner) -> None:
        """Announce a new plan that is in force.  A listener that fails is logged and dropped."""
        announcer = self.announcer
        if announcer is None:
            return
        upcoming = first_of(plan, announcer.k, planner)
        try:
            announcer.note(upcoming)
        except Exception:
            self.announcer = None
            logger.exception("peek: who is up soon is told no more")


class ObservedPlanner:
    """A `Planner` whose calls are observed; members that are not defined here are the planner's own.

    With `shadow` it plans and counts as usual, but returns arrival order and no demand.  An arrival and an
    admission cost O(log waiting) more.
    """

    def __init__(self, planner: Planner, seen: Observations) -> None:
        self.observed = planner
        self._seen = seen
        self._numbers: dict[str, int] = {}
        """Waiting requests, by number of arrival."""
        self._in_order: SortedList[int] = SortedList()
        """The numbers of the requests that are not held."""
        self.arrivals = 0
        self.shadow = False
        self._now = 0.0
        self._plan_s = 0.0
        """Total seconds of all plans when the last one was noted."""
        self._last: Plan | LazyPlan | None = None
        self._answered: Plan | None = None
        self._answer = Plan()
        self._lazy_answer = LazyPlan.of(self._answer)
        self.order_matters = planner.order_matters
        self.request = planner.request
        self.needs = planner.needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observed, name)

    def __len__(self) -> int:
        return len(self.observed)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.observed

    @property
    def evicts(self) -> bool:
        return self.observed.evicts and not self.shadow

    def eviction_score(self, node_id: int) -> float:
        return 0.0 if self.shadow else self.observed.eviction_score(node_id)

    def add(self, request: PendingRequest, held: bool = False) -> None:
        self.observed.add(request, held)
        self.arrivals += 1
        self._numbers[request.request_id] = self.arrivals
        if not held:
            self._in_order.add(self.arrivals)

    def remove(self, request_id: str, admitted: bool = True, uncached_tokens: int | None = None) -> int:
        request = self.observed.request(request_id)
        expected, tokens = request.cached_len, request.num_tokens
        decision = None
        if admitted and self._seen.decisions.keep:
            decision = self._facts(request)
        cost = self.observed.remove(request_id, admitted, uncached_tokens)
        if decision is not None:
            self._seen.decisions.note({**decision, "uncached": cost})
        number = self._numbers.pop(request_id)
        if number not in self._in_order:  # it was held: no plan has placed it
            return cost
        if admitted:
            self._seen.gains.note(self._in_order.index(number))
            if uncached_tokens is not None:
                self._seen.surprises.note(int(tokens - uncached_tokens - expected))
        self._in_order.remove(number)
        return cost

    def hold(self, request_id: str) -> None:
        """`Planner.hold`; while it is held, no request counts as overtaking it."""
        self.observed.hold(request_id)
        self._in_order.remove(self._numbers[request_id])

    def resume(self, request_id: str, key: object, tail: int = 0) -> None:
        self.observed.resume(request_id, key, tail)
        self._in_order.add(self._numbers[request_id])

    def plan(self, cache: CacheView, now: float) -> Plan:
        plan = self.observed.plan(cache, now)
        new = self._note(plan, now)
        if not self.shadow:
            if new:
                self._seen.announce(plan, self.observed)
            return plan
        self._seen.shadow_reordered += new and plan.reordered
        if plan is not self._answered:  # one answer per plan, because adapters compare by identity
            held = self.observed.held
            ids = [name for name in self._numbers if name not in held]
            self._answered, self._answer = plan, Plan(ids, False, IN_SHADOW, stood_aside=True)
            self._lazy_answer = LazyPlan.of(self._answer)
        return self._answer

    def lazy_plan(self, cache: CacheView, now: float) -> LazyPlan:
        """`Planner.lazy_plan`; in shadow mode it makes the whole plan, to see whether that differs."""
        if self.shadow:
            self.plan(cache, now)
            return self._lazy_answer
        plan = self.observed.lazy_plan(cache, now)
        if self._note(plan, now):
            self._seen.announce(plan, self.observed)
        return plan

    def _note(self, plan: Plan | LazyPlan, now: float) -> bool:
        """Return whether this plan is new; a standing plan is the same object."""
        if plan is self._last:
            return False
        self._last = plan
        self._now = now
        before, self._plan_s = self._plan_s, self.observed.totals()["plan_s"]
        self._seen.plan_s.note(self._plan_s - before)
        return True

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Return why a request has its place, or had it if it was admitted recently.  O(waiting)."""
        if request_id not in self.observed:
            return self._seen.decisions.of(request_id)
        return {**self._facts(self.observed.request(request_id)), "uncached": None}

    def _facts(self, request: PendingRequest) -> dict[str, Any]:
        earlier = self._in_order.bisect_left(self._numbers[request.request_id])
        cluster = self.observed.cluster(request.request_id)
        return {**facts(request, cluster, self._last, self._now, earlier), "shadow": self.shadow}


def facts(
    request: PendingRequest, cluster: Cluster | None, plan: Plan | LazyPlan | None, now: float, earlier: int
) -> dict[str, Any]:
    """Return what a plan knew of a waiting request, without its prompt.  O(place in the plan).

    `cluster` is None if it shares nothing.  `plan` is the last plan, made at `now` on the clock of
    `arrival_time`.  `earlier` is the number of requests that arrived before it and still wait.
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
