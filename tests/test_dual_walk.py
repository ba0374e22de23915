"""DualWalk against the engine's own longest-prefix match of every request alone.

Prompts and cached sequences are made of few different pages, so they run together, part inside edges,
part at nodes, and end inside pages.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import NaiveCache, NaiveCacheView, NaivePendingTree, Pages, Place, prefixes

from peek import CacheTree, CacheView, DualWalk, PendingTree
from peek.trie.keys import pack
from peek.trie.tree_view import TreeView

NAMESPACES = ["", "lora-1", "salt/2"]
PAGE_SIZES = [1, 16, 64]

Prompt = tuple[list[int], str]


@st.composite
def prompts(draw: st.DrawFn, page: int, min_pages: int = 0) -> Prompt:
    """Tokens and namespace: pages that differ in their last token only, and a part of one more page."""
    tokens: list[int] = []
    for kind in draw(st.lists(st.integers(0, 2), min_size=min_pages, max_size=7)):
        tokens += [*[5] * (page - 1), kind]
    return tokens + [5] * draw(st.integers(0, page - 1)), draw(st.sampled_from(NAMESPACES))


class Queue:
    """A pending tree, the tokens behind its keys, and a cache to walk it with."""

    def __init__(self, page: int, chained: bool) -> None:
        self.serial = 0
        self.pages = Pages(page, chained)
        self.tree = PendingTree(chained)
        self.twin = NaivePendingTree()
        self.walk = DualWalk(self.tree)
        self.prompts: dict[str, Prompt] = {}

    def insert(self, prompt: Prompt) -> None:
        request_id = f"r{self.serial}"
        self.serial += 1
        key = self.pages.key(*prompt)
        self.tree.insert(request_id, key, prompt[1])
        self.twin.insert(request_id, key, prompt[1])
        self.prompts[request_id] = prompt

    def remove(self, request_id: str) -> None:
        self.tree.remove(request_id)
        self.twin.remove(request_id)
        del self.prompts[request_id]

    def view(self, cache: NaiveCache) -> RecordingView:
        return RecordingView(NaiveCacheView(cache, self.pages))

    def expected(self, cache: NaiveCache) -> dict[str, int]:
        return {request_id: cache.longest_prefix(*prompt) for request_id, prompt in self.prompts.items()}

    def walk_and_compare(self, cache: NaiveCache) -> RecordingView:
        view = self.view(cache)
        expected = self.expected(cache)
        assert self.walk.match(view) == expected
        assert {request.request_id: request.cached_len for request in self.tree.requests()} == expected
        view.verify(self.walk, self.twin)
        self.tree.check()
        return view


class Cursor:
    """What the recording view hands out: an object of its own for every answer."""

    def __init__(self, place: Place, edge_end: Place) -> None:
        self.place = place
        self.edge_end = edge_end
        """Where the edge ends that was asked for; equal to `place` when the cache holds all of it."""


class RecordingView:
    """A cache view that notes every call and hands out cursors that cannot be mixed up."""

    def __init__(self, view: NaiveCacheView) -> None:
        self.unit_tokens = view.unit_tokens
        self._view = view
        self._issued: set[Cursor] = set()
        self.roots: list[str] = []
        self.calls: list[tuple[Cursor, memoryview, int]] = []

    def _issue(self, place: Place, edge_end: Place) -> Cursor:
        cursor = Cursor(place, edge_end)
        self._issued.add(cursor)
        return cursor

    def root(self, namespace: str) -> Cursor:
        self.roots.append(namespace)
        return self._issue(self._view.root(namespace), (namespace, ()))

    def advance(self, cursor: Cursor, segment: memoryview, offset: int) -> tuple[int, Cursor]:
        assert cursor in self._issued, "a cursor of another view"
        self.calls.append((cursor, segment, offset))
        matched, place = self._view.advance(cursor.place, segment, offset)
        namespace, behind = cursor.place
        return matched, self._issue(place, (namespace, behind + tuple(segment)))

    def node_id(self, cursor: Cursor) -> int:
        return self._view.node_id(cursor.place)

    def verify(self, walk: DualWalk, twin: NaivePendingTree) -> None:
        """Every edge the cache can enter was asked for once, from its parent's own cursor; no other."""
        nodes = twin.nodes()
        assert sorted(self.roots) == sorted({namespace for namespace, _ in nodes})
        assert walk.advances == len(self.calls) <= len(nodes)
        asked: list[Place] = []
        for cursor, segment, offset in self.calls:
            namespace, behind = cursor.place
            assert cursor.place == cursor.edge_end, "not the cursor of the parent edge"
            assert cursor.place in nodes or offset == 0
            assert offset == len(behind)
            assert (segment.format, segment.itemsize, segment.ndim, segment.readonly) == ("i", 4, 1, True)
            asked.append((namespace, behind + tuple(segment)))
        assert sorted(asked) == sorted(node for node in nodes if self._can_enter(node, nodes))

    def _can_enter(self, node: Place, nodes: dict[Place, int]) -> bool:
        """Whether the cache holds the whole path down to the parent of a node."""
        above = [prefix for prefix in prefixes(node)[:-1] if prefix in nodes]
        return not above or self._holds(above[-1])

    def _holds(self, place: Place) -> bool:
        namespace, symbols = place
        return self._view.advance((namespace, ()), symbols, 0)[0] == len(symbols)


