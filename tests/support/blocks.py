"""A stand-in for vLLM's block pool, with the parts that the mirror reads."""

from __future__ import annotations

import hashlib
from collections import Counter

from peek import PeekConfig, PendingRequest, Planner
from peek.adapters.mirror import BlockMirror

UNIT = 16
SUFFIX = b"\x00\x00\x00\x00"


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
