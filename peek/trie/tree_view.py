"""A pending tree as a cache: how much of a prompt other requests have in common with it.

`TreeView` is the smallest complete `CacheView`, and shows what an adapter has to write: a cursor, one step of
descent, an id.  The planner uses `follow` to find prefixes whose prefill is under way.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.trie.keys import match_span, symbol_at
from peek.trie.node import Node
from peek.trie.pending_tree import PendingTree


@final
class Place:
    """A cursor: `at` bytes into the edge of `node`."""

    __slots__ = ("at", "node")

    def __init__(self, node: Node, at: i64) -> None:
        self.node = node
        self.at: i64 = at


@final
class TreeView:
    """`CacheView` over a `PendingTree`; valid as long as the tree does not change."""

    __slots__ = ("_tree", "block_symbols", "unit_tokens")

    def __init__(self, tree: PendingTree, unit_tokens: int = 1) -> None:
        self._tree = tree
        self.block_symbols = 1
        self.unit_tokens = unit_tokens

    def root(self, namespace: str) -> object:
        node = self._tree.root(namespace)
        return None if node is None else Place(node, 0)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if cursor is None:
            return 0, None
        assert isinstance(cursor, Place)
        matched, place = follow(self._tree, edge_bytes(segment), cursor)
        return matched >> 2, place

    def node_id(self, cursor: object) -> int:
        assert isinstance(cursor, Place)
        return cursor.node.uid


def follow(tree: PendingTree, symbols: bytes, place: Place) -> tuple[i64, Place]:
    """Follow `symbols` from `place`; return the number of bytes found and the place behind them."""
    node = place.node
    at = place.at
    n: i64 = len(symbols)
    done: i64 = 0
    while done < n:
        if at == len(node.edge):
            child = tree.child(node, symbol_at(symbols, done))
            if child is None:
                break
            node = child
            at = 0
        common: i64 = match_span(symbols, done, node.edge, at)
        done += common
        at += common
        if at < len(node.edge):
            break
    return done, Place(node, at)


def edge_bytes(segment: memoryview) -> bytes:
    """The packed symbols behind a segment, without a copy when it covers its whole buffer.  O(1)."""
    whole = segment.obj
    if isinstance(whole, bytes) and len(whole) == segment.nbytes:
        return whole
    return segment.tobytes()
