"""The walk over caches of other shapes against their own `match_prefix`: pairs, windows, states."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_hybrid import SHAPES, eagle_world, hybrid_world, insert_hybrid, make_gaps
from sglang_lab import CORES, HAS_CORES, make_request, make_world
from sglang_small import attach
from test_views import compare, insert, runs


def test_pairs_in_common_are_one_less_than_tokens() -> None:
    world = eagle_world(1, CORES[0])
    planner = attach(world, "peek").adapter.planner
    queue = [make_request(rid, [1, 2, 3, 4, *own]) for rid, own in (("a", [5, 5]), ("b", [6, 6]))]
    queue.append(make_request("c", [9, 2, 3, 4, 5]))
    world.policy.calc_priority(queue)
    assert [planner.tree.cluster(rid).depth for rid in "ab"] == [3, 3]
    assert planner.request("c").cluster_size == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_walk_equals_match_prefix_on_hybrid_caches(shape: str) -> None:
    texts = runs([3, 4], [1, 2, 5, 8])
    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(
        cached=st.lists(st.tuples(texts, st.integers(0, 8)), max_size=5),
        gaps=st.tuples(st.integers(0, 10), st.integers(0, 2)),
        queue=st.lists(texts, min_size=2, max_size=6),
    )
    def state(cached: Any, gaps: tuple[int, int], queue: list[list[int]]) -> None:
        world = hybrid_world(shape)
        adapter = attach(world, "lpm-nolimit+lru").adapter
        for tokens, without in cached:
            insert_hybrid(world, shape, tokens, min(without, len(tokens) - 1))
        make_gaps(world, shape, *gaps)
        for _ in range(2):
            compare(world, adapter, [(None, [*tokens, 5]) for tokens in queue], seen)
        for tokens, _ in cached[:2]:
            insert_hybrid(world, shape, tokens, 0)
        compare(world, adapter, [(None, [*tokens, 5]) for tokens in queue], seen)

    state()
    assert min(seen["cached"], seen["cold"]) > 50


@pytest.mark.parametrize("shape", SHAPES)
def test_eviction_by_demand_is_not_the_end_of_a_hybrid_cache(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = hybrid_world(shape)
    with caplog.at_level(logging.WARNING, "peek"):
        beside = attach(world, "clpm+gm+dl+pe")
    assert beside.adapter is not None
    assert ("takes no eviction strategy" in caplog.text) == (not HAS_CORES)
    insert_hybrid(world, shape, [3] * 20, 0)
    queue = [make_request(f"r{i}", [3] * 20 + [i]) for i in range(3)]
    world.policy.calc_priority(queue)
    make_gaps(world, shape, 30, 5)
    world.policy.calc_priority(queue)


def test_a_subclass_that_matches_as_its_base_is_understood(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000)
    kind = type(world.tree)
    world.tree.__class__ = type("Metered", (kind,), {"evict": kind.evict, "more": 1})
    beside = attach(world, "lpm-nolimit+lru")
    insert(world, None, [5] * 50)
    requests = [make_request(f"r{i}", [5] * 51) for i in range(2)]
    beside.adapter.order(list(requests))
    assert [beside.adapter.planner.request(r.rid).cached_len for r in requests] == [50, 50]

    def match_prefix(self: Any, params: Any) -> Any:
        return kind.match_prefix(self, params)

    world.tree.__class__ = type("Remote", (kind,), {"match_prefix": match_prefix})
    with caplog.at_level(logging.WARNING, "peek"):
        assert attach(world, "peek").adapter is None
    assert "a Remote, whose match_prefix is its own" in caplog.text


@pytest.mark.skipif(not HAS_CORES, reason="needs the Rust core")
def test_the_rust_core_of_a_hybrid_model_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000, core="rust")
    kinds = hybrid_world("window").tree
    world.tree.components, world.tree.tree_components = kinds.components, kinds.tree_components
    with caplog.at_level(logging.WARNING, "peek"):
        assert attach(world, "peek").adapter is None
    assert "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python" in caplog.text
