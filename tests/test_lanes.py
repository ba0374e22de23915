"""LaneController: the bound it states, under every pattern of admission.

An `Engine` admits the first few of each order and reports what they cost; the order of the cache lane is
anything at all.  In any window of admissions the fair lane must have got its share of the uncached
tokens, less one request's cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Scene, cache_of, ids, longest, queues, rows_of

from peek import (
    AdmissionPolicy,
    ClpmScheduler,
    Cycle,
    CycleLanes,
    LaneController,
    LaneOptions,
    PeekConfig,
    PeekPolicy,
    PendingRequest,
    PendingTree,
    Planner,
)
from peek.policy.lanes import CACHE_LANE, FAIR_LANE

SHARES = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.9])
COSTS = st.one_of(st.integers(1, 10), st.sampled_from([100, 5000, 50_000]))
CYCLE = Cycle(PendingTree(), NOW)


def waiting(request_id: str, cost: int, arrival_time: float = 0.0) -> PendingRequest:
    """A request that shares nothing and is expected to cost `cost` uncached tokens."""
    return PendingRequest(request_id, [1], arrival_time, num_tokens=cost)


@dataclass
class Admission:
    request: PendingRequest
    lane: int
    cost: int
    waited: list[PendingRequest]
    """Who waited, in arrival order, when it was chosen."""


class Engine:
    """Admits from the orders of lanes; the cache lane is shuffled anew in every cycle."""

    def __init__(self, lanes: LaneController, seed: int) -> None:
        self.lanes = lanes
        self.random = Random(seed)
        self.queue: list[PendingRequest] = []
        self.log: list[Admission] = []
        self.arrived = 0

    def arrive(self, costs: list[int]) -> None:
        for cost in costs:
            self.queue.append(waiting(f"r{self.arrived}", cost, float(self.arrived)))
            self.arrived += 1

    def cycle(self, admit: int, real_costs: list[int] | None = None) -> None:
        """Admit the first `admit`; each costs what was expected, or the next of `real_costs`."""
        cache_lane = list(self.queue)
        self.random.shuffle(cache_lane)
        ordered = self.lanes.interleave(cache_lane, list(self.queue), CYCLE)
        assert sorted(ids(ordered)) == sorted(ids(self.queue))
        for request in ordered[:admit]:
            cost = request.num_tokens if real_costs is None else real_costs.pop()
            self.log.append(Admission(request, request.lane, cost, list(self.queue)))
            self.lanes.charge(request, cost)
            self.queue.remove(request)

    def assert_bound(self, share: float) -> None:
        """Over every window: |fair tokens - share * tokens| <= the largest cost of one request."""
        largest = max((entry.cost for entry in self.log), default=0)
        ahead = highest = lowest = 0.0  # fair tokens - share * tokens, since the start
        for entry in self.log:
            ahead += entry.cost * ((entry.lane == FAIR_LANE) - share)
            assert ahead - highest >= -largest - 1e-6, "the fair lane got too little"
            assert ahead - lowest <= largest + 1e-6, "the cache lane got too little"
            highest, lowest = max(highest, ahead), min(lowest, ahead)

    def assert_oldest_waits_little(self, share: float) -> None:
        """From when a request is the oldest, it is admitted within one cost / share uncached tokens."""
        largest = max((entry.cost for entry in self.log), default=0)
        work: dict[str, int] = {}
        for entry in self.log:
            oldest = entry.waited[0].request_id
            assert work.get(oldest, 0) <= largest / share + 1e-6
            work[oldest] = work.get(oldest, 0) + entry.cost


CYCLES = st.lists(st.tuples(st.lists(COSTS, max_size=5), st.integers(1, 6)), min_size=1, max_size=25)
ALL = 10**6


@given(share=SHARES, cycles=CYCLES, seed=st.integers(0, 99))
def test_the_share_holds_for_any_batches_that_cost_what_was_expected(
    share: float, cycles: list[tuple[list[int], int]], seed: int
) -> None:
    engine = Engine(LaneController(share), seed)
    for arrivals, admit in cycles:
        engine.arrive(arrivals)
        engine.cycle(ALL if admit == 6 else admit)
    engine.assert_bound(share)
    engine.assert_oldest_waits_little(share)


@given(
    share=SHARES,
    arrivals=st.lists(st.tuples(st.lists(COSTS, max_size=3), COSTS), max_size=40),
    seed=st.integers(0, 99),
)
def test_the_share_holds_one_at_a_time_whatever_it_really_cost(
    share: float, arrivals: list[tuple[list[int], int]], seed: int
) -> None:
    engine = Engine(LaneController(share), seed)
    for costs, real in arrivals:
        engine.arrive(costs)
        engine.cycle(1, [real])
    while engine.queue:
        engine.cycle(1, [1 + engine.arrived % 7])
    engine.assert_bound(share)
    engine.assert_oldest_waits_little(share)


@given(share=SHARES, rows=queues(min_size=3), seed=st.integers(0, 99))
def test_the_share_holds_behind_a_planner(share: float, rows: list, seed: int) -> None:
    """Shared prompts, a cache that keeps all it has seen, one admission a cycle."""
    planner = Planner(PeekConfig("lpm-nolimit", lanes=LaneOptions("work", share)))
    engine = Engine(LaneController(share), seed)
    cached = []
    arrivals = list(rows)
    while arrivals or len(planner):
        for row in arrivals[: engine.random.randint(0 if len(planner) else 1, 3)]:
            planner.add(row.request())
            arrivals.remove(row)
        oldest = planner.tree.requests()
        chosen = planner.tree.request(planner.plan(cache_of(cached), NOW)[0])
        row = next(row for row in rows if row.request_id == chosen.request_id)
        cost = max(1, chosen.num_tokens - longest(cached, row.place))
        engine.log.append(Admission(chosen, chosen.lane, cost, oldest))
        planner.remove(chosen.request_id, uncached_tokens=cost)
        cached.append(row.place)
    engine.assert_bound(share)
    engine.assert_oldest_waits_little(share)
    assert planner.stats.fair_admitted == sum(entry.lane == FAIR_LANE for entry in engine.log)


@given(
    share=SHARES,
    costs=st.lists(COSTS, min_size=1, max_size=20),
    cuts=st.lists(st.integers(1, 4), min_size=20),
)
def test_clocks_go_on_from_cycle_to_cycle(share: float, costs: list[int], cuts: list[int]) -> None:
    """Cut into cycles in whatever way, the same requests are admitted in the same order."""
    admitted: list[list[str]] = []
    for batches in (cuts, [ALL]):
        lanes = LaneController(share)
        queue = [waiting(f"r{i}", cost, float(i)) for i, cost in enumerate(costs)]
        names: list[str] = []
        for batch in batches:
            ordered = lanes.interleave(queue[::-1], list(queue), CYCLE)[:batch]
            for request in ordered:
                names.append(request.request_id)
                lanes.charge(request, request.num_tokens)
                queue.remove(request)
        admitted.append(names)
    assert sorted(admitted[0]) == sorted(admitted[1])
    assert admitted[0] == admitted[1]


@given(share=SHARES, costs=st.lists(COSTS, min_size=1, max_size=20))
def test_planning_costs_nothing(share: float, costs: list[int]) -> None:
    lanes = LaneController(share)
    queue = [waiting(f"r{i}", cost, float(i)) for i, cost in enumerate(costs)]
    first = ids(lanes.interleave(queue[::-1], queue, CYCLE))
    assert ids(lanes.interleave(queue[::-1], queue, CYCLE)) == first
    assert lanes.lead == 0.0


def lanes_of(lanes: LaneController | CycleLanes, costs: list[int]) -> str:
    """The lanes of one order, first to last: f and c.  The cache lane is the reverse of arrival."""
    queue = [waiting(f"r{i}", cost, float(i)) for i, cost in enumerate(costs)]
    return "".join("cf"[request.lane] for request in lanes.interleave(queue[::-1], queue, CYCLE))


def test_literal_orders() -> None:
    assert lanes_of(LaneController(0.5), [10] * 6) == "fcfcfc"
    assert lanes_of(LaneController(0.25), [10] * 8) == "fcccfccc"
    assert lanes_of(LaneController(0.5), [90, *[10] * 11]) == "f" + "c" * 9 + "fc"  # a cold pick of nine warm


def test_the_fair_lane_is_arrival_and_skips_whom_the_cache_lane_took() -> None:
    queue = [waiting(f"r{i}", 10, float(i)) for i in range(4)]
    lane = [queue[1], queue[3], queue[0], queue[2]]
    ordered = LaneController(0.5).interleave(lane, queue, CYCLE)
    assert ids(ordered) == ["r0", "r1", "r2", "r3"]
    assert [request.lane for request in ordered] == [FAIR_LANE, CACHE_LANE] * 2


def test_a_cluster_is_expected_to_pay_its_prefix_once() -> None:
    """Of four times 100 + 1 tokens the first costs 101, for which the cache lane gets the other three."""
    prepared = Scene(rows_of(*[[1] * 100 + [i] for i in range(4)])).prepare()
    ordered = LaneController(0.5).interleave(prepared.queue[::-1], prepared.queue, prepared.cycle)
    assert ids(ordered) == ["r0", "r3", "r2", "r1"]
    assert [request.lane for request in ordered] == [FAIR_LANE, CACHE_LANE, CACHE_LANE, CACHE_LANE]
    apart = Scene(rows_of(*[[i] * 101 for i in range(4)])).prepare()
    ordered = LaneController(0.5).interleave(apart.queue[::-1], apart.queue, apart.cycle)
    assert [request.lane for request in ordered] == [FAIR_LANE, CACHE_LANE, FAIR_LANE, CACHE_LANE]


@pytest.mark.parametrize("policy", [PeekPolicy, ClpmScheduler])
def test_lanes_know_the_clusters_under_every_policy(policy: type[AdmissionPolicy]) -> None:
    """`peek` itself does not read clusters; its lanes do."""
    planner = Planner(policy=policy(), lanes=LaneController(fair_share=0.5))
    for row in rows_of([1] * 100 + [5], [1] * 100 + [6], [2] * 50):
        planner.add(row.request())
    planner.plan(cache_of([]), NOW)
    assert [r.cluster_size for r in planner.tree.requests()] == [2, 2, 1]


def test_a_queue_without_sharing_builds_up_no_debt() -> None:
    """Stock order is the fair lane's: what it admits is no work of the cache lane to make up for."""
    planner = Planner(PeekConfig("clpm+gm", lanes=LaneOptions("work", 0.1)))
    for i in range(50):
        planner.add(PendingRequest(f"alone-{i}", [100 + i] * 100, float(i)))
        assert planner.plan(cache_of([]), NOW) == [f"alone-{i}"]
        planner.remove(f"alone-{i}", uncached_tokens=100)
    for i in range(20):
        planner.add(PendingRequest(f"r{i}", [1 + i % 2] * 50 + [i], 50.0 + i))
    order = planner.plan(cache_of([]), NOW)
    fair = [planner.tree.request(name).lane == FAIR_LANE for name in order[:10]]
    assert sum(fair) <= 5, "the fair lane alone is served"


@pytest.mark.parametrize("cached", [0, -5])
def test_an_admission_costs_a_token_at_least(cached: int) -> None:
    """Else a lane whose requests are all cached would be served for ever."""
    lanes = LaneController(0.5)
    oldest = waiting("oldest", 10, 0.0)
    lanes.interleave([oldest], [oldest], CYCLE)
    lanes.charge(oldest, cached)
    assert lanes.lead == 2.0


def test_who_was_in_no_order_moves_no_clock() -> None:
    lanes = LaneController(0.5)
    lanes.charge(waiting("admitted before the first plan", 1000), 1000)
    assert lanes.lead == 0.0
