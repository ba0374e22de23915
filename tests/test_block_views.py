"""Views with small symbols over a cache that matches whole blocks of them.

The oracle is the cache's own longest match of every request alone: whole blocks from the first symbol on.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.walks import peak_demand, place_of

from peek import DualWalk, InvalidCache, PendingTree
from peek.eviction.index import MarkIndex, demand_of
from peek.testing.twins import NaiveCache, NaiveCacheView, NaivePendingTree, Pages

BLOCKS = st.integers(1, 8)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=30)
PAGES = Pages(1)
for _token in range(3):
    PAGES.key([_token])  # symbols are the tokens themselves


class BlockView(NaiveCacheView):
    """Declares its blocks; a cached node is one block."""

    def __init__(self, cache: NaiveCache, declared: bool = True) -> None:
        super().__init__(cache, PAGES)
        self.version = 1
        self.calls = 0
        self._block = cache.page_tokens
        self._ids: dict[Any, int] = {}
        if declared:
            self.block_symbols = cache.page_tokens

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, Any]:
        assert offset == len(cursor[1]), "not from the cursor's place"
        assert offset % self._block == 0
        self.calls += 1
        return super().advance(cursor, segment, offset)

    def node_id(self, cursor: Any) -> int:
        assert cursor[1], "no symbol in front of the root"
        return self._ids.setdefault(cursor, len(self._ids) + 1)

    def parent_id(self, node_id: int) -> int:
        namespace, symbols = next(place for place, known in self._ids.items() if known == node_id)
        above = symbols[: -self._block]
        return self.node_id((namespace, above)) if above else 0


class Scene:
    """Waiting prompts and a block cache that holds parts of them and others."""

    def __init__(self, block: int, waiting: list[list[int]], cached: list[list[int]]) -> None:
        self.text = f"Scene({block}, {waiting}, {cached})"
        self.block = block
        self.tree = PendingTree()
        self.twin = NaivePendingTree()
        self.serial = 0
        for tokens in waiting:
            self.insert(tokens)
        self.cache = NaiveCache(block)
        for tokens in cached:
            self.cache.add(tokens)
        self.walk = DualWalk(self.tree)

    def __repr__(self) -> str:
        return self.text

    def insert(self, tokens: list[int]) -> None:
        request_id = f"r{self.serial}"
        self.serial += 1
        self.tree.insert(request_id, tokens)
        self.twin.insert(request_id, tokens)

    def remove(self, request_id: str) -> None:
        self.tree.remove(request_id)
        self.twin.remove(request_id)

    def expected(self) -> dict[str, int]:
        return {name: self.cache.longest_prefix(key[1]) for name, key in self.twin.waiting.items()}

    def change(self, data: st.DataObject) -> None:
        if self.twin.waiting and data.draw(st.booleans(), label="leaves"):
            self.remove(data.draw(st.sampled_from(sorted(self.twin.waiting))))
        else:
            self.insert(data.draw(TOKENS))


@st.composite
def scenes(draw: st.DrawFn, blocks: st.SearchStrategy[int] = BLOCKS) -> Scene:
    waiting = draw(st.lists(TOKENS, min_size=1, max_size=8))
    cached = draw(st.lists(TOKENS, max_size=3)) + draw(st.lists(st.sampled_from(waiting), max_size=3))
    return Scene(draw(blocks), waiting, cached)


@given(scene=scenes())
def test_equals_the_longest_match_of_every_request_alone(scene: Scene) -> None:
    view = BlockView(scene.cache)
    assert scene.walk.match(view) == scene.expected()
    assert view.calls == scene.walk.advances <= scene.tree.node_count


@given(scene=scenes(), data=st.data())
def test_while_the_cache_stands_still_the_queue_may_change(scene: Scene, data: st.DataObject) -> None:
    view = BlockView(scene.cache)
    for _ in range(data.draw(st.integers(1, 5))):
        assert scene.walk.match(view) == scene.expected()
        for _ in range(data.draw(st.integers(0, 4), label="changes")):
            scene.change(data)
        scene.tree.check()
    assert scene.walk.match(view) == scene.expected()


@given(scene=scenes(), data=st.data())
def test_every_cached_block_that_is_read_has_demand(scene: Scene, data: st.DataObject) -> None:
    view = BlockView(scene.cache)
    scene.walk.walk(view)
    seen = dict(scene.twin.waiting)
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        scene.change(data)
    index = MarkIndex(scene.tree)
    index.refresh(view, scene.walk.epoch)
    for name, key in seen.items():
        if name not in scene.twin.waiting:
            continue
        matched = scene.cache.longest_prefix(key[1])
        for end in range(scene.block, matched + 1, scene.block):
            found = index.find(view.node_id(("", key[1][:end])))
            assert found is not None, (name, end)
            place = place_of(found)
            assert place in scene.twin.nodes()
            assert demand_of(found)[0] == peak_demand(scene.twin, place)
    readable = {
        key[1][:end]
        for key in scene.twin.waiting.values()
        for end in range(scene.block, scene.cache.longest_prefix(key[1]) + 1, scene.block)
    }
    for (_, symbols), number in list(view._ids.items()):
        if symbols not in readable:
            assert index.find(number) is None, symbols


def test_a_split_inside_a_block_takes_nothing_away() -> None:
    tree, cache = PendingTree(), NaiveCache(8)
    long, other = [0] * 24, [0] * 18 + [1] * 3
    cache.add(long)
    tree.insert("long", long)
    walk = DualWalk(tree)
    assert walk.match(BlockView(cache)) == {"long": 24}
    tree.insert("other", other)
    assert walk.match(BlockView(cache)) == {"long": 24, "other": 16}
    tree.insert("short", [0] * 20)
    assert walk.match(BlockView(cache)) == {"long": 24, "other": 16, "short": 16}
    tree.insert("within the first block", [0, 0, 1])
    assert walk.match(BlockView(cache))["long"] == 24


def test_numbers_of_blocks_that_are_worth_tokens() -> None:
    """Symbols of 4 tokens in blocks of 2 symbols."""
    tree, cache = PendingTree(), NaiveCache(2)
    cache.add([0] * 6)
    tree.insert("long", [0] * 6)
    tree.insert("other", [0] * 3 + [1])
    view = BlockView(cache)
    walk = DualWalk(tree)
    view.unit_tokens = 4
    view.advance = lambda cursor, segment, offset: _in_symbols(cache, cursor, segment)
    assert walk.match(view) == {"long": 24, "other": 8}


def _in_symbols(cache: NaiveCache, cursor: Any, segment: memoryview) -> tuple[int, Any]:
    namespace, behind = cursor
    path = behind + tuple(segment)
    matched = cache.longest_prefix(path)
    return matched - len(behind), (namespace, path[:matched])


# -- views that do not say so -----------------------------------------------------------------------------


@given(scene=scenes(st.integers(2, 8)))
def test_an_undeclared_block_cache_is_right_or_is_refused(scene: Scene) -> None:
    """Wherever the cache holds anything that tells; see the next test for where it does not."""
    view = BlockView(scene.cache, declared=False)
    view._block = 1  # it is asked from other places, too, before it is refused
    refusal, found = "", {}
    try:
        found = scene.walk.match(view)
    except InvalidCache as error:
        refusal = str(error)
    if refusal:
        assert f"block_symbols = {scene.block}" in refusal or "divisor" in refusal
    else:
        assert found == scene.expected() or set(found.values()) == {0}


@given(scene=scenes(st.just(1)))
def test_an_undeclared_cache_of_single_symbols_is_never_refused(scene: Scene) -> None:
    view = BlockView(scene.cache, declared=False)
    assert scene.walk.match(view) == scene.expected()
    first = view.calls
    assert first <= scene.walk.advances + 4
    view.version += 1
    assert scene.walk.match(view) == scene.expected()
    if any(count >= 2 for count in scene.expected().values()) and first > scene.walk.advances:
        assert view.calls - first <= scene.walk.advances + 4


def test_the_refusal_says_what_to_do() -> None:
    tree, cache = PendingTree(), NaiveCache(8)
    cache.add([0] * 24)
    tree.insert("long", [0] * 24)
    view = BlockView(cache, declared=False)
    walk = DualWalk(tree)
    assert walk.match(view) == {"long": 24}  # nobody parts ways with it: right as it is
    tree.insert("other", [0] * 18 + [1])
    with pytest.raises(InvalidCache, match=r"block_symbols = 8.*unit_tokens"):
        walk.match(view)
    view.block_symbols = 8
    assert walk.match(view) == {"long": 24, "other": 16}


def test_a_block_cache_that_follows_nothing_is_asked_for_children() -> None:
    """The shared edge is shorter than a block: nothing was followed, so nothing else can tell."""
    tree, cache = PendingTree(), NaiveCache(8)
    cache.add([0] * 16)
    tree.insert("other", [0] * 5 + [1])
    tree.insert("long", [0] * 16)
    with pytest.raises(InvalidCache, match="followed 0 symbols of an edge, but 16 of that edge and the next"):
        DualWalk(tree).walk(BlockView(cache, declared=False))


def test_an_exact_view_is_asked_once_more_only_once() -> None:
    tree, cache = PendingTree(), NaiveCache(1)
    cache.add([0] * 18)
    tree.insert("long", [0] * 24)
    view = BlockView(cache, declared=False)
    walk = DualWalk(tree)
    for extra in (1, 0, 0):
        view.calls = 0
        view.version += 1
        assert walk.match(view) == {"long": 18}
        assert view.calls == walk.advances + extra


def test_a_split_that_is_merged_again_loses_no_demand() -> None:
    tree, cache = PendingTree(), NaiveCache(8)
    cache.add([0] * 16)
    tree.insert("long", [0] * 30)
    walk, view = DualWalk(tree), BlockView(cache)
    walk.walk(view)
    tree.insert("other", [0] * 20 + [1])
    tree.remove("other")
    index = MarkIndex(tree)
    index.refresh(view, walk.epoch)
    assert index.find(view.node_id(("", (0,) * 16))) is tree.leaf("long")
    assert index.find(view.node_id(("", (0,) * 8))) is tree.leaf("long")
