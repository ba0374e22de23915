"""Which waiting demand a cached node or block stands under.

Two indexes behind one question, `find(node_id) -> pending-tree node`:

- `MarkIndex` for caches with several symbols an entry (radix trees).  It is made from the marks that
  the last dual-walk left in the pending tree, on the first question after that walk, so cycles that
  evict nothing pay nothing.
- `SymbolIndex` for block pools with chained hashes.  A symbol occurs at one place of a `chained`
  pending tree, and the tree keeps that place current, so there is nothing to make.

Either way a candidate costs one dictionary probe and a climb of O(levels); no path is ever rebuilt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, final

from mypy_extensions import i64

from peek.trie.node import Node, next_branch, next_preorder, survivor
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


class DemandIndex(ABC):
    """Finds the place in the pending tree that needs a cached node."""

    @abstractmethod
    def find(self, node_id: int) -> Node | None:
        """The deepest pending node that needs the cached node, None without demand."""

    @abstractmethod
    def refresh(self, cache: CacheView, epoch: int) -> None:
        """Bring the index to the state of walk number `epoch` of `cache`; O(1) if it is there."""


@final
class SymbolIndex(DemandIndex):
    """Cached blocks named by their interned chained hash."""

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree

    def find(self, node_id: int) -> Node | None:
        return self._tree.owner(node_id)

    def refresh(self, cache: CacheView, epoch: int) -> None:
        return


@final
class MarkIndex(DemandIndex):
    """Cached tree nodes named by `CacheView.node_id`."""

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree
        self._marks: dict[int, Node] = {}
        self._epoch: i64 = 0
        self._tree_version: i64 = -1

    def find(self, node_id: int) -> Node | None:
        node = self._marks.get(node_id)
        return None if node is None else survivor(node)

    def refresh(self, cache: CacheView, epoch: int) -> None:
        """O(pending nodes that match something + cached nodes on their paths), once per walk."""
        if epoch == self._epoch and self._tree_version == self._tree.version:
            return
        self._epoch = epoch
        self._tree_version = self._tree.version
        marks: dict[int, Node] = {}
        node_id_of: Any = cache.node_id
        parent_of: Any = getattr(cache, "parent_id", None)
        for _, root in self._tree.roots():
            node: Node | None = next_preorder(root)
            while node is not None:
                parent = node.parent
                assert parent is not None
                if node.walk_epoch != epoch or node.walk_matched == parent.depth:
                    node = next_branch(node)  # arrived after the walk, or nothing cached from here
                    continue
                node_id: int = node_id_of(node.walk_cursor)
                _mark(marks, node_id, node, parent_of)
                node = next_preorder(node) if node.walk_matched == node.depth else next_branch(node)
        self._marks = marks


def _mark(marks: dict[int, Node], node_id: int, node: Node, parent_of: Any) -> None:
    """Mark a cached node and, where the cache tells, those above it that have no mark yet."""
    present = marks.get(node_id)
    if present is None or peak_demand(present) < peak_demand(node):
        marks[node_id] = node
    if parent_of is None or present is not None:
        return
    above: int = parent_of(node_id)
    while above != 0 and above not in marks:
        marks[above] = node
        above = parent_of(above)


def peak_demand(node: Node) -> i64:
    """Max over `node` and its ancestors of pending_count x depth (Eq. 2).  O(levels)."""
    peak: i64 = 0
    current: Node | None = node
    while current is not None:
        demand = current.count * current.depth
        if demand > peak:
            peak = demand
        current = current.parent
    return peak


def shared_levels(node: Node) -> i64:
    """How many of `node` and its ancestors, roots excluded, at least two waiting requests share."""
    levels: i64 = 0
    current: Node | None = node
    while current is not None:
        parent = current.parent
        if parent is not None and current.count >= 2:
            levels += 1
        current = parent
    return levels
