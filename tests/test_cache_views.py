"""Every cache view of the library against the match of the cache it looks at."""

from __future__ import annotations

import struct
from random import Random

import pytest
from support.blocks import SUFFIX, UNIT, Pool, chain

from peek.adapters.mirror import BlockMirror
from peek.simulation.caches import BlockCache, RadixCache, SymbolTable
from peek.testing import check_cache_view
from peek.testing.scenes import cache_of
from peek.testing.twins import longest

NAMESPACES = ("", "lora-1")
KEYS = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 8), (1, 2), (1, 2, 9, 9, 9, 1), (9,) * 8]
CACHED = [("", KEYS[0]), ("", KEYS[1]), ("", KEYS[3]), ("lora-1", KEYS[0]), ("lora-1", KEYS[4])]


def packed(key: list[int] | tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(key)}i", *key)


@pytest.mark.parametrize("unit", [1, 16])
def test_a_pending_tree_as_a_cache(unit: int) -> None:
    def match(key: list[int], namespace: str) -> int:
        return unit * longest(CACHED, (namespace, tuple(key)))

    check_cache_view(cache_of(CACHED, unit), match, prompts=KEYS, namespaces=NAMESPACES)


@pytest.mark.parametrize("unit", [1, 16])
def test_the_simulated_radix_cache(unit: int) -> None:
    cache = RadixCache(unit)
    for namespace, key in CACHED:
        cache.insert(packed(key), namespace)
    rnd = Random(7)

    def match(key: list[int], namespace: str) -> int:
        return unit * cache.match(packed(key), namespace, len(key)).depth

    def change() -> None:
        if rnd.random() < 0.5:
            cache.evict(2 * unit)
        else:
            cache.insert(packed(rnd.choice(KEYS)), rnd.choice(NAMESPACES))

    check_cache_view(cache, match, prompts=KEYS, namespaces=NAMESPACES, change=change)
    cache.check()


def test_the_simulated_block_pool() -> None:
    table, cache = SymbolTable(), BlockCache(12)
    prompts = [table.intern(packed(key), 4, namespace) for namespace, key in CACHED]
    absent = [table.fresh(), table.fresh()]
    rnd = Random(7)

    def compute(symbols: list[int]) -> None:
        held = cache.match(symbols, len(symbols))
        cache.use(held)
        fresh = cache.take(len(symbols) - len(held))
        for block, symbol in zip(fresh, symbols[len(held) :], strict=True):
            cache.name(block, symbol)
        cache.release(held + fresh)

    def match(key: list[int], namespace: str) -> int:
        return 16 * len(cache.match(key, len(key)))

    compute(prompts[0])
    compute(prompts[2])
    check_cache_view(
        cache,
        match,
        prompts=prompts,
        absent=absent,
        chained=True,
        change=lambda: compute(rnd.choice(prompts)),
    )
    cache.check()


def test_the_mirror_of_vllms_pool() -> None:
    pool = Pool()
    mirror = BlockMirror(UNIT, pool.is_cached, SUFFIX)
    hashes = [chain([symbol % 7 for symbol in key]) for key in KEYS]
    prompts = [memoryview(mirror.intern_all(blocks, len(blocks))).cast("i").tolist() for blocks in hashes]
    absent = memoryview(mirror.intern_all(chain([88, 89]), 2)).cast("i").tolist()
    hash_of = {symbol: key for key, symbol in mirror.symbols.items()}
    for blocks in (hashes[0], hashes[3]):
        pool.blocks.update(block + SUFFIX for block in blocks[:5])

    def match(key: list[int], namespace: str) -> int:
        return UNIT * pool.cached_blocks([hash_of[symbol].removesuffix(SUFFIX) for symbol in key])

    check_cache_view(mirror, match, prompts=prompts, absent=absent, chained=True)
