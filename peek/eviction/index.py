"""The index from a cached node or block to the waiting requests that need it.

If keys are chained block hashes, the pending tree itself is that index: `PendingTree.owner`.  `MarkIndex` is
for caches with several symbols per entry (radix trees).  It is made from the marks that the last dual-walk
left in the pending tree, at the first query after that walk or after a change of the tree.  So cycles that
evict nothing pay nothing.

Either way a candidate costs one dictionary probe and a climb of O(levels); no path is ever rebuilt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from peek.errors import InvalidCache
from peek.trie.dual_walk import whole_number
from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


_MOST_PARTS: Final = 65536
"""Maximum number of parts into which a cached node is split between a walk and the reading of its marks.  If
the match ended on its edge, the cursor names the last part, and unmatched parts are its parents, too."""


@final
class MarkIndex:
    """Cached tree nodes named by `CacheView.node_id`.

    Scores are exact but for one case: the match of one edge ends in a cached node, and another edge goes on
    through the rest of it into a node below.  Then it has the demand of the first edge alone, until the next
    walk after that node below is gone.  Cursors may be old by now, so the cache cannot be asked.

    A cached node lies on one path, so the pending nodes that need it are nested; the deepest of them is kept.
    """

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree
        self._marks: dict[int, Node] = {}
        self._epoch: i64 = 0
        self._tree_version: i64 = -1
        self._walks: i64 = -1

    def find(self, node_id: int) -> Node | None:
        """The deepest pending node that needs the cached node; None without demand.  O(1).

        Call `refresh` after each change of the tree.
        """
        return self._marks.get(node_id)

    def refresh(self, cache: CacheView, epoch: int) -> None:
        """Read the marks that walk number `epoch` of `cache` left; O(1) if they are read already.

        O(pending nodes that match something + cached nodes on their paths).  The tree may have changed since
        the walk.  Nodes without fresh marks are new (or the upper half of a split); nodes below them may
        still carry marks.  Epoch 0 means that there was no walk, and leaves no marks.

        Raises `InvalidCache` for an answer that no cache can give, and whatever the cache raises.  There are
        then no marks, and the next call starts afresh.  `PlannerBusy` while a call holds the tree.
        """
        tree = self._tree
        if epoch == self._epoch and self._tree_version == tree.version and self._walks == tree.walks:
            return
        self._marks = {}
        self._tree_version = -1  # until the marks are read
        tree.enter("MarkIndex.refresh")
        try:
            if epoch != 0:
                self._marks = _read(tree, cache, epoch)
            self._epoch = epoch
            self._tree_version = tree.version
            self._walks = tree.walks
        finally:
            tree.leave()


def _read(tree: PendingTree, cache: CacheView, epoch: i64) -> dict[int, Node]:
    """The deepest pending node that needs each cached node.  Pre-order visits deeper nodes later."""
    marks: dict[int, Node] = {}
    block: i64 = tree.block
    for _, root in tree.roots():
        node = next_preorder(root)
        while node is not None:
            known = node.walk_epoch == epoch
            if known:
                _mark(marks, node, cache, epoch)
            stopped = known and node.depth - node.walk_matched >= block
            node = next_branch(node) if stopped else next_preorder(node)
    return marks


def _mark(marks: dict[int, Node], node: Node, cache: Any, epoch: i64) -> None:
    """Mark the cached nodes that `node`'s edge runs through."""
    anchor = node.parent
    assert anchor is not None
    while anchor.walk_epoch != epoch and anchor.parent is not None:  # split off since the walk
        anchor = anchor.parent
    if node.walk_matched <= anchor.walk_matched:
        return
    anchor_id = 0 if anchor.walk_matched == 0 else _node_id(cache, anchor.walk_cursor)
    cached = _node_id(cache, node.walk_cursor)
    parent_of: Any = getattr(cache, "parent_id", None)
    steps = node.walk_matched + _MOST_PARTS  # each cached node holds at least one symbol
    while True:
        marks[cached] = node
        if parent_of is None or cached == anchor_id:
            return
        above = whole_number(parent_of(cached), f"parent_id({cached})")
        if above == 0 or above == anchor_id:
            return
        steps -= 1
        if steps < 0:
            raise InvalidCache(
                f"parent_id({cached}) answered {above}, and there is no root above: more than "
                f"{node.walk_matched + _MOST_PARTS} parents for {node.walk_matched} symbols"
            )
        cached = above


def _node_id(cache: Any, cursor: object) -> int:
    return whole_number(cache.node_id(cursor), "node_id(cursor)")


def demand_of(node: Node) -> tuple[i64, i64]:
    """The demand at a node of the pending tree.  O(levels).

    Returns the max over `node` and its ancestors of pending_count x depth (Eq. 2), and how many of these
    nodes, roots excluded, at least two waiting requests share.
    """
    peak: i64 = 0
    levels: i64 = 0
    current = node
    parent = node.parent
    while parent is not None:
        peak = max(peak, current.count * current.depth)
        if current.count >= 2:
            levels += 1
        current = parent
        parent = current.parent
    return peak, levels
