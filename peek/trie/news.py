"""Where a cache may answer differently than in the last walk, by what it tells of its changes."""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import i64

from peek.trie.keys import match_edge, symbol_at
from peek.trie.node import Node
from peek.trie.pending_tree import PendingTree


def owners_of(tree: PendingTree, symbols: Iterable[int]) -> list[Node]:
    """The nodes whose edges hold these symbols of chained keys, each once.  O(symbols)."""
    nodes: dict[int, Node] = {}
    for symbol in symbols:
        node = tree.owner(symbol)
        if node is not None:
            nodes[node.uid] = node
    return list(nodes.values())


def followed(tree: PendingTree, epoch: i64) -> list[Node]:
    """The nodes on whose edges the cache held something in walk `epoch`, parents first.

    O(children of nodes that it held whole).
    """
    nodes: list[Node] = []
    whole: list[Node] = [root for _, root in tree.roots()]
    while whole:
        node = whole.pop()
        kid = node.kid
        while kid is not None:
            if kid.walk_epoch == epoch and kid.walk_matched > node.depth:
                nodes.append(kid)
                if kid.walk_matched == kid.depth:
                    whole.append(kid)
            kid = kid.next
    return nodes


def on_paths(tree: PendingTree, keys: Iterable[tuple[str, bytes]]) -> list[Node]:
    """The nodes that packed keys, each with its namespace, pass through, parents first.  O(symbols)."""
    nodes: list[Node] = []
    for namespace, packed in keys:
        node = tree.root(namespace)
        n: i64 = len(packed)
        at: i64 = 0
        while node is not None and at < n:
            node = tree.child(node, symbol_at(packed, at))
            if node is not None:
                nodes.append(node)
                common = match_edge(node.edge, packed, at)
                at += common
                if common < len(node.edge):
                    break
    return nodes
