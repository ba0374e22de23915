"""Nodes of the pending tree, their links, and how to move along them.

A node owns the edge that leads to it.  Siblings and terminators are intrusive doubly linked lists.  So a
traversal needs neither a stack nor a dictionary, and removal is O(1).
"""

from __future__ import annotations

from typing import final

from peek.native import i64
from peek.request import PendingRequest


@final
class Node:
    """One tree node and the edge that leads to it.

    `depth` counts symbols from the root and never changes: a split gives the upper half a new node, a merge
    keeps the lower node.  `uid` is a small number that is used again once the node is gone.  A policy keeps
    what it works out about nodes in a list of its own, by `uid`.

    `walk_matched` is how many symbols of the path from the root the cache held in dual-walk number
    `walk_epoch`.  `walk_cursor` is the place in the cache after them.  A node whose `walk_epoch` is not the
    tree's was not reached: the walk stopped above it, or the node is newer.
    """

    __slots__ = (
        "count", "depth", "edge", "kid", "n_kids", "next", "parent", "prev", "terminator", "uid", "view",
        "walk_cursor", "walk_epoch", "walk_matched",
    )  # fmt: skip

    def __init__(self, edge: bytes, parent: Node | None, uid: i64, count: i64, depth: i64) -> None:
        self.edge = edge
        self.view: memoryview | None = None
        self.parent: Node | None = parent
        self.uid: i64 = uid
        self.count: i64 = count
        self.depth: i64 = depth
        self.n_kids: i64 = 0
        self.kid: Node | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.terminator: Terminator | None = None
        self.walk_matched: i64 = 0
        self.walk_cursor: object = None
        self.walk_epoch: i64 = 0


@final
class Terminator:
    """The handle of one waiting request: where its key ends in the tree.

    The newest terminator of a node is its first.  `uid` is a small number, like a node's.
    """

    __slots__ = ("next", "node", "prev", "request", "uid")

    def __init__(self, request: PendingRequest, node: Node, uid: i64) -> None:
        self.request = request
        self.node = node
        self.prev: Terminator | None = None
        self.next: Terminator | None = None
        self.uid: i64 = uid


def link(parent: Node, child: Node) -> None:
    head = parent.kid
    child.next = head
    child.prev = None
    if head is not None:
        head.prev = child
    parent.kid = child
    parent.n_kids += 1


def unlink(parent: Node, child: Node) -> None:
    before = child.prev
    after = child.next
    if before is None:
        parent.kid = after
    else:
        before.next = after
    if after is not None:
        after.prev = before
    child.prev = None
    child.next = None
    parent.n_kids -= 1


def link_terminator(terminator: Terminator) -> None:
    """Hang a request on the node where its key ends."""
    node = terminator.node
    head = node.terminator
    if head is not None:
        head.prev = terminator
        terminator.next = head
    node.terminator = terminator


def unlink_terminator(node: Node, terminator: Terminator) -> None:
    before = terminator.prev
    after = terminator.next
    if before is None:
        node.terminator = after
    else:
        before.next = after
    if after is not None:
        after.prev = before
    terminator.prev = None
    terminator.next = None


def copy_marks(source: Node, target: Node) -> None:
    """Copy the dual-walk's marks of `source`, which hold for `target`, too."""
    target.walk_matched = source.walk_matched
    target.walk_cursor = source.walk_cursor
    target.walk_epoch = source.walk_epoch


def next_preorder(node: Node) -> Node | None:
    """The node after `node` in a depth-first walk: its first child, else the next branch."""
    return node.kid if node.kid is not None else next_branch(node)


def next_branch(node: Node) -> Node | None:
    """The node after the whole subtree of `node`; None at the end of the tree."""
    current: Node | None = node
    while current is not None:
        if current.next is not None:
            return current.next
        current = current.parent
    return None


def shared_node(leaf: Node) -> Node | None:
    """The deepest node at or above `leaf` with pending_count >= 2; None for a singleton.  O(1).

    Any node above a leaf's parent has a larger count, so only these two can be the deepest.
    """
    if leaf.count >= 2:
        return leaf if leaf.parent is not None else None
    parent = leaf.parent
    if parent is None or parent.parent is None:
        return None
    return parent


def write_own(node: Node, cached_len: i64) -> None:
    """Write the cached length of every request that ends in `node`."""
    terminator = node.terminator
    while terminator is not None:
        terminator.request.cached_len = cached_len
        terminator = terminator.next


def write_subtree(top: Node, cached_len: i64) -> Node | None:
    """Write the same cached length for every request at or below `top`; return the node after them.

    Inlined: calls of `write_own` and `next_preorder` slow a walk over an unchanged cache by a third.
    """
    stop = top.next or next_branch(top)
    node: Node | None = top
    while node is not None and node is not stop:
        terminator = node.terminator
        while terminator is not None:
            terminator.request.cached_len = cached_len
            terminator = terminator.next
        node = node.kid or node.next or next_branch(node)
    return stop


def forget_below(top: Node) -> None:
    """Make the marks below `top` old, because the walk does not reach them any more.  O(nodes below)."""
    stop = next_branch(top)
    node = next_preorder(top)
    while node is not None and node is not stop:
        node.walk_epoch = 0
        node = next_preorder(node)
