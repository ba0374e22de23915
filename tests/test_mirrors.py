"""The vLLM mirror of cached blocks against a plain set of hashes, and lone keys against whole ones.

The mirror of several KV cache groups is compared with a search of the longest prefix that suits them all.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.blocks import SUFFIX, UNIT, Pool, Side, World, chain

from peek import DualWalk, PendingRequest, PendingTree
from peek.adapters.mirror import GroupMirror, OtherGroup
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


# -- several KV cache groups ---------------------------------------------------------------------------

SUFFIXES = [bytes([0, 0, 0, group]) for group in range(3)]
LONGER = st.lists(st.integers(0, 1), min_size=1, max_size=7)
CHANGES = st.lists(st.tuples(LONGER, st.integers(0, 2), st.sampled_from([True, True, False])), max_size=40)


class GroupPool:
    """Blocks of three groups by key: the first of full attention, the others with needs of their own."""

    def __init__(self, needs: tuple[int, int], dropped: int) -> None:
        self.blocks: Counter[bytes] = Counter()
        self.needs = needs
        self.dropped = dropped
        others = [OtherGroup(need, self.lookup(group)) for group, need in enumerate(needs, 1)]
        self.mirror = GroupMirror(UNIT, self.lookup(0), SUFFIXES[0], others, dropped)
        self.tree = PendingTree(chained=True)
        self.walk = DualWalk(self.tree)

    def lookup(self, group: int):  # type: ignore[no-untyped-def]
        return lambda key: self.blocks[key[:-4] + SUFFIXES[group]] > 0

    def change(self, blocks: list[int], group: int, cached: bool) -> None:
        key = chain(blocks)[-1] + SUFFIXES[group]
        if cached:
            self.blocks[key] += 1
            if key in self.mirror.wanted():
                self.mirror.block_cached(key)
        elif self.blocks[key] > 0:
            self.blocks[key] -= 1
            if key in self.mirror.wanted():
                self.mirror.block_gone(key)

    def holds(self, hashes: list[bytes], group: int, upto: int, last: int) -> bool:
        """Whether a group has the last so many of the first `upto` blocks."""
        wanted = hashes[max(0, upto - last) : upto]
        return all(self.blocks[block + SUFFIXES[group]] > 0 for block in wanted)

    def usable(self, hashes: list[bytes]) -> int:
        """Tokens, the slow way."""
        fits = [
            upto
            for upto in range(len(hashes) + 1)
            if self.holds(hashes, 0, upto, upto)
            and all(self.holds(hashes, group, upto, need) for group, need in enumerate(self.needs, 1))
        ]
        return UNIT * max(0, max(fits) - self.dropped)


@given(
    st.lists(LONGER, min_size=1, max_size=6),
    st.lists(CHANGES, min_size=1, max_size=4),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 1),
)
def test_every_prompt_has_what_all_groups_can_use(
    prompts: list[list[int]],
    rounds: list[list[tuple[list[int], int, bool]]],
    needs: tuple[int, int],
    dropped: int,
) -> None:
    pool = GroupPool(needs, dropped)
    keys = {}
    for i, blocks in enumerate(prompts):
        keys[f"r{i}"] = pool.mirror.intern_all(chain(blocks), len(blocks))
        pool.tree.insert(f"r{i}", keys[f"r{i}"])
    for events in rounds:
        for blocks, group, cached in events:
            pool.change(blocks, group, cached)
        expected = {f"r{i}": pool.usable(chain(blocks)) for i, blocks in enumerate(prompts)}
        assert pool.walk.match(pool.mirror) == expected
        fresh = PendingTree(chained=True)
        for name, key in keys.items():
            fresh.insert(name, key)
        assert DualWalk(fresh).match(pool.mirror) == expected
    for name, key in keys.items():
        pool.tree.remove(name)
        pool.mirror.release(key, lambda symbol: pool.tree.owner(symbol) is not None)
    assert len(pool.mirror) == 0


def test_a_lone_request_is_told_of_once_its_first_block_is_cached() -> None:
    pool = GroupPool((1, 1), 0)
    pool.mirror.intern("lone", chain([0, 1, 0]), 3)
    assert pool.mirror.lone_requests == 1
    pool.change([0], 1, True)
    assert pool.mirror.pop_outgrown() == [], "full attention has nothing of it"
    pool.change([0], 0, True)
    assert pool.mirror.pop_outgrown() == ["lone"]
    assert pool.mirror.lone_requests == 0


def test_a_key_of_any_group_names_the_symbol() -> None:
    pool = GroupPool((1, 2), 0)
    pool.mirror.intern_all(chain([0, 1]), 2)
    first, second = chain([0, 1])
    assert {pool.mirror.symbol_of(first + suffix) for suffix in SUFFIXES} == {0}
    assert {pool.mirror.symbol_of(second + suffix) for suffix in SUFFIXES} == {1}
    assert pool.mirror.symbol_of(chain([1])[0] + SUFFIXES[0]) == -1
    before = pool.mirror.version
    pool.change([1], 2, True)  # nobody waits for it
    assert pool.mirror.version == before


def test_a_new_table_is_asked_about_everything() -> None:
    pool = GroupPool((1, 1), 0)
    pool.tree.insert("r", pool.mirror.intern_all(chain([0, 1]), 2))
    assert pool.walk.match(pool.mirror) == {"r": 0}
    for group in range(3):
        pool.blocks[chain([0])[-1] + SUFFIXES[group]] += 1  # unseen
    assert pool.walk.match(pool.mirror) == {"r": 0}
    pool.mirror.reset()
    assert pool.walk.match(pool.mirror) == {"r": UNIT}


def test_a_prompt_shorter_than_what_a_group_needs_is_used_whole() -> None:
    pool = GroupPool((3, 1), 0)
    pool.tree.insert("r", pool.mirror.intern_all(chain([0, 1]), 2))
    for group in range(3):
        for blocks in ([0], [0, 1]):
            pool.change(blocks, group, True)
    assert pool.walk.match(pool.mirror) == {"r": 2 * UNIT}
