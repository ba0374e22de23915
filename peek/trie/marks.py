"""What a dual-walk leaves behind: a cached length in each request, marks in each node."""

from __future__ import annotations

from mypy_extensions import i64

from peek.trie.node import Node, next_branch, next_preorder


def write_own(node: Node, cached_len: i64) -> None:
    """The cached length of every request that ends in `node`."""
    terminator = node.terminator
    while terminator is not None:
        terminator.request.cached_len = cached_len
        terminator = terminator.next


def write_subtree(top: Node, cached_len: i64) -> None:
    """The same cached length for every request at or below `top`."""
    if top.kid is None:
        write_own(top, cached_len)
        return
    stop = next_branch(top)
    node: Node | None = top
    while node is not None and node is not stop:
        write_own(node, cached_len)
        node = next_preorder(node)


def forget_below(top: Node) -> None:
    """The walk does not come by any more: make the marks below `top` old.  O(nodes below)."""
    stop = next_branch(top)
    node = next_preorder(top)
    while node is not None and node is not stop:
        node.walk_epoch = 0
        node = next_preorder(node)


def is_cached(node: Node, epoch: i64) -> bool:
    """Whether dual-walk `epoch` came to `node` and the cache holds the whole path.  O(1)."""
    return node.walk_epoch == epoch and node.walk_matched == node.depth
