"""The published lanes, bit for bit, the dynamic share, and why they are not the default."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Arrival, Scene, cache_of, facts_of, ids, planner_of, rows_of, scenes

from peek import (
    ClpmScheduler,
    Cycle,
    CycleLanes,
    InvalidConfig,
    LaneController,
    LaneOptions,
    PeekConfig,
    PendingRequest,
    PendingTree,
)
from peek.policy.lanes import FAIR_LANE, FairShare, target_share
from peek.policy.sections import PIONEER, SIBLING, WARM

CYCLE = Cycle(PendingTree(), NOW)


def waiting(n: int, section: int = WARM) -> list[PendingRequest]:
    """`n` requests in arrival order."""
    queue = [PendingRequest(f"r{i}", [1], float(i)) for i in range(n)]
    for request in queue:
        request.section = section
    return queue


def picks(lanes: CycleLanes, n: int) -> str:
    """Which lane each place of the order comes from: c or f."""
    queue = waiting(n)
    return "".join("cf"[request.lane] for request in lanes.interleave(queue[::-1], queue, CYCLE))


# -- stride interleave --------------------------------------------------------------------------------


def test_literal_picks_at_alpha_0_7() -> None:
    """Passes at 10/7, 20/7, ... and 10/3, 20/3, ...: three of ten are fair, the cache lane on ties."""
    assert picks(CycleLanes(0.3), 9) == "ccfccfccc"
    assert picks(CycleLanes(0.3), 20).count("f") == 6


@pytest.mark.parametrize(
    ("fair_share", "expected"),
    [(0.5, "cfcfcfcf"), (0.25, "cccfcccf"), (0.2, "ccccfccccf"), (0.1, "ccccccccc"), (0.6, "fcfc")],
)
def test_literal_picks_of_other_shares(fair_share: float, expected: str) -> None:
    assert picks(CycleLanes(fair_share), len(expected)) == expected


def stride(queue: list[PendingRequest], cache_lane: list[PendingRequest], fair_share: float) -> list[str]:
    """Line 20 of Algorithm 2: the lane with the smaller pass value picks its next one not yet placed."""
    fair_lane = sorted(queue, key=lambda request: (request.section, request.arrival_time, request.sequence))
    lanes = [(cache_lane, 1.0 / (1.0 - fair_share)), (fair_lane, 1.0 / fair_share)]
    passes = [step for _, step in lanes]
    order: list[str] = []
    while len(order) < len(queue):
        chosen = 0 if passes[0] <= passes[1] else 1
        lane, step = lanes[chosen]
        passes[chosen] += step
        order.append(next(request.request_id for request in lane if request.request_id not in order))
    return order


@given(
    sections=st.lists(st.sampled_from([WARM, PIONEER, SIBLING]), min_size=1, max_size=16),
    fair_share=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_the_interleave_is_that_of_the_paper(sections: list[int], fair_share: float, seed: int) -> None:
    queue = waiting(len(sections))
    for request, section in zip(queue, sections, strict=True):
        request.section = section
    cache_lane = list(queue)
    Random(seed).shuffle(cache_lane)
    ordered = CycleLanes(fair_share).interleave(cache_lane, queue, CYCLE)
    assert ids(ordered) == stride(queue, cache_lane, fair_share)


@given(scene=scenes(min_size=2, max_size=9))
def test_the_label_interleaves_group_major_with_sections_and_arrival(scene: Scene) -> None:
    """First cycle of `clpm+gm+dl`, share moved one step from 0.3; its ties are checked elsewhere."""
    planner = scene.planner("clpm+gm+dl")
    order = planner.plan(scene.cache(), scene.now)
    if not any(fact.cluster is not None or fact.cached_len > 0 for fact in facts_of(scene)):
        return
    prepared = scene.prepare()
    cache_lane = ClpmScheduler(group_major=True).order(prepared.queue, prepared.cycle)
    lanes = CycleLanes(0.3, dynamic=True)
    assert order == ids(lanes.interleave(cache_lane, prepared.queue, prepared.cycle))
    fair = [planner.tree.request(name) for name in order if planner.tree.request(name).lane == FAIR_LANE]
    assert fair == sorted(fair, key=lambda request: (request.section, request.arrival_time, request.sequence))


def test_clocks_start_anew_every_cycle() -> None:
    lanes = CycleLanes(0.3)
    first = picks(lanes, 9)
    queue = waiting(2)
    lanes.interleave(queue, queue, CYCLE)
    lanes.charge(queue[0], 10**6)
    assert picks(lanes, 9) == first


# -- the flaw, and the lanes that do not have it ------------------------------------------------------


def starve(config: PeekConfig, cycles: int) -> int | None:
    """The cycle in which an old cold sibling is admitted, one admission a cycle; None for never.

    Every cycle a warm request of another tenant arrives and takes the place of the one admitted.
    """
    warm, cold = (1,) * 100, (2,) * 100
    cache = cache_of([("", warm), ("", (3,) * 100)])
    planner = planner_of([Arrival("pioneer", (*cold, 1)), Arrival("old", (*cold, 2), 1.0)], config)
    for i in range(2):
        planner.add(PendingRequest(f"warm-{i}", [*warm, i], 2.0))
    for cycle in range(cycles):
        planner.add(PendingRequest(f"next-{cycle}", [*warm, 100 + cycle], 3.0 + cycle))
        chosen = planner.plan(cache, 3.0 + cycle)[0]
        if chosen == "old":
            return cycle
        planner.remove(chosen)
    return None


def test_the_published_lanes_never_reach_the_fair_one_when_one_is_admitted_a_cycle() -> None:
    """The known flaw: the first pick of every cycle is the cache lane's, which is warm for ever."""
    assert picks(CycleLanes(0.3), 1) == picks(CycleLanes(0.49), 1) == "c"
    assert starve(PeekConfig("clpm+gm", lanes=LaneOptions("cycle", 0.3)), 500) is None
    assert starve(PeekConfig("clpm+gm", lanes=LaneOptions("cycle", 0.3, True)), 500) is None


