"""RadixCache against a naive twin: a dictionary from cached places to the time of their last use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from peek.protocols import CacheTree
from peek.simulation.caches import RadixCache
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
        assert self.cache.evictable_tokens == evict(self.cache, self.twin, 10**6, None)

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
        cuts = [min(cut, len(place[1]))]
        assert walk(self.cache, place, cuts)[0] == self.twin.longest(place)


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


@given(keys=KEY_LISTS, walks=st.lists(PLACES, min_size=1, max_size=8))
def test_a_walk_leaves_no_trace(keys: Keys, walks: list[Place]) -> None:
    walked, _ = filled(*keys)
    untouched, twin = filled(*keys)
    version = int(walked.version)
    for place in walks:
        assert walk(walked, place)[0] == twin.longest(place)
    assert walked.version == version
    while twin.evict(1, lambda node: 0.0):
        assert walked.evict(1) == untouched.evict(1) > 0
        walked.check()
        assert all(cached(walked, key) == cached(untouched, key) for key in keys)
    assert walked.cached_tokens == 0


@given(keys=KEY_LISTS, tokens=st.integers(1, 20), wanted=st.sampled_from([None, 0, 1]))
def test_many_tokens_go_in_the_order_of_one_by_one(keys: Keys, tokens: int, wanted: int | None) -> None:
    cache, twin = filled(*keys)
    evict(cache, twin, tokens, wanted)
    assert all(cached(cache, key) == twin.longest(("", key)) for key in keys)


@given(keys=KEY_LISTS, tokens=st.integers(1, 20), unit=UNITS)
def test_eviction_frees_enough_or_everything(keys: Keys, tokens: int, unit: int) -> None:
    cache, _ = filled(*keys, unit=unit)
    before = cache.cached_tokens
    freed = cache.evict(tokens)
    cache.check()
    assert freed == before - cache.cached_tokens >= min(tokens, before)


def test_a_parent_set_free_goes_before_a_younger_leaf() -> None:
    cache, _ = filled([1, 2, 3], [1, 2, 4], [9, 9, 9])
    assert cache.evict(3) == 4
    assert [cached(cache, key) for key in ([1, 2, 3], [9, 9, 9])] == [0, 3]


def test_least_recently_used_leaf_first() -> None:
    cache, _ = filled([1, 2, 3, 4], [1, 2, 5, 6], [7, 8])
    cache.match(packed([1, 2, 3, 4]), "", 4)
    gone = []
    while cache.cached_tokens:
        before = {key: cached(cache, key) for key in [(1, 2, 3, 4), (1, 2, 5, 6), (7, 8)]}
        cache.evict(1)
        gone.append([key for key, length in before.items() if cached(cache, key) < length])
    assert gone == [[(1, 2, 5, 6)], [(7, 8)], [(1, 2, 3, 4)], [(1, 2, 3, 4), (1, 2, 5, 6)]]


def test_demanded_leaves_go_last_and_the_least_demanded_of_them_first() -> None:
    cache, twin = filled([1, 1], [2, 2], [3, 3], [4, 4])
    uid = {node[1][0]: number for node, number in ids(cache, twin).items()}
    score = {uid[1]: 5.0, uid[2]: 0.0, uid[3]: 2.0, uid[4]: 5.0}
    gone = []
    while cache.cached_tokens:
        assert cache.evict(2, lambda node: score[node]) == 2
        gone += [name for name in uid if name not in gone and not cached(cache, [name])]
    assert gone == [2, 3, 1, 4]


def test_a_locked_path_stays() -> None:
    cache, _ = filled([1, 2, 3], [1, 2, 4])
    node = cache.match(packed([1, 2, 3]), "", 2)
    cache.lock(node)
    assert cache.evict(100) == 2
    assert (cache.cached_tokens, cache.locked_tokens, cache.evictable_tokens) == (2, 2, 0)
    cache.unlock(node)
    assert cache.evict(100) == 2
    with pytest.raises(AssertionError):
        cache.unlock(node)


def test_what_a_lock_covers_stays_locked_when_a_node_is_split() -> None:
    cache, _ = filled([1, 2, 3, 4])
    cache.lock(cache.match(packed([1, 2, 3, 4]), "", 4))
    cache.insert(packed([1, 2, 5]), "")
    cache.check()
    assert (cache.locked_tokens, cache.evict(100)) == (4, 1)


def test_a_walk_goes_on_and_a_match_ends_inside_an_edge() -> None:
    cache, _ = filled([1, 2, 3, 4])
    assert [walk(cache, ("", (1, 2, third, 4)), [1, 2])[0] for third in (3, 1)] == [4, 2]
    assert [cache.match(packed([1, 2, 3, 4]), "", limit).depth for limit in (3, 0, 1, 9)] == [3, 0, 1, 4]


def test_sizes_are_in_tokens() -> None:
    cache, _ = filled([1, 2, 3], [1, 2, 4], unit=16)
    assert cache.cached_tokens == 64
    assert cache.match(packed([1, 2, 9]), "", 3).depth == 2
    assert cache.evict(17) == 32


def test_an_empty_cache_is_a_cache_tree() -> None:
    assert isinstance(RadixCache(), CacheTree)
    assert walk(RadixCache(), ("nobody", (1, 2)))[0] == 0


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