def cache_of(page: int, sequences: list[Prompt]) -> NaiveCache:
    cache = NaiveCache(page)
    for tokens, namespace in sequences:
        cache.add(tokens, namespace)
    return cache


def queue_of(page: int, chained: bool, waiting: list[Prompt]) -> Queue:
    queue = Queue(page, chained)
    for prompt in waiting:
        queue.insert(prompt)
    return queue


# -- exactness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGE_SIZES)
@pytest.mark.parametrize("chained", [False, True])
@given(data=st.data())
def test_equals_the_longest_match_of_every_request_alone(
    page: int, chained: bool, data: st.DataObject
) -> None:
    queue = queue_of(page, chained, data.draw(st.lists(prompts(page, 1), max_size=10), label="waiting"))
    queue.walk_and_compare(cache_of(page, data.draw(st.lists(prompts(page), max_size=6), label="cached")))


@pytest.mark.parametrize("page", PAGE_SIZES)
@given(data=st.data())
def test_a_part_of_a_waiting_prompt_is_cached(page: int, data: st.DataObject) -> None:
    queue = queue_of(page, False, data.draw(st.lists(prompts(page, 1), min_size=1, max_size=8)))
    cache = NaiveCache(page)
    for tokens, namespace in data.draw(st.lists(st.sampled_from(list(queue.prompts.values())), max_size=4)):
        cache.add(tokens[: data.draw(st.integers(0, len(tokens)))], namespace)
    queue.walk_and_compare(cache)


@pytest.mark.parametrize("page", PAGE_SIZES)
@given(data=st.data())
def test_requests_come_and_go_between_walks(page: int, data: st.DataObject) -> None:
    queue = queue_of(page, False, data.draw(st.lists(prompts(page, 1), max_size=8)))
    for _ in range(data.draw(st.integers(1, 4))):
        cache = cache_of(page, data.draw(st.lists(prompts(page), max_size=5)))
        queue.walk_and_compare(cache)
        for request_id in list(queue.prompts):
            if data.draw(st.booleans()):
                queue.remove(request_id)
        for prompt in data.draw(st.lists(prompts(page, 1), max_size=3)):
            queue.insert(prompt)
        queue.walk_and_compare(cache)


@given(waiting=st.lists(prompts(16, 1), max_size=8), cached=st.lists(prompts(16), max_size=5))
def test_walking_changes_nothing(waiting: list[Prompt], cached: list[Prompt]) -> None:
    queue = queue_of(16, False, waiting)
    cache = cache_of(16, cached)
    before = queue.tree.version, queue.tree.scores(), queue.tree.clusters()
    first, second = queue.walk_and_compare(cache), queue.walk_and_compare(cache)
    assert [call[2] for call in first.calls] == [call[2] for call in second.calls]
    assert queue.walk.epoch == 2
    assert DualWalk(queue.tree).match(queue.view(cache)) == queue.expected(cache)
    assert (queue.tree.version, queue.tree.scores(), queue.tree.clusters()) == before


# -- the ends of the range ----------------------------------------------------------------------------


def test_an_empty_tree_asks_nothing() -> None:
    queue = Queue(1, False)
    view = queue.walk_and_compare(cache_of(1, [([1, 2, 3], "")]))
    assert (view.roots, view.calls, queue.walk.advances) == ([], [], 0)