@pytest.mark.parametrize("admission", ["clpm+gm", "clpm", "lpm"])
def test_work_charged_lanes_reach_it(admission: str) -> None:
    """Bound: one cold pick of at most 101 tokens lets the cache lane have 101 / 0.3 tokens, 1 each."""
    cycle = starve(PeekConfig(admission, lanes=LaneOptions("work", 0.3)), 500)
    assert cycle is not None
    assert cycle <= 2 * 101 / 0.3


# -- the dynamic share --------------------------------------------------------------------------------


def mixed(singletons: list[float], clustered: list[float]) -> list[PendingRequest]:
    """Requests with these arrival times, in order; a clustered one has a cluster."""
    made = []
    for i, (arrival, single) in enumerate(
        sorted([(a, True) for a in singletons] + [(a, False) for a in clustered])
    ):
        request = PendingRequest(f"r{i}", [1], arrival)
        request.cluster_id = 0 if single else 7
        made.append(request)
    return made


@pytest.mark.parametrize(
    ("singletons", "clustered", "expected"),
    [
        ([], [0.0, 0.0], 0.15),  # a queue of clusters, however old
        ([10.0], [0.0, 0.0, 0.0], 0.275),  # 1/4 singletons that have just come
        ([9.0], [0.0, 0.0, 0.0], 0.425),  # ... that have waited half the SLO
        ([8.0], [0.0, 0.0, 0.0], 0.575),  # ... all of it
        ([0.0], [0.0, 0.0, 0.0], 0.575),  # ... five times: pressure is at most 1
        ([9.0, 9.5], [0.0, 0.0], 0.55),  # the oldest singleton counts
        ([10.0], [], 0.60),  # 0.65, clamped
        ([0.0, 0.0], [], 0.60),  # 0.95, clamped
        ([12.0], [], 0.60),  # not yet arrived on this clock: no pressure below 0
        ([12.0], [1.0, 1.0, 1.0], 0.275),
    ],
)
def test_the_target_share_literally(singletons: list[float], clustered: list[float], expected: float) -> None:
    assert target_share(mixed(singletons, clustered), 10.0, 2.0) == pytest.approx(expected)


WAITS = st.lists(st.floats(0.0, 100.0), max_size=6)


@given(
    cycles=st.lists(st.tuples(WAITS, WAITS), max_size=8),
    slo=st.floats(0.1, 60.0),
    start=st.floats(0.01, 0.99),
)
def test_the_share_is_the_smoothed_formula(
    cycles: list[tuple[list[float], list[float]]], slo: float, start: float
) -> None:
    share = FairShare(start, True, slo)
    expected = start
    for singletons, clustered in cycles:
        queue = mixed([100.0 - wait for wait in singletons], [100.0 - wait for wait in clustered])
        share.update(queue, 100.0)
        if queue:
            pressure = min(1.0, max([100.0 - (100.0 - wait) for wait in singletons], default=0.0) / slo)
            formula = 0.15 + 0.5 * len(singletons) / len(queue) + 0.3 * pressure
            expected = 0.7 * expected + 0.3 * min(0.60, max(0.10, formula))
        assert share.value == pytest.approx(expected)
        assert 0.0 < share.value < 1.0


@pytest.mark.parametrize("kind", [LaneController, CycleLanes])
def test_a_fixed_share_stays(kind: type[CycleLanes]) -> None:
    lanes = kind(0.3)
    queue = mixed([0.0], [])
    lanes.interleave(queue, queue, CYCLE)
    assert lanes.share.value == 0.3


@pytest.mark.parametrize("kind", [LaneController, CycleLanes])
def test_a_dynamic_share_moves_once_a_cycle(kind: type[CycleLanes]) -> None:
    lanes = kind(0.3, dynamic=True, slo_s=2.0)
    queue = mixed([NOW - 1.0], [NOW, NOW, NOW])
    for expected in (0.3375, 0.36375, 0.382125):  # 0.7 x + 0.3 * 0.425
        lanes.interleave(queue, queue, CYCLE)
        assert lanes.share.value == pytest.approx(expected)
    lanes.interleave([], [], CYCLE)
    assert lanes.share.value == pytest.approx(0.382125)


@pytest.mark.parametrize("lanes", ["cycle", "work"])
def test_a_queue_of_one_cluster_lowers_the_share(lanes: str) -> None:
    """0.15 is the target when nobody is alone; singletons would raise it to 0.6."""
    lanes = LaneOptions(lanes, dynamic_share=True).build()
    start = lanes.share.value
    prepared = Scene(rows_of([1] * 40, [1] * 40, [1] * 40)).prepare()
    lanes.interleave(prepared.queue, prepared.queue, prepared.cycle)
    assert lanes.share.value == pytest.approx(0.7 * start + 0.3 * 0.15)


@pytest.mark.parametrize("kind", [LaneController, CycleLanes])
@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_absurd_shares(kind: type[CycleLanes], share: float) -> None:
    with pytest.raises(InvalidConfig, match=f"fair_share is {share}"):
        kind(share)


@pytest.mark.parametrize("kind", [LaneController, CycleLanes])
@pytest.mark.parametrize("slo_s", [0.0, -1.0, float("nan"), float("inf")])
def test_absurd_slos(kind: type[CycleLanes], slo_s: float) -> None:
    with pytest.raises(InvalidConfig, match=f"slo_s is {slo_s}"):
        kind(0.3, slo_s=slo_s)
