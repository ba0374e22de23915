"""The vLLM mirror of cached blocks against a plain set of hashes, and lone keys against whole ones."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import PeekConfig, PendingRequest, Planner
from peek.adapters.vllm.mirror import BlockMirror
from peek.config import PRESETS

UNIT = 16
SUFFIX = b"\x00\x00\x00\x00"
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(lambda blocks: [*blocks])


def chain(blocks: list[int]) -> list[bytes]:
    """Hashes of a prompt's blocks, each over all before it, as vLLM makes them."""
    hashes: list[bytes] = []
    for block in blocks:
        hashes.append(hashlib.sha256((hashes[-1] if hashes else b"") + bytes([block])).digest())
    return hashes


class Pool:
    """Blocks by key; one hash may be held by several."""

    def __init__(self) -> None:
        self.blocks: Counter[bytes] = Counter()
        self.asked = 0

    def is_cached(self, key: bytes) -> bool:
        self.asked += 1
        return self.blocks[key] > 0

    def cached_blocks(self, hashes: list[bytes]) -> int:
        matched = 0
        while matched < len(hashes) and self.blocks[hashes[matched] + SUFFIX] > 0:
            matched += 1
        return matched


class Side:
    """A planner and its mirror, fed with whole keys or with what `intern` thinks is enough."""

    def __init__(self, pool: Pool, label: str, whole: bool) -> None:
        self.whole = whole
        self.mirror = BlockMirror(UNIT, pool.is_cached, SUFFIX)
        self.planner = Planner(PeekConfig.from_label(label), chained=True)
        self.keys: dict[str, bytes] = {}

    def arrive(self, name: str, hashes: list[bytes], at: float) -> None:
        n = len(hashes)
        key = self.mirror.intern_all(hashes, n) if self.whole else self.mirror.intern(name, hashes, n)
        self.keys[name] = key
        tail = n - len(key) // 4
        self.planner.add(PendingRequest(name, key, at, num_tokens=n * UNIT + 1, tail=tail))

    def leave(self, name: str, uncached: int | None) -> None:
        self.planner.remove(name, uncached is not None, uncached)
        self.mirror.release(self.keys.pop(name), self.planner.needs)

    def plan(self, prompts: dict[str, list[bytes]], now: float) -> list[str]:
        for name in self.mirror.pop_outgrown():
            if name in self.keys:
                self.keys[name] = self.mirror.intern_all(prompts[name], len(prompts[name]))
                self.planner.extend(name, self.keys[name])
        self.planner.tree.check()
        return self.planner.plan(self.mirror, now)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "abort", "admit", "cache", "evict", "plan", "replace"]),
        PROMPTS,
        st.integers(0, 20),
    ),
    max_size=40,
)


class World:
    """The same history for both sides."""

    def __init__(self, label: str) -> None:
        self.pool = Pool()
        self.lone, self.whole = Side(self.pool, label, whole=False), Side(self.pool, label, whole=True)
        self.sides = (self.lone, self.whole)
        self.prompts: dict[str, list[bytes]] = {}

    def happen(self, at: int, event: str, hashes: list[bytes], pick: int) -> None:
        name = sorted(self.prompts)[pick % len(self.prompts)] if self.prompts else ""
        if event == "arrive":
            self.prompts[f"r{at}"] = hashes
            for side in self.sides:
                side.arrive(f"r{at}", hashes, float(at))
        elif event in ("abort", "admit") and name:
            mine = self.prompts.pop(name)
            uncached = (len(mine) - self.pool.cached_blocks(mine)) * UNIT if event == "admit" else None
            for side in self.sides:
                side.leave(name, uncached)
        elif event in ("cache", "evict", "replace"):
            self.change_pool(event, [block_hash + SUFFIX for block_hash in hashes])

    def change_pool(self, event: str, keys: list[bytes]) -> None:
        if event == "cache":
            self.pool.blocks.update(keys)
        elif event == "replace":
            self.pool.blocks = Counter(keys)
        elif self.pool.blocks[keys[-1]]:
            self.pool.blocks[keys[-1]] -= 1
        for side in self.sides:
            if event == "cache":
                for key in keys:
                    side.mirror.block_cached(key)
            elif event == "replace":
                side.mirror.reset()
            else:
                side.mirror.block_gone(keys[-1])

    def compare(self, now: float, reads_cache: bool) -> None:
        orders = [side.plan(self.prompts, now) for side in self.sides]
        assert orders[0] == orders[1]
        for name, hashes in self.prompts.items():
            ours, theirs = (side.planner.tree.request(name) for side in self.sides)
            assert ours.cached_len == theirs.cached_len
            assert not reads_cache or ours.cached_len == self.pool.cached_blocks(hashes) * UNIT
            assert ours.length + ours.tail == theirs.length == len(hashes)
            assert self.lone.planner.tree.score(name) == self.whole.planner.tree.score(name)


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(events=EVENTS)
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
