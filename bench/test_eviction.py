"""Times the choice of one victim among 40,000 cached leaves while 10,000 requests wait."""

from __future__ import annotations

import numpy as np
import pytest

import peek
from bench.measure import Measure
from bench.worksets import work_set
from peek.eviction.demand import victims
from peek.simulation.caches import RadixCache
from peek.timing import NOW, best_of, random_key

N_LEAVES = 40_000
MAX_S = 1e-3
DEMANDED = {"none": 0, "200 prefixes": 200, "10000 prompts": 10_000}
"""By name, the number of least recently used leaves that the queue needs."""


class Scene:
    """Work set D waits; it needs the oldest leaves of the cache and no others."""

    def __init__(self, oldest: str) -> None:
        work = work_set("D")
        self._rng = np.random.default_rng(3)
        self.cache = RadixCache(1)
        needed = {"none": [], "200 prefixes": work.prefixes(), "10000 prompts": work.packed()}[oldest]
        for key in needed:
            self.cache.insert(key, "")
        for _ in range(N_LEAVES - DEMANDED[oldest]):
            self.new_leaf()
        self.planner = peek.Planner(peek.PeekConfig.from_label("clpm+gm+dl+pe"))
        for request_id, key in zip(work.ids(), work.packed(), strict=True):
            self.planner.add(peek.PendingRequest(request_id, key, 0.0))
        self.planner.plan(self.cache, NOW)
        self.planner.eviction_score(1)  # the demand marks of this cycle

    def new_leaf(self) -> None:
        """Add the leaf of a finished request, as the most recently used one."""
        self.cache.insert(random_key(self._rng, 16), "")

    def leaves(self) -> list[int]:
        """Return the ids of the leaves in the order of an eviction, least recently used first."""
        seen: list[int] = []

        def score(node_id: int) -> float:
            seen.append(node_id)
            return 1.0

        self.cache.evict(1, score)
        return seen[1:]


@pytest.mark.parametrize("oldest", list(DEMANDED))
def test_evict_by_demand(measure: Measure, oldest: str) -> None:
    """`RadixCache.evict` of one token with the planner's scores, against LRU without scores."""
    scene = Scene(oldest)
    lru_s = float("inf")
    for _ in range(20):
        scene.new_leaf()
        lru_s = min(lru_s, best_of(1, lambda: scene.cache.evict(1)))

    def setup() -> tuple[object, ...]:
        scene.new_leaf()
        return (1, scene.planner.eviction_score)

    measure(
        f"evict one of 40k, oldest needed: {oldest}",
        scene.cache.evict,
        setup,
        rounds=50,
        yardstick="LRU",
        yardstick_s=lru_s,
        max_s=MAX_S,
    )


@pytest.mark.parametrize("oldest", list(DEMANDED))
def test_choice_alone(measure: Measure, oldest: str) -> None:
    """`victims` over leaves that the engine keeps in order of recency."""
    scene = Scene(oldest)
    leaves = scene.leaves()
    score = scene.planner.eviction_score
    n_choices = 1_000 if oldest == "none" else 1  # a single choice is too quick for the clock

    def choose() -> None:
        for _ in range(n_choices):
            next(victims(leaves, score, len(leaves)))

    measure(
        f"choose one of 40k, oldest needed: {oldest}", choose, rounds=50, operations=n_choices, max_s=MAX_S
    )


def test_first_choice_of_a_cycle(measure: Measure) -> None:
    """The first score after a plan, which makes the demand marks."""
    scene = Scene("200 prefixes")

    def setup() -> tuple[int]:
        scene.cache.version += 1
        scene.planner.plan(scene.cache, NOW)
        return (1,)

    measure("first score of a cycle, D", scene.planner.eviction_score, setup, rounds=30, max_s=MAX_S)
