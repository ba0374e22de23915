"""RadixCache, BlockCache and SymbolTable against naive twins."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peek.protocols import CacheTree, CacheView
from peek.simulation.caches import BlockCache, RadixCache, SymbolTable
from peek.testing.twins import Place, common_length, prefixes

NAMESPACES = ["", "", "", "lora-1"]
TRUNKS = [(0, 1, 2, 0, 1), (0, 1, 2, 2, 2), (1, 1, 1, 1, 1)]
PARTS = st.tuples(st.sampled_from(TRUNKS), st.integers(0, 5), st.lists(st.integers(0, 2), max_size=2))
KEYS = PARTS.map(lambda parts: (*parts[0][: parts[1]], *parts[2]))
"""Keys that often have much in common and then part."""
PLACES = st.tuples(st.sampled_from(NAMESPACES), KEYS)
UNITS = st.sampled_from([1, 16])


def packed(symbols: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(symbols)}i", *symbols)


def walk(cache: RadixCache, place: Place, cuts: Sequence[int] = ()) -> tuple[int, object]:
    """How far the view follows a place, asked in segments that end at `cuts`, and the cursor there."""
    namespace, symbols = place
    cursor, at = cache.root(namespace), 0
    for end in [*cuts, len(symbols)]:
        segment = memoryview(packed(symbols)).cast("i")[at:end]
        matched, cursor = cache.advance(cursor, segment, at)
        at += matched
        if at < end:
            break
    return at, cursor


class NaiveRadix:
    """What is cached: node places with the time of their last use; and the places that are locked."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.clock = 0
        self.used: dict[Place, int] = {}
        self.locked: list[Place] = []

    def longest(self, place: Place) -> int:
        namespace, symbols = place
        return max((common_length(n[1], symbols) for n in self.used if n[0] == namespace), default=0)

    def match(self, place: Place) -> Place:
        """The cached part of a place; a node ends there from now on."""
        self.clock += 1
        found = (place[0], place[1][: self.longest(place)])
        for prefix in prefixes(found):
            if prefix in self.used or prefix == found:
                self.used[prefix] = self.clock
        return found

    def insert(self, place: Place) -> None:
        self.match(place)
        if place[1]:
            self.used[place] = self.clock

    def above(self, node: Place) -> Place | None:
        return next((prefix for prefix in reversed(prefixes(node)[:-1]) if prefix in self.used), None)

    def size(self, node: Place) -> int:
        above = self.above(node)
        return self.unit * (len(node[1]) - (len(above[1]) if above else 0))

    def tokens(self, places: Iterator[Place]) -> int:
        return self.unit * len({prefix for place in places for prefix in prefixes(place)})

    def evictable(self) -> list[Place]:
        """Unlocked leaves, least recently used first."""
        kept = {prefix for place in self.locked for prefix in prefixes(place)}
        kept |= {prefix for node in self.used for prefix in prefixes(node)[:-1]}
        return sorted(self.used.keys() - kept, key=lambda node: self.used[node])

    def evict(self, tokens: int, demand: Callable[[Place], float]) -> int:
        """One victim after the other, each the least needed, then least recently used leaf there is."""
        freed = 0
        while freed < tokens and (leaves := self.evictable()):
            victim = min(leaves, key=demand)
            freed += self.size(victim)
            del self.used[victim]
        return freed


def ids(cache: RadixCache, twin: NaiveRadix) -> dict[Place, int]:
    """The cache's ids of the twin's nodes."""
    return {node: cache.node_id(walk(cache, node)[1]) for node in twin.used}


def evict(cache: RadixCache, twin: NaiveRadix, tokens: int, wanted: int | None) -> int:
    """Evict from both, places that end with `wanted` in demand; returns what the twin freed."""
    names = {uid: node for node, uid in ids(cache, twin).items()}

    def demand(node: Place) -> float:
        return float(len(node[1])) if node[1][-1] == wanted else 0.0

    freed = twin.evict(tokens, demand)
    assert cache.evict(tokens, None if wanted is None else (lambda uid: demand(names[uid]))) == freed
    return freed


