"""Score, cluster and head of every waiting request, in one traversal of the pending tree."""

from __future__ import annotations

from typing import Any, NamedTuple

from mypy_extensions import i64

from peek.request import SINGLETON
from peek.trie.node import Node, Terminator, next_preorder, shared_node


class Cluster(NamedTuple):
    node_id: int
    depth: int
    size: int


_cluster: Any = Cluster  # assigned, because a named tuple loses its docstring when compiled
_cluster.__doc__ = """The deepest node that a request shares with another: its id, its depth (symbols from
the root), and its size (waiting requests at or below it)."""


def refresh_below(root: Node, theta: i64) -> None:
    """Pre-order over one namespace by the links alone: no recursion, no stack."""
    root.acc_score = 0
    root.acc_head = 0
    node = root
    while True:
        if node.terminator is not None:
            _refresh_terminators(node)
        following = next_preorder(node)
        if following is None:
            return
        parent = following.parent
        assert parent is not None
        following.acc_score = parent.acc_score + following.count * (following.depth - parent.depth)
        if parent.acc_head != 0 or following.depth < theta:
            following.acc_head = parent.acc_head
        else:
            following.acc_head = following.uid
        node = following


def _refresh_terminators(node: Node) -> None:
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
        request.score = node.acc_score + request.tail
        request.head = node.acc_head
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
