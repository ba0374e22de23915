"""The vLLM mirror of cached blocks against a plain set of hashes, and lone keys against whole ones."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.blocks import SUFFIX, UNIT, Pool, Side, World, chain

from peek import PendingRequest
from peek.config import PRESETS

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=5)

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "abort", "admit", "cache", "evict", "plan", "replace"]),
        PROMPTS,
        st.integers(0, 20),
    ),
    max_size=40,
)


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(events=EVENTS)
@example([("arrive", [1], 0), ("arrive", [0, 0, 0], 0), ("replace", [0, 0], 0)])
def test_lone_keys_change_nothing(label: str, events: list[tuple[str, list[int], int]]) -> None:
    world = World(label)
    for at, (event, blocks, pick) in enumerate(events):
        world.happen(at, event, chain(blocks), pick)
        world.compare(at + 0.5, PRESETS[label].build_policy().reads_cache)
    for side in world.sides:
        for name in world.prompts:
            side.leave(name, None)
        assert len(side.mirror) == 0


def test_a_lone_request_asks_about_one_block() -> None:
    pool = Pool()
    side = Side(pool, "peek", whole=False)
    for i in range(10):
        side.arrive(f"r{i}", chain([i] * 100), float(i))
    assert (pool.asked, len(side.mirror)) == (10, 10)
    side.arrive("twin", chain([3] * 90), 10.0)
    side.plan({f"r{i}": chain([i] * 100) for i in range(10)}, 11.0)
    assert (pool.asked, len(side.mirror)) == (10, 9 + 100)


def test_who_can_neither_hit_nor_share_is_counted() -> None:
    side = Side(Pool(), "peek", whole=False)
    side.arrive("a", chain([1, 2]), 0.0)
    side.arrive("b", chain([3, 4]), 1.0)
    side.keys["skips"] = side.mirror.alone("skips")
    side.planner.add(PendingRequest("skips", side.keys["skips"], 2.0))
    assert side.mirror.lone_requests == 3
    side.arrive("shares with b", chain([3, 5]), 3.0)
    assert side.mirror.lone_requests == 2
    side.mirror.block_cached(chain([1])[0] + SUFFIX)
    assert side.mirror.lone_requests == 1
    side.leave("skips", None)
    assert side.mirror.lone_requests == 0


def test_each_distinct_block_is_asked_about_once() -> None:
    pool = Pool()
    side = Side(pool, "peek", whole=False)
    shared = [1] * 50
    pool.blocks.update(key + SUFFIX for key in chain(shared)[:30])
    prompts = {f"r{i}": chain([*shared, 2 + i]) for i in range(8)}
    for i, (name, hashes) in enumerate(prompts.items()):
        side.arrive(name, hashes, float(i))
    for now in range(5):
        side.plan(prompts, 10.0 + now)
    assert pool.asked == 31
    assert all(side.planner.tree.request(name).cached_len == 30 * UNIT for name in prompts)