def test_an_empty_cache_is_asked_once_per_first_edge() -> None:
    queue = queue_of(1, False, [([1, 2, 3], ""), ([1, 2, 4], ""), ([5], ""), ([1, 2], "lora-1")])
    view = queue.walk_and_compare(NaiveCache(1))
    assert len(view.calls) == 3
    assert set(queue.walk.match(queue.view(NaiveCache(1))).values()) == {0}


def test_requests_added_after_a_walk_have_no_cached_length_yet() -> None:
    queue = queue_of(1, False, [([1, 2, 3, 4], "")])
    cache = cache_of(1, [([1, 2, 3], "")])
    queue.walk_and_compare(cache)
    queue.insert(([1, 2, 9], ""))
    assert [request.cached_len for request in queue.tree.requests()] == [3, 0]
    queue.walk_and_compare(cache)
    assert [request.cached_len for request in queue.tree.requests()] == [3, 2]


def test_a_removed_request_keeps_the_length_of_its_last_walk() -> None:
    queue = queue_of(16, False, [([1] * 40, "")])
    queue.walk_and_compare(cache_of(16, [([1] * 40, "")]))
    assert queue.tree.remove("r0").cached_len == 32


def test_a_deep_chain_is_one_call_an_edge() -> None:
    n = 2000
    tree = PendingTree()
    for length in range(n, 0, -1):
        tree.insert(str(length), [7] * length)
    walk = DualWalk(tree)
    assert walk.match(TreeView(tree)) == {str(length): length for length in range(n, 0, -1)}
    assert walk.advances == n


# -- the pending tree as a cache ----------------------------------------------------------------------


def tree_view_of(page: int, pages: Pages, sequences: list[Prompt]) -> TreeView:
    tree = PendingTree()
    for i, (tokens, namespace) in enumerate(sequences):
        if len(tokens) >= page:
            tree.insert(str(i), pages.key(tokens, namespace), namespace)
    return TreeView(tree, page)


@pytest.mark.parametrize("page", PAGE_SIZES)
@given(data=st.data())
def test_a_tree_view_is_a_cache_of_its_requests(page: int, data: st.DataObject) -> None:
    queue = queue_of(page, False, data.draw(st.lists(prompts(page, 1), max_size=8)))
    sequences = data.draw(st.lists(prompts(page), max_size=6))
    view = tree_view_of(page, queue.pages, sequences)
    assert queue.walk.match(view) == queue.expected(cache_of(page, sequences))
    assert queue.walk.match(TreeView(queue.tree, page)) == {
        request_id: len(tokens) - len(tokens) % page for request_id, (tokens, _) in queue.prompts.items()
    }


@given(waiting=prompts(1, 1), cached=st.lists(prompts(1, 1), max_size=6), cuts=st.sets(st.integers(1, 7)))
def test_a_tree_view_does_not_mind_how_a_path_is_cut(
    waiting: Prompt, cached: list[Prompt], cuts: set[int]
) -> None:
    tokens, namespace = waiting
    pages = Pages(1)
    view = tree_view_of(1, pages, cached)
    whole = memoryview(pack(pages.key(tokens))).cast("i")
    bounds = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    cursor, total = view.root(namespace), 0
    for start, end in pairwise(bounds):
        matched, cursor = view.advance(cursor, whole[start:end], start)
        total += matched
        if matched < end - start:
            break
    assert total == cache_of(1, cached).longest_prefix(tokens, namespace)


def test_a_tree_view_names_the_node_that_holds_the_symbol_in_front_of_the_cursor() -> None:
    tree = PendingTree()
    for request_id, key in [("a", [1, 2, 3, 4]), ("b", [1, 2, 9])]:
        tree.insert(request_id, key)
    view = TreeView(tree)
    upper, a = tree.leaf("a").parent, tree.leaf("a")
    for length, node in [(1, upper), (2, upper), (3, a), (4, a)]:
        segment = memoryview(pack([1, 2, 3, 4][:length])).cast("i")
        matched, cursor = view.advance(view.root(""), segment, 0)
        assert (matched, view.node_id(cursor)) == (length, node.uid)


def test_the_twins_are_cache_views() -> None:
    naive = NaiveCacheView(NaiveCache(), Pages())
    assert isinstance(naive, CacheTree)
    assert isinstance(RecordingView(naive), CacheView)
    assert isinstance(TreeView(PendingTree()), CacheView)
