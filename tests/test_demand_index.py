"""The demand indexes against the definition: who, of the requests that wait, needs a cached node?

A request needs a cached node if its key and the cached sequence still agree on the node's first symbol,
that is if the dual-walk of that request alone would read from the node.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.walks import peak_demand, place_of, shared_levels, symbols_of

from peek import DualWalk, PendingTree
from peek.eviction.index import MarkIndex, demand_of
from peek.testing.twins import NaiveCache, NaiveCacheView, NaivePendingTree, Pages, Place, prefixes
from peek.trie.node import Node
from peek.trie.tree_view import TreeView

NAMESPACES = ["", "", "lora-1"]
KEYS = st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=7), st.sampled_from(NAMESPACES))
Key = tuple[list[int], str]


class Scene:
    """A queue, a cache, and the index that the walk of one left over the other."""

    def __init__(self, waiting: list[Key], cached: list[Key]) -> None:
        self.text = f"Scene({waiting}, {cached})"
        self.serial = 0
        self.pages = Pages(1)
        self.tree = PendingTree()
        self.twin = NaivePendingTree()
        for key in waiting:
            self.insert(*key)
        self.cache = NaiveCache(1)
        for key in cached:
            self.cache.add(*key)
        self.view = NaiveCacheView(self.cache, self.pages)
        self.walk = DualWalk(self.tree)
        self.index = MarkIndex(self.tree)

    def __repr__(self) -> str:
        return self.text

    def insert(self, tokens: list[int], namespace: str) -> None:
        request_id = f"r{self.serial}"
        self.serial += 1
        key = self.pages.key(tokens, namespace)
        self.tree.insert(request_id, key, namespace)
        self.twin.insert(request_id, key, namespace)

    def remove(self, request_id: str) -> None:
        self.tree.remove(request_id)
        self.twin.remove(request_id)

    def walk_now(self) -> None:
        self.walk.walk(self.view)
        self.walked = set(self.twin.waiting)

    def refresh(self) -> None:
        self.index.refresh(self.view, self.walk.epoch)

    def mark(self) -> None:
        self.walk_now()
        self.refresh()

    def matched(self, key: Place) -> Place:
        """The part of a key that is cached."""
        namespace, symbols = key
        return namespace, symbols[: self.cache.longest_prefix(self.pages.tokens(symbols), namespace)]

    def needs(self, key: Place, cached_node: Place) -> bool:
        above = self.view.above(cached_node)
        namespace, symbols = cached_node
        first = (namespace, symbols[: 1 + (0 if above is None else len(above[1]))])
        return first in prefixes(self.matched(key))

    def needed_by(self, cached_node: Place) -> set[str]:
        """Requests that wait now and need a cached node."""
        waiting = self.twin.waiting
        return {request_id for request_id in waiting if self.needs(waiting[request_id], cached_node)}

    def find(self, cached_node: Place) -> Node | None:
        self.refresh()
        return self.index.find(self.view.id_of(cached_node))

    def assert_demand(self) -> None:
        """Demand of a request the walk saw must be found; none may be found where nobody waits.

        A request that came after the walk may be found or not.
        """
        for cached_node in self.view.nodes:
            found = self.find(cached_node)
            needed_by = self.needed_by(cached_node)
            if needed_by & self.walked:
                assert found is not None, (cached_node, needed_by)
                assert demand_of(found)[0] > 0
            if not needed_by:
                assert found is None, cached_node


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Cached are parts of waiting keys, and others."""
    waiting = draw(st.lists(KEYS, min_size=1, max_size=8))
    cached = draw(st.lists(KEYS, max_size=3))
    for tokens, namespace in draw(st.lists(st.sampled_from(waiting), max_size=3)):
        cached.append((tokens[: draw(st.integers(0, len(tokens)))], namespace))
    return Scene(waiting, cached)


# -- marks of the walk itself -------------------------------------------------------------------------