class RadixMachine(RuleBasedStateMachine):
    @initialize(unit=UNITS)
    def start(self, unit: int) -> None:
        self.cache = RadixCache(unit)
        self.twin = NaiveRadix(unit)
        self.locks: list[tuple[object, Place]] = []
        self.shape = (-1, {})

    @rule(place=PLACES, limit=st.integers(0, 8))
    def match(self, place: Place, limit: int) -> None:
        found = self.twin.match((place[0], place[1][:limit]))
        assert self.cache.match(packed(place[1]), place[0], limit).depth == len(found[1])

    @rule(place=PLACES)
    def insert(self, place: Place) -> None:
        self.twin.insert(place)
        assert self.cache.insert(packed(place[1]), place[0]).depth == len(place[1])

    @rule(place=PLACES)
    def match_and_lock(self, place: Place) -> None:
        node = self.cache.match(packed(place[1]), place[0], 99)
        self.cache.lock(node)
        self.twin.locked.append(self.twin.match(place))
        self.locks.append((node, self.twin.locked[-1]))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, place = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.cache.unlock(node)
        self.twin.locked.remove(place)

    @rule(wanted=st.sampled_from([None, 0, 1, 2]))
    def evict_one(self, wanted: int | None) -> None:
        evict(self.cache, self.twin, 1, wanted)

    @rule()
    def evict_all_there_is(self) -> None:
        unlocked = self.cache.cached_tokens - self.cache.locked_tokens
        assert unlocked == evict(self.cache, self.twin, 10**6, None)

    @invariant()
    def counts(self) -> None:
        self.cache.check()
        assert self.cache.cached_tokens == self.twin.tokens(iter(self.twin.used))
        assert self.cache.locked_tokens == self.twin.tokens(iter(self.twin.locked))

    @invariant()
    def nodes(self) -> None:
        uids = ids(self.cache, self.twin)
        assert len(set(uids.values()) - {0}) == len(self.twin.used)
        for node, uid in uids.items():
            above = self.twin.above(node)
            assert self.cache.parent_id(uid) == (0 if above is None else uids[above])
            first = len(above[1]) if above else 0
            inside = (node[0], node[1][: first + 1])
            assert self.cache.node_id(walk(self.cache, inside)[1]) == uid
        version, shape = self.shape
        assert version != self.cache.version or shape == uids, "a change without a new version"
        self.shape = (int(self.cache.version), uids)

    @rule(place=PLACES, cut=st.integers(0, 7))
    def view(self, place: Place, cut: int) -> None:
        """A look changes nothing: the twin, which knows nothing of it, stays equal in all later rules."""
        version = int(self.cache.version)
        cuts = [min(cut, len(place[1]))]
        assert walk(self.cache, place, cuts)[0] == self.twin.longest(place)
        assert self.cache.version == version


TestRadixMachine = RadixMachine.TestCase


def filled(*keys: Sequence[int], unit: int = 1) -> tuple[RadixCache, NaiveRadix]:
    cache, twin = RadixCache(unit), NaiveRadix(unit)
    for key in keys:
        cache.insert(packed(key), "")
        twin.insert(("", tuple(key)))
    return cache, twin


def cached(cache: RadixCache, key: Sequence[int]) -> int:
    return walk(cache, ("", tuple(key)))[0]


Keys = list[tuple[int, ...]]
KEY_LISTS = st.lists(KEYS, min_size=1, max_size=8)


@given(keys=KEY_LISTS, tokens=st.integers(1, 20), wanted=st.sampled_from([None, 0, 1]), unit=UNITS)
def test_many_tokens_go_in_the_order_of_one_by_one(
    keys: Keys, tokens: int, wanted: int | None, unit: int
) -> None:
    cache, twin = filled(*keys, unit=unit)
    before = cache.cached_tokens
    freed = evict(cache, twin, tokens, wanted)
    cache.check()
    assert freed == before - cache.cached_tokens >= min(tokens, before)
    assert all(cached(cache, key) == twin.longest(("", key)) for key in keys)


def test_what_is_not_locked_cannot_be_unlocked() -> None:
    cache, _ = filled([1, 2, 3])
    with pytest.raises(AssertionError):
        cache.unlock(cache.match(packed([1, 2, 3]), "", 2))


def test_an_empty_cache_is_a_cache_tree_and_a_pool_of_blocks_a_view() -> None:
    assert isinstance(RadixCache(), CacheTree)
    assert walk(RadixCache(), ("unknown", (1, 2)))[0] == 0
    pool = BlockCache(1, unit_tokens=32)
    assert isinstance(pool, CacheView)
    assert not isinstance(pool, CacheTree)
    assert pool.unit_tokens == 32


def test_symbols_of_generated_tokens_are_negative() -> None:
    cache, _ = filled([1, 2, -1], [1, 2, -(2**31)], [1, 2, 2**31 - 1])
    cache.check()
    assert [cached(cache, [1, 2, last]) for last in (-1, -(2**31), 2**31 - 1, 0)] == [3, 3, 3, 2]


