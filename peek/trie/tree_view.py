"""A pending tree as a cache: how much of a prompt other requests have in common with it.

`TreeView` is the smallest complete `CacheView`, and shows what an adapter has to write: a cursor, one step of
descent, an id.
"""

from __future__ import annotations

from typing import Any, final

from mypy_extensions import i64

from peek.trie.node import Node
from peek.trie.pending_tree import PendingTree


@final
class TreeView:
    """`CacheView` over a `PendingTree`; valid as long as the tree does not change.

    A cursor is a node and a byte of its edge; None if no request of the namespace waits.
    """

    def __init__(self, tree: PendingTree, unit_tokens: int = 1) -> None:
        self._tree = tree
        self.block_symbols = 1
        self.unit_tokens = unit_tokens

    def root(self, namespace: str) -> object:
        root = self._tree.root(namespace)
        return None if root is None else (root, 0)

    def advance(self, cursor: Any, segment: memoryview, offset: int) -> tuple[int, object]:
        if cursor is None:
            return 0, None
        place: tuple[Node, i64] = cursor
        matched, node, at = self._tree.follow(edge_bytes(segment), place[0], place[1])
        return matched >> 2, (node, at)

    def node_id(self, cursor: Any) -> int:
        place: tuple[Node, i64] = cursor
        return place[0].uid


def edge_bytes(segment: memoryview) -> bytes:
    """The packed symbols behind a segment, without a copy when it covers its whole buffer.  O(1)."""
    whole = segment.obj
    if isinstance(whole, bytes) and len(whole) == segment.nbytes:
        return whole
    return segment.tobytes()