@given(scene=scenes())
def test_a_cached_node_has_demand_iff_a_waiting_request_reads_it(scene: Scene) -> None:
    scene.mark()
    scene.assert_demand()


@given(scene=scenes())
def test_the_node_found_is_the_most_needed_that_reads_it(scene: Scene) -> None:
    scene.mark()
    nodes = scene.twin.nodes()
    for cached_node in scene.view.nodes:
        found = scene.find(cached_node)
        if found is None:
            continue
        place = place_of(found, cached_node[0])
        assert place in nodes
        assert scene.needs(place, cached_node)
        assert edge_start(scene, place) < len(cached_node[1]), "an edge that starts below the cached node"
        assert demand_of(found)[0] == peak_demand(scene.twin, place)
        assert demand_of(found)[1] == shared_levels(scene.twin, place)
        ends_here = [node for node in nodes if ends_in(scene, node, cached_node)]
        assert demand_of(found)[0] >= max((peak_demand(scene.twin, node) for node in ends_here), default=1)


def edge_start(scene: Scene, pending_node: Place) -> int:
    """Depth of the pending node's parent."""
    nodes = scene.twin.nodes()
    return max((len(prefix[1]) for prefix in prefixes(pending_node)[:-1] if prefix in nodes), default=0)


def ends_in(scene: Scene, pending_node: Place, cached_node: Place) -> bool:
    """Whether the cache follows a pending node's own edge, and stops on a cached node's."""
    matched = scene.matched(pending_node)
    return len(matched[1]) > edge_start(scene, pending_node) and scene.view.holder(matched) == cached_node


def test_an_inner_cached_node_is_reached_through_its_parents() -> None:
    scene = Scene([([1, 2, 3, 4, 5, 6], "")], [([1, 2, 3, 4, 5, 6], ""), ([1, 2, 3, 9], ""), ([1, 8], "")])
    scene.mark()
    assert [len(node[1]) for node in scene.view.nodes if scene.find(node) is not None] == [1, 3, 6]
    assert {scene.find(node) for node in scene.view.nodes} == {scene.tree.leaf("r0"), None}


def test_a_cache_without_parents_marks_the_ends_alone() -> None:
    tree, cached = PendingTree(), PendingTree()
    for request_id, key in [("long", [1, 2, 3, 4]), ("fork", [1, 2, 9])]:
        cached.insert(request_id, key)
    tree.insert("r", [1, 2, 3])
    view, index, walk = TreeView(cached), MarkIndex(tree), DualWalk(tree)
    walk.walk(view)
    index.refresh(view, walk.epoch)
    assert index.find(cached.leaf("long").uid) is tree.leaf("r")
    assert index.find(cached.leaf("fork").uid) is None
    assert index.find(cached.leaf("long").parent.uid) is None


def test_the_next_walk_replaces_the_marks() -> None:
    scene = Scene([([1, 2, 3], "")], [([1, 2, 3], ""), ([4, 5], "")])
    scene.mark()
    scene.remove("r0")
    scene.insert([4, 5, 6], "")
    first, second = scene.view.nodes
    assert (scene.find(first), scene.find(second)) == (None, None)
    scene.mark()
    assert (scene.find(first), scene.find(second)) == (None, scene.tree.leaf("r1"))


def test_a_walk_is_read_once() -> None:
    scene = Scene([([1, 2, 3], "")], [([1, 2, 3], "")])
    scene.mark()
    scene.view = None  # not asked again
    scene.refresh()
    assert scene.index.find(1) is scene.tree.leaf("r0")


def test_a_walk_that_goes_on_from_earlier_marks_is_read_too() -> None:
    scene = Scene([([9], "")], [([1, 2, 3], "")])
    scene.view.version = 1
    scene.walk_now()
    scene.insert([1, 2, 3], "")
    scene.refresh()
    assert scene.find(scene.view.nodes[0]) is None  # it came after the walk
    scene.mark()
    assert scene.find(scene.view.nodes[0]) is scene.tree.leaf("r1")


