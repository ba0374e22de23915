"""Times the dual-walk and whole scheduling cycles against one cache match per request."""

from __future__ import annotations

import numpy as np
import pytest

import peek
from bench.measure import Measure
from bench.planners import make_planner
from bench.worksets import WorkSet, half_cached, rig_of, work_set
from peek.simulation.caches import RadixCache
from peek.timing import NOW, best_of, match_each

LABELS = ("peek", "clpm", "clpm+gm+dl+pe", "lpm-nolimit+lru", "hrrn+lru")
ROUNDS = {"A": 500, "B": 300, "C": 300, "D": 60, "D10": 500}
WHOLE_MAX_S = {"A": 1e-3, "D": 12e-3}
ONE_ARRIVAL_MAX_S = {"A": 0.3e-3, "D": 0.0}


def naive_s(work: WorkSet, cache: RadixCache) -> float:
    """Return the time of one match per request, in seconds; changes recency and may split nodes."""
    keys = work.packed()
    return best_of(10, lambda: match_each(cache, keys))


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "unchanged"])
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_walk(measure: Measure, name: str, changed: bool) -> None:
    work = work_set(name)
    cache = half_cached(work)
    yardstick_s = naive_s(work, cache)
    tree = peek.PendingTree()
    for request_id, key in zip(work.ids(), work.packed(), strict=True):
        tree.insert(request_id, key)
    walk = peek.DualWalk(tree)

    def setup() -> tuple[RadixCache]:
        cache.version += changed
        return (cache,)

    what = f"dual-walk, {name}, cache {'changed' if changed else 'unchanged'}"
    measure(what, walk.walk, setup, rounds=ROUNDS[name], yardstick="match each", yardstick_s=yardstick_s)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", ["A", "D"])
def test_whole_cycle(measure: Measure, name: str, label: str) -> None:
    """One request admitted, one arrived, and a changed cache: nothing of the last cycle can be used."""
    work = work_set(name)
    rig = rig_of(work, label)
    yardstick_s = naive_s(work, half_cached(work))

    def setup() -> tuple[()]:
        rig.turn_over()
        return ()

    measure(
        f"whole cycle, {name}, {label}",
        rig.cycle,
        setup,
        rounds=ROUNDS[name],
        yardstick="match each",
        yardstick_s=yardstick_s,
        max_s=WHOLE_MAX_S[name],
    )


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", ["A", "D"])
def test_one_arrival(measure: Measure, name: str, label: str) -> None:
    """One request arrived, and the cache is unchanged."""
    rig = rig_of(work_set(name), label)

    def setup() -> tuple[()]:
        rig.one_arrival()
        return ()

    what = f"one arrival, {name}, {label}"
    measure(what, rig.cycle, setup, rounds=ROUNDS[name], max_s=ONE_ARRIVAL_MAX_S[name])


@pytest.mark.parametrize("label", LABELS)
def test_growth(measure: Measure, label: str) -> None:
    """Ten times the requests and prefixes, with the same sharing."""
    small = rig_of(work_set("D10"), label)
    large = rig_of(work_set("D"), label)
    small_s = float("inf")
    for _ in range(ROUNDS["D10"]):
        small.turn_over()
        small_s = min(small_s, best_of(1, small.cycle))

    def setup() -> tuple[()]:
        large.turn_over()
        return ()

    measure(
        f"growth N=1000 to 10000, {label}",
        large.cycle,
        setup,
        rounds=ROUNDS["D"],
        yardstick="N=1000",
        yardstick_s=small_s,
        max_ratio=12.0,
    )


def gated_planner(n: int, nested: bool) -> peek.Planner:
    """Make a gated planner with `n` waiting requests: nested prompts, or prompts in 50 groups."""
    planner = make_planner(peek.PeekConfig(), gated=True)
    long = np.arange(8192, dtype=np.int32)
    for i in range(n):
        key = long[: 8192 - n + i + 1]
        if not nested:
            key = np.append(long[:4096] + 100_000 * (i % 50), 10**7 + i).astype(np.int32)
        planner.add(peek.PendingRequest(f"request-{i}", key, float(i)))
    return planner


def test_nested_prompts(measure: Measure) -> None:
    """A chain of 4,000 nodes takes at most three times as long as 50 groups of 80."""
    cache = RadixCache(1)
    groups = gated_planner(4000, nested=False)
    yardstick_s = best_of(10, lambda: groups.plan(cache, NOW))
    chain = gated_planner(4000, nested=True)

    def setup() -> tuple[RadixCache, float]:
        return (cache, NOW)

    measure(
        "plan, 4,000 nested prompts, gate",
        chain.plan,
        setup,
        rounds=30,
        yardstick="50 groups",
        yardstick_s=yardstick_s,
        max_ratio=3.0,
    )
