"""Score, cluster and head of every waiting request, in one traversal of the pending tree."""

from __future__ import annotations

from typing import Any, NamedTuple

from mypy_extensions import i64

from peek.request import SINGLETON
from peek.trie.node import Node, Terminator, shared_node


class Cluster(NamedTuple):
    node_id: int
    depth: int
    size: int


_cluster: Any = Cluster  # assigned, because a named tuple loses its docstring when compiled
_cluster.__doc__ = """The deepest node that a request shares with another: its id, its depth (symbols from
the root), and its size (waiting requests at or below it)."""


def refresh_below(root: Node, theta: i64) -> None:
    """Pre-order over one namespace by the links alone: no recursion, no stack.

    On the way down an edge adds to the score, on the way up it is taken off again.
    """
    score: i64 = 0
    head: Node | None = None  # the highest node on the path that holds theta symbols
    node = root
    while True:
        if node.terminator is not None:
            _refresh_terminators(node, score, 0 if head is None else head.uid)
        following = node.kid
        while following is None:
            parent = node.parent
            if parent is None:
                return
            score -= node.count * (node.depth - parent.depth)
            if head is node:
                head = None
            following = node.next
            node = parent
        score += following.count * (following.depth - node.depth)
        if head is None and following.depth >= theta:
            head = following
        node = following


def _refresh_terminators(node: Node, score: i64, head: i64) -> None:
    """Write the signals of the requests that end in a node."""
    cluster = shared_node(node)
    cluster_id: i64 = SINGLETON
    depth: i64 = 0
    size: i64 = 1
    if cluster is not None:
        cluster_id = cluster.uid
        depth = cluster.depth
        size = cluster.count
    terminator = node.terminator
    while terminator is not None:
        request = terminator.request
        request.score = score + request.tail
        request.head = head
        request.cluster_id = cluster_id
        request.cluster_depth = depth
        request.cluster_size = size
        terminator = terminator.next


def score_of(handle: Terminator) -> int:
    """Sum of pending_count x edge length over the path of one request (Eq. 1), in symbols.  O(d)."""
    node = handle.node
    total: i64 = handle.request.tail
    parent = node.parent
    while parent is not None:
        total += node.count * (node.depth - parent.depth)
        node = parent
        parent = node.parent
    return total
