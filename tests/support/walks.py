"""Helpers of the dual-walk tests: a queue with its oracle, and a cache view that records every call."""

from __future__ import annotations

from hypothesis import strategies as st

from peek import DualWalk, PendingTree
from peek.testing.twins import (
    NaiveCache,
    NaiveCacheView,
    NaivePendingTree,
    Pages,
    Place,
    naive_walk,
    prefixes,
)
from peek.trie.node import Node

NAMESPACES = ["", "lora-1", "salt/2"]

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
        return naive_walk(
            {name: (prompt[1], tuple(prompt[0])) for name, prompt in self.prompts.items()}, cache
        )

    def walk_and_compare(self, cache: NaiveCache) -> RecordingView:
        """Walk a fresh view of a cache; results and calls must be what the oracle says."""
        view = self.view(cache)
        expected = self.expected(cache)
        assert self.walk.match(view) == expected
        assert {request.request_id: request.cached_len for request in self.tree.requests()} == expected
        nodes = self.twin.nodes()
        assert sorted(view.roots) == sorted({namespace for namespace, _ in nodes})
        assert self.walk.advances == len(view.calls) <= len(nodes)
        assert view.asked(nodes) == view.enterable(nodes)
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
        self.block_symbols = 1  # declared, so that the walk asks what it needs and nothing more
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

    def asked(self, nodes: dict[Place, int]) -> list[Place]:
        """The tree nodes whose edges were asked for, each from its parent's own cursor; sorted."""
        asked: list[Place] = []
        for cursor, segment, offset in self.calls:
            namespace, behind = cursor.place
            assert cursor.place == cursor.edge_end, "not the cursor of the parent edge"
            assert cursor.place in nodes or offset == 0
            assert offset == len(behind)
            assert (segment.format, segment.itemsize, segment.ndim, segment.readonly) == ("i", 4, 1, True)
            asked.append((namespace, behind + tuple(segment)))
        return sorted(asked)

    def enterable(self, nodes: dict[Place, int]) -> list[Place]:
        """The tree nodes that a walk from scratch has to ask for; sorted."""
        return sorted(node for node in nodes if self._can_enter(node, nodes))

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


def place_of(node: Node | None, namespace: str = "") -> Place:
    """Where a node of a `PendingTree` stands, read off the edges above it."""
    symbols: list[int] = []
    while node is not None:
        symbols[:0] = memoryview(node.edge).cast("i")
        node = node.parent
    return namespace, tuple(symbols)


def symbols_of(pages: Pages) -> range:
    """All symbols that stand for a page."""
    return range(len(pages._contents))


def peak_demand(twin: NaivePendingTree, place: Place) -> int:
    """Max of pending_count x depth over the tree nodes at or above a place (Eq. 2)."""
    nodes = twin.nodes()
    return max((nodes[prefix] * len(prefix[1]) for prefix in prefixes(place) if prefix in nodes), default=0)


def shared_levels(twin: NaivePendingTree, place: Place) -> int:
    """Number of tree nodes at or above a place that two requests or more share."""
    nodes = twin.nodes()
    return sum(nodes.get(prefix, 0) >= 2 for prefix in prefixes(place))