# -- changes between the walk and the question --------------------------------------------------------


def change(scene: Scene, data: st.DataObject, arrivals: bool) -> None:
    for request_id in list(scene.twin.waiting):
        if data.draw(st.booleans(), label=f"{request_id} leaves"):
            scene.remove(request_id)
    for key in data.draw(st.lists(KEYS, max_size=4), label="arrivals") if arrivals else []:
        scene.insert(*key)


@pytest.mark.parametrize("arrivals", [False, True], ids=["departures", "arrivals"])
@given(scene=scenes(), data=st.data())
def test_the_index_may_be_read_after_changes(arrivals: bool, scene: Scene, data: st.DataObject) -> None:
    scene.walk_now()
    if data.draw(st.booleans(), label="and before"):
        scene.refresh()
    change(scene, data, arrivals)
    scene.assert_demand()


def test_a_mark_moves_on_when_its_node_is_merged() -> None:
    scene = Scene([([1, 2, 3], ""), ([1, 2, 4], ""), ([1, 5], "")], [([1, 2], "")])
    scene.mark()
    (cached_node,) = scene.view.nodes
    assert scene.find(cached_node) is scene.tree.leaf("r0").parent
    scene.remove("r0")
    assert scene.find(cached_node) is scene.tree.leaf("r1")
    scene.remove("r2")
    assert scene.find(cached_node) is scene.tree.leaf("r1")
    scene.remove("r1")
    assert scene.find(cached_node) is None


def test_a_mark_outlives_the_request_it_was_left_on() -> None:
    scene = Scene([([1, 2, 3, 4, 5, 6], ""), ([1, 2, 9], "")], [([1, 2, 3], "")])
    scene.mark()
    (cached_node,) = scene.view.nodes
    assert scene.find(cached_node) is not None
    scene.remove("r0")
    assert scene.find(cached_node) is scene.tree.leaf("r1")


def test_a_split_before_the_first_question_hides_no_demand() -> None:
    scene = Scene([([1, 2, 3], "")], [([1, 2, 3], "")])
    scene.walk_now()
    scene.insert([1, 9], "")
    scene.refresh()
    assert scene.find(scene.view.nodes[0]) is scene.tree.leaf("r0")


def test_a_merge_before_the_first_question_hides_no_demand() -> None:
    scene = Scene([([1, 2, 3], ""), ([1, 2, 4], "")], [([1], "")])
    scene.walk_now()
    scene.remove("r0")
    scene.refresh()
    assert scene.find(scene.view.nodes[0]) is scene.tree.leaf("r1")


@given(steps=st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=12))
def test_a_symbol_stands_under_the_demand_of_its_node(steps: list[tuple[Key, bool]]) -> None:
    pages = Pages(1, chained=True)
    tree, twin = PendingTree(chained=True), NaivePendingTree()
    for i, ((tokens, namespace), oldest_leaves) in enumerate(steps):
        key = pages.key(tokens, namespace)
        tree.insert(f"r{i}", key, namespace)
        twin.insert(f"r{i}", key, namespace)
        assert_symbols(tree, twin, pages)
        if oldest_leaves:
            oldest = next(iter(twin.waiting))
            tree.remove(oldest)
            twin.remove(oldest)
            assert_symbols(tree, twin, pages)


def assert_symbols(tree: PendingTree, twin: NaivePendingTree, pages: Pages) -> None:
    paths = {symbols[-1]: (ns, symbols) for key in twin.waiting.values() for ns, symbols in prefixes(key)}
    for symbol in symbols_of(pages):
        found = tree.owner(symbol)
        assert (found is None) == (symbol not in paths)
        if found is not None:
            namespace, symbols = paths[symbol]
            place = place_of(found, namespace)
            assert place[1][: len(symbols)] == symbols
            assert demand_of(found)[0] == peak_demand(twin, place)
            assert demand_of(found)[1] == shared_levels(twin, place)
