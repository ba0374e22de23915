"""DualWalk against the engine's own longest-prefix match of every request alone.

Prompts and cached sequences are made of few different pages, so they run together, part inside edges,
part at nodes, and end inside pages.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.walks import Prompt, Queue, RecordingView, cache_of, prompts, queue_of

from peek import CacheTree, CacheView, DualWalk, PendingTree
from peek.testing.twins import NaiveCache, NaiveCacheView, Pages, Place
from peek.trie.keys import pack
from peek.trie.tree_view import TreeView

PAGE_SIZES = [1, 16, 64]


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


# -- several walks over one tree -----------------------------------------------------------------------


@given(data=st.data())
def test_every_walk_object_asks_for_itself(data: st.DataObject) -> None:
    queue = queue_of(1, False, data.draw(st.lists(prompts(1, 1), min_size=1, max_size=6)))
    walks = [DualWalk(queue.tree), DualWalk(queue.tree)]
    for _ in range(data.draw(st.integers(1, 4))):
        cache = cache_of(1, data.draw(st.lists(prompts(1), max_size=4)))
        walk = data.draw(st.sampled_from([*walks, DualWalk(queue.tree)]))
        assert walk.match(queue.view(cache)) == queue.expected(cache)


def test_a_second_walk_object_does_not_take_over_the_marks_of_the_first() -> None:
    queue = queue_of(1, False, [([1, 2, 3], "")])
    assert DualWalk(queue.tree).match(queue.view(cache_of(1, [([1, 2, 3], "")]))) == {"r0": 3}
    assert DualWalk(queue.tree).match(queue.view(NaiveCache(1))) == {"r0": 0}


# -- a cache that tells its version -------------------------------------------------------------------


class VersionedView(RecordingView):
    """Says that its answers stand until `version` changes."""

    version = 0


def change_queue(queue: Queue, data: st.DataObject, page: int) -> None:
    if queue.prompts and data.draw(st.booleans(), label="leaves"):
        queue.remove(data.draw(st.sampled_from(list(queue.prompts))))
    else:
        queue.insert(data.draw(prompts(page, 1)))


@pytest.mark.parametrize("page", [1, 16])
@given(data=st.data())
def test_while_the_cache_stands_still_only_new_nodes_are_asked_for(page: int, data: st.DataObject) -> None:
    queue = queue_of(page, False, data.draw(st.lists(prompts(page, 1), max_size=6)))
    cache = cache_of(page, data.draw(st.lists(prompts(page), max_size=4)))
    view = VersionedView(NaiveCacheView(cache, queue.pages))
    known: set[Place] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        assert queue.walk.match(view) == queue.expected(cache)
        nodes = queue.twin.nodes()
        asked = view.asked(nodes)
        assert len(asked) == len(set(asked)) == queue.walk.advances
        assert set(asked) <= set(view.enterable(nodes)) - known
        known = set(nodes)
        view.calls.clear()
        change_queue(queue, data, page)


@pytest.mark.parametrize("page", [1, 16])
@given(data=st.data())
def test_a_new_version_of_the_cache_is_asked_for_everything(page: int, data: st.DataObject) -> None:
    queue = queue_of(page, False, data.draw(st.lists(prompts(page, 1), min_size=1, max_size=6)))
    cache = NaiveCache(page)
    view = VersionedView(NaiveCacheView(cache, queue.pages))
    for _ in range(data.draw(st.integers(1, 5))):
        assert queue.walk.match(view) == queue.expected(cache)
        for _ in range(data.draw(st.integers(0, 4), label="changes of the queue")):
            change_queue(queue, data, page)
        if data.draw(st.booleans(), label="cache changes"):
            cache.sequences = cache_of(page, data.draw(st.lists(prompts(page), max_size=4))).sequences
            view.version += 1
            view.calls.clear()
            assert queue.walk.match(view) == queue.expected(cache)
            assert view.asked(queue.twin.nodes()) == view.enterable(queue.twin.nodes())


def test_another_view_with_the_same_version_is_another_cache() -> None:
    queue = queue_of(1, False, [([1, 2, 3], "")])
    full = VersionedView(NaiveCacheView(cache_of(1, [([1, 2, 3], "")]), queue.pages))
    empty = VersionedView(NaiveCacheView(NaiveCache(1), queue.pages))
    for view, cached_len in [(full, 3), (empty, 0), (full, 3)]:
        assert queue.walk.match(view) == {"r0": cached_len}
    assert (queue.walk.match(full), queue.walk.advances) == ({"r0": 3}, 0)


def test_a_request_that_takes_the_place_of_its_siblings_is_asked_for() -> None:
    queue = queue_of(1, False, [([1, 2, 8], ""), ([1, 2, 9], "")])
    view = VersionedView(NaiveCacheView(cache_of(1, [([1, 2, 3, 4, 5], "")]), queue.pages))
    assert queue.walk.match(view) == {"r0": 2, "r1": 2}
    queue.insert(([1, 2, 3, 4], ""))
    queue.remove("r0")
    queue.remove("r1")  # the node they shared is merged with the newcomer's
    assert queue.walk.match(view) == {"r2": 4}


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


class HalfWorth(NaiveCacheView):
    """A cache whose first two symbols count in full and the others half."""

    def worth(self, cursor: object, matched: int) -> int:
        return min(matched, 2) + max(matched - 2, 0) // 2


def test_a_cached_token_may_be_worth_less_than_one() -> None:
    pages = Pages(1)
    cache = NaiveCache()
    cache.add([1, 2, 3, 4, 5, 6])
    tree = PendingTree()
    for name, tokens in {"all": [1, 2, 3, 4, 5, 6, 7], "some": [1, 2, 3, 4, 9], "none": [8]}.items():
        tree.insert(name, pages.key(tokens))
    assert DualWalk(tree).match(HalfWorth(cache, pages)) == {"all": 4, "some": 3, "none": 0}
