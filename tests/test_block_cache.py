"""BlockCache and SymbolTable against naive twins: a list as the free queue, whole prefixes as names."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peek.protocols import CacheTree, CacheView
from peek.simulation.caches import BlockCache, SymbolTable
from peek.testing.twins import Place

NAMESPACES = ["", "", "lora-1"]
TOKENS = st.lists(st.integers(0, 1), max_size=9)
PROMPTS = st.tuples(st.sampled_from(NAMESPACES), TOKENS)


def packed(symbols: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(symbols)}i", *symbols)


def cached(cache: BlockCache, symbols: Sequence[int], cuts: Sequence[int] = ()) -> int:
    """How far the view follows symbols, asked in segments that end at `cuts`."""
    cursor, at = cache.root(""), 0
    for end in [*cuts, len(symbols)]:
        matched, cursor = cache.advance(cursor, memoryview(packed(symbols)).cast("i")[at:end], at)
        assert matched == 0 or cache.node_id(cursor) == symbols[at + matched - 1]
        at += matched
        if at < end:
            break
    return at


# -- symbols -------------------------------------------------------------------------------------------


@given(prompts=st.lists(PROMPTS, min_size=1, max_size=8), block=st.integers(1, 3), gaps=st.booleans())
def test_equal_symbols_mean_equal_prefixes(prompts: list[Place], block: int, gaps: bool) -> None:
    table = SymbolTable()
    prefix_of: dict[int, Place] = {}
    symbol_of: dict[Place, int] = {}
    for namespace, tokens in prompts:
        symbols = table.intern(packed(tokens), 4 * block, namespace)
        assert len(symbols) == len(tokens) // block
        for number, symbol in enumerate(symbols, start=1):
            prefix = (namespace, tuple(tokens[: number * block]))
            assert prefix_of.setdefault(symbol, prefix) == prefix
            assert symbol_of.setdefault(prefix, symbol) == symbol
        if gaps:
            assert table.fresh() not in prefix_of
    assert table.fresh() not in prefix_of
    assert all(0 < symbol < 2**31 for symbol in prefix_of)


def test_the_rest_behind_the_last_full_block_is_left_out() -> None:
    table = SymbolTable()
    assert table.intern(packed([1, 2, 3]), 16, "") == []
    assert table.intern(b"", 16, "") == []
    whole = table.intern(packed([1, 2, 3, 4, 5]), 16, "")
    assert whole == table.intern(packed([1, 2, 3, 4, 9, 9, 9]), 16, "")
    assert len(whole) == 1


def test_a_block_behind_another_prefix_has_another_symbol() -> None:
    table = SymbolTable()
    a, b = table.intern(packed([1, 7]), 4, ""), table.intern(packed([2, 7]), 4, "")
    assert len({*a, *b, *table.intern(packed([7]), 4, ""), *table.intern(packed([1, 7]), 4, "lora-1")}) == 7


# -- the pool against a twin ---------------------------------------------------------------------------

Demand = Callable[[Place], float]


class NaivePool:
    """Blocks by number; the free queue is a list, a name is the whole prefix."""

    def __init__(self, n_blocks: int) -> None:
        self.free = list(range(n_blocks))
        self.users: Counter[int] = Counter()
        self.names: dict[int, Place] = {}

    def match(self, prefixes: list[Place]) -> list[int]:
        found = []
        for prefix in prefixes:
            holders = [block for block, name in self.names.items() if name == prefix]
            if not holders:
                break
            found += holders
        return found

    def use(self, blocks: list[int]) -> None:
        self.users.update(blocks)
        self.free = [block for block in self.free if block not in blocks]

    def order(self, demand: Demand, scan_limit: int) -> list[int]:
        """Without demand first, then the least needed; behind `scan_limit` needed ones nobody looks."""
        scores = {block: demand(self.names[block]) if block in self.names else 0.0 for block in self.free}
        needed = [block for block in self.free if scores[block] > 0][:scan_limit]
        end = self.free.index(needed[-1]) + 1 if len(needed) == scan_limit else len(self.free)
        seen, rest = self.free[:end], self.free[end:]
        unneeded = [block for block in seen if scores[block] == 0]
        return unneeded + sorted(needed, key=lambda block: scores[block]) + rest

    def take(self, ordered: list[int]) -> None:
        for block in ordered:
            self.names.pop(block, None)
        self.use(ordered)

    def name(self, block: int, prefix: Place) -> None:
        if prefix not in self.names.values():
            self.names[block] = prefix

    def release(self, blocks: list[int]) -> None:
        """vLLM: last block first to the end of the queue, nameless ones to its front."""
        self.users.subtract(blocks)
        for block in reversed(blocks):
            if self.users[block] == 0 and block in self.names:
                self.free.append(block)
            elif self.users[block] == 0:
                self.free.insert(0, block)


class PoolMachine(RuleBasedStateMachine):
    """Requests with one symbol per token: they take blocks, name some of them, and go."""

    @initialize(n_blocks=st.integers(1, 12))
    def start(self, n_blocks: int) -> None:
        self.cache = BlockCache(n_blocks)
        self.twin = NaivePool(n_blocks)
        self.table = SymbolTable()
        self.jobs: list[list[int]] = []
        self.seen: dict[Place, int] = {}
        self.snapshot: tuple[int, set[Place]] = (0, set())

    def intern(self, prompt: Place) -> tuple[list[int], list[Place]]:
        symbols = self.table.intern(packed(prompt[1]), 4, prompt[0])
        prefixes = [(prompt[0], tuple(prompt[1][:end])) for end in range(1, len(symbols) + 1)]
        self.seen.update(zip(prefixes, symbols, strict=True))
        return symbols, prefixes

    def demand(self, wanted: int) -> Demand:
        return lambda prefix: float(len(prefix[1]) * (prefix[1][-1] == wanted))

    @rule(
        prompt=PROMPTS, limit=st.integers(0, 9), named=st.integers(0, 9),
        wanted=st.sampled_from([None, 0, 1]), scan=st.integers(1, 4),
    )  # fmt: skip
    def admit(self, prompt: Place, limit: int, named: int, wanted: int | None, scan: int) -> None:
        symbols, prefixes = self.intern(prompt)
        blocks = self.cache.match(symbols, limit)
        assert blocks == self.twin.match(prefixes[:limit])
        idle = self.cache.idle(blocks)
        assert idle == len(set(blocks) & set(self.twin.free))
        fresh = len(symbols) - len(blocks)
        if fresh > self.cache.free_blocks - idle:
            return
        self.cache.use(blocks)
        self.twin.use(blocks)
        taken = self.take(fresh, wanted, scan)
        for block, symbol, prefix in list(zip(taken, symbols[-fresh:], prefixes[-fresh:], strict=False))[
            :named
        ]:
            self.cache.name(block, symbol)
            self.twin.name(block, prefix)
        self.jobs.append(blocks + taken)

    def take(self, count: int, wanted: int | None, scan: int) -> list[int]:
        ordered = self.twin.free if wanted is None else self.twin.order(self.demand(wanted), scan)
        place_of = {symbol: place for place, symbol in self.seen.items()}
        score = None if wanted is None else (lambda symbol: self.demand(wanted)(place_of[symbol]))
        taken = self.cache.take(count, score, scan)
        assert taken == ordered[:count]
        self.twin.take(taken)
        return taken

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.cache.release(blocks)
        self.twin.release(blocks)

    @rule()
    def too_many(self) -> None:
        with pytest.raises(AssertionError):
            self.cache.take(self.cache.free_blocks + 1)

    @rule(prompt=PROMPTS, cut=st.integers(0, 9))
    def view(self, prompt: Place, cut: int) -> None:
        """A look changes nothing: the twin, which knows nothing of it, stays equal in all later rules."""
        symbols, prefixes = self.intern(prompt)
        assert cached(self.cache, symbols, [min(cut, len(symbols))]) == len(self.twin.match(prefixes))

    @invariant()
    def equal(self) -> None:
        self.cache.check()
        assert self.cache.free_blocks == len(self.twin.free)
        assert sum(self.twin.users.values()) == sum(map(len, self.jobs))
        names = set(self.twin.names.values())
        assert names == {place for place, symbol in self.seen.items() if cached(self.cache, [symbol])}
        assert names == self.snapshot[1] or self.cache.version != self.snapshot[0]
        self.snapshot = (int(self.cache.version), names)


TestPoolMachine = PoolMachine.TestCase

# -- literal cases -------------------------------------------------------------------------------------


def held(cache: BlockCache, symbols: Sequence[int]) -> list[int]:
    """A request that computed all its blocks."""
    blocks = cache.take(len(symbols))
    for block, symbol in zip(blocks, symbols, strict=True):
        cache.name(block, symbol)
    return blocks


def test_a_freed_chain_is_lost_from_its_end() -> None:
    cache = BlockCache(4)
    cache.release(held(cache, [10, 11, 12]))
    left = []
    for _ in range(4):
        cache.take(1)
        left.append(cached(cache, [10, 11, 12]))
    assert left == [3, 2, 1, 0]


def test_blocks_without_a_name_are_reused_first() -> None:
    cache = BlockCache(4)
    named = held(cache, [10])
    nameless = cache.take(2)
    cache.release(named)
    cache.release(nameless)
    assert cache.take(4) == [*nameless, 3, *named]


def test_a_block_with_two_users_is_free_when_both_are_gone() -> None:
    cache = BlockCache(2)
    first = held(cache, [10])
    cache.use(cache.match([10], 1))
    cache.release(first)
    assert (cache.free_blocks, cache.idle(first)) == (1, 0)
    cache.release(first)
    assert (cache.free_blocks, cache.idle(first)) == (2, 1)


def test_the_second_block_with_one_content_stays_nameless() -> None:
    cache = BlockCache(2)
    first, second = held(cache, [10]), held(cache, [10])
    assert cache.match([10], 1) == first
    cache.release(first)
    cache.release(second)
    assert cache.take(1) == second
    assert cached(cache, [10]) == 1


def test_demanded_blocks_go_last() -> None:
    cache = BlockCache(4)
    blocks = [held(cache, [symbol])[0] for symbol in (10, 11, 12, 13)]
    for block in blocks:
        cache.release([block])
    scores = {10: 3.0, 11: 0.0, 12: 2.0, 13: 0.0}
    assert cache.take(4, lambda symbol: scores[symbol], 99) == [blocks[number] for number in (1, 3, 2, 0)]


def test_the_search_ends_after_so_many_demanded_blocks() -> None:
    cache = BlockCache(4)
    blocks = [held(cache, [symbol])[0] for symbol in (10, 11, 12, 13)]
    for block in blocks:
        cache.release([block])
    asked: list[int] = []

    def score(symbol: int) -> float:
        asked.append(symbol)
        return 0.0 if symbol == 13 else float(symbol)

    assert cache.take(1, score, 2) == blocks[:1]
    assert asked == [10, 11]


def test_match_is_limited_and_stops_at_the_first_gap() -> None:
    cache = BlockCache(4)
    blocks = held(cache, [10, 11, 12])
    assert cache.match([10, 11, 12], 2) == blocks[:2]
    assert cache.match([10, 99, 12], 3) == blocks[:1]
    assert cache.match([99, 10], 2) == cache.match([], 5) == cache.match([10], 0) == []


def test_it_is_a_cache_view_but_no_tree() -> None:
    cache = BlockCache(1, unit_tokens=32)
    assert isinstance(cache, CacheView)
    assert not isinstance(cache, CacheTree)
    assert cache.unit_tokens == 32


def test_a_block_turns_out_to_have_another_name() -> None:
    cache = BlockCache(4)
    blocks = cache.take(3)
    for block, symbol in zip(blocks, (7, -1, -2), strict=True):
        cache.name(block, symbol)
    version = cache.version
    cache.rename(-1, 8)
    assert cache.version > version
    assert cache.match([7, 8], 9) == blocks[:2]
    for symbol, other in ((-2, 8), (-5, 9)):  # the name is taken; nobody has that one
        cache.rename(symbol, other)
        assert cache.match([7, 8, 9], 9) == blocks[:2]
    cache.check()


def test_names_that_no_prompt_asks_for_change_no_answer() -> None:
    cache = BlockCache(2)
    for symbol in (-1, -2):
        cache.name(cache.take(1)[0], symbol)
    version = cache.version
    cache.release([0, 1])
    cache.take(2)
    assert cache.version == version
    assert not cache.holds(-1)