def test_a_node_turns_out_to_hold_something_else() -> None:
    cache = RadixCache()
    cache.insert(packed([1, 2]), "")
    leaf = cache.insert(packed([1, 2, -1, -2, -3]), "").uid
    cache.rename(leaf, packed([7, 8]))
    cache.check()
    assert walk(cache, ("", (1, 2, 7, 8, -3)))[0] == 5
    assert walk(cache, ("", (1, 2, -1)))[0] == 2
    cache.insert(packed([1, 2, 9]), "")
    for symbols in ([9, 9], []):  # there is such a child already; nothing is told
        cache.rename(leaf, packed(symbols))
        assert walk(cache, ("", (1, 2, 7, 8, -3)))[0] == 5
    cache.rename(leaf, packed([5] * 9))
    assert walk(cache, ("", (1, 2, *[5] * 9)))[0] == 5
    cache.evict(100)
    cache.rename(leaf, packed([7]))  # it is gone
    cache.check()
    assert cache.cached_tokens == 0


@given(
    keys=st.lists(PLACES, min_size=1, max_size=6), answer=st.lists(st.integers(0, 2), min_size=1, max_size=4)
)
def test_a_renamed_answer_is_found_like_an_inserted_one(keys: Keys, answer: list[int]) -> None:
    """Wherever it can be renamed: where no other prompt goes on as it does."""
    namespace, prompt = keys[0]
    renamed, inserted = RadixCache(), RadixCache()
    for cache in (renamed, inserted):
        for place in keys:
            cache.insert(packed(place[1]), place[0])
    taken = walk(renamed, (namespace, (*prompt, answer[0])))[0] > len(prompt)
    generated = packed([*prompt, *range(-len(answer), 0)])
    leaf = renamed.insert(generated, namespace).uid
    renamed.rename(leaf, packed(answer))
    renamed.check()
    if not taken:
        inserted.insert(packed([*prompt, *answer]), namespace)
        assert walk(renamed, (namespace, (*prompt, *answer)))[0] == len(prompt) + len(answer)
        assert renamed.cached_tokens == inserted.cached_tokens


# -- blocks ----------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 1), max_size=9)
PROMPTS = st.tuples(st.sampled_from(NAMESPACES), TOKENS)


def cached_blocks(cache: BlockCache, symbols: Sequence[int], cuts: Sequence[int] = ()) -> int:
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
            found.append(holders[0])
        return found

    def use(self, blocks: list[int]) -> None:
        self.users.update(blocks)
        self.free = [block for block in self.free if block not in blocks]

    def order(self, demand: Demand, scan_limit: int) -> list[int]:
        """Without demand first, then the least needed; behind `scan_limit` needed ones the scan ends."""
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
        assert cached_blocks(self.cache, symbols, [min(cut, len(symbols))]) == len(self.twin.match(prefixes))

    @invariant()
    def equal(self) -> None:
        self.cache.check()
        assert self.cache.free_blocks == len(self.twin.free)
        assert sum(self.twin.users.values()) == sum(map(len, self.jobs))
        names = set(self.twin.names.values())
        assert names == {place for place, symbol in self.seen.items() if cached_blocks(self.cache, [symbol])}
        assert names == self.snapshot[1] or self.cache.version != self.snapshot[0]
        self.snapshot = (int(self.cache.version), names)


TestPoolMachine = PoolMachine.TestCase

# -- literal cases -------------------------------------------------------------------------------------


def test_the_search_ends_after_so_many_demanded_blocks() -> None:
    cache = BlockCache(4)
    blocks = cache.take(4)
    for block, symbol in zip(blocks, (10, 11, 12, 13), strict=True):
        cache.name(block, symbol)
        cache.release([block])
    asked: list[int] = []

    def score(symbol: int) -> float:
        asked.append(symbol)
        return 0.0 if symbol == 13 else float(symbol)

    assert cache.take(1, score, 2) == blocks[:1]
    assert asked == [10, 11]


def test_a_block_turns_out_to_have_another_name() -> None:
    cache = BlockCache(4)
    blocks = cache.take(3)
    for block, symbol in zip(blocks, (7, -1, -2), strict=True):
        cache.name(block, symbol)
    version = cache.version
    cache.rename(-1, 8)
    assert cache.version > version
    assert cache.match([7, 8], 9) == blocks[:2]
    for symbol, other in ((-2, 8), (-5, 9)):  # the name is taken; no block has that one
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


def test_a_copy_of_a_cached_block_stays_when_the_first_goes() -> None:
    """As in vLLM's pool: an equal prompt computes its last block again, and that is cached, too."""
    cache = BlockCache(3)
    first, second, third = cache.take(3)
    for block, symbol in ((first, 10), (second, 10), (third, 11)):
        cache.name(block, symbol)
    version = cache.version
    cache.release([first])
    cache.release([third])
    cache.release([second])
    assert cache.match([10], 1) == [first]
    assert cache.take(1) == [first]
    assert (cache.match([10], 1), cache.version) == ([second], version), "another block has the name"
    assert cache.take(2) == [third, second]
    assert cache.match([10], 1) == []
    cache.check()
