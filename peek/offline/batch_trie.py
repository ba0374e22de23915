"""The trie of a whole batch: built once from all prompts, read as arrays, never changed after.

Operations it must support: take the prompts one after another without keeping them, and hand over the
finished shape.  `PendingTree` serves a queue that comes and goes; here nothing is ever removed, so a node
has no siblings, no marks and no handles, only a parent: a million prompts cost a third of the memory,
there are no reference cycles to collect, and everything after the building is array work.

Plan.  A compressed trie over tokens, all children in one dictionary keyed
`(node index << 32) | first token`, edges as packed `bytes`.  Of a prompt only the part that no earlier
prompt had is kept.  The shape is returned as five arrays, see `BatchShape`.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
from mypy_extensions import i64

from peek.trie.keys import match_edge, pack, symbol_at

ROOT: Final = 0
"""Index of the root in every array of nodes."""


@final
class BatchNode:
    """A node and the edge that leads to it; `depth` and `count` as in `BatchShape`."""

    __slots__ = ("count", "depth", "edge", "first", "index", "parent")

    def __init__(self, edge: bytes, parent: BatchNode | None, index: i64, depth: i64, first: i64) -> None:
        self.edge = edge
        self.parent: BatchNode | None = parent
        self.index: i64 = index
        self.depth: i64 = depth
        self.first: i64 = first
        self.count: i64 = 0


@final
class BatchTrie:
    """Compressed trie of a batch.

    Args:
        max_tokens: leading tokens of every prompt that count; 0 for all of them.
    """

    __slots__ = ("_edges", "_leaves", "_lengths", "_max_tokens", "_nodes", "_root", "_roots")

    def __init__(self, max_tokens: int = 0) -> None:
        self._max_tokens: i64 = max_tokens
        self._root = BatchNode(b"", None, ROOT, 0, 0)
        self._nodes = [self._root]
        self._roots: dict[str, BatchNode] = {}
        self._edges: dict[int, BatchNode] = {}
        self._leaves: list[BatchNode] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        """Prompts so far.  O(1)."""
        return len(self._leaves)

    def add(self, prompt: object, namespace: str = "") -> None:
        """Add the next prompt; its position is the number of prompts before it.

        Cost: packing (about 3 ns per token of a list), one comparison of the part that is known, a copy of
        the part that is new.  `InvalidKey` as `peek.trie.keys.pack`; the trie is then unchanged.
        """
        length: i64 = len(prompt) if isinstance(prompt, list) else 0
        wanted = self._max_tokens
        if wanted and length > wanted and isinstance(prompt, list):
            packed = pack(prompt[:wanted])
        else:
            packed = pack(prompt)
            length = len(packed) >> 2
            if wanted and length > wanted:
                packed = packed[: wanted << 2]
        self._leaves.append(self._grow(self._start(namespace), packed))
        self._lengths.append(length)

    def _start(self, namespace: str) -> BatchNode:
        """The node of depth 0 that a namespace's prompts hang on, the root for the unnamed one."""
        if not namespace:
            return self._root
        node = self._roots.get(namespace)
        if node is None:
            node = self._new_node(b"", self._root, 0)
            self._roots[namespace] = node
        node.count += 1
        return node

    def _grow(self, node: BatchNode, packed: bytes) -> BatchNode:
        self._root.count += 1
        edges = self._edges
        n: i64 = len(packed)
        at: i64 = 0
        while at < n:
            slot: i64 = (node.index << 32) | symbol_at(packed, at)
            child = edges.get(slot)
            if child is None:
                leaf = self._new_node(packed[at:] if at else packed, node, n >> 2)
                leaf.count = 1
                edges[slot] = leaf
                return leaf
            common: i64 = match_edge(child.edge, packed, at)
            if common < len(child.edge):
                child = self._split(node, child, slot, common)
            child.count += 1
            node = child
            at += common
        return node

    def _new_node(self, edge: bytes, parent: BatchNode, depth: i64) -> BatchNode:
        node = BatchNode(edge, parent, len(self._nodes), depth, len(self._leaves))
        self._nodes.append(node)
        return node

    def _split(self, parent: BatchNode, child: BatchNode, slot: i64, at: i64) -> BatchNode:
        """Cut `child`'s edge behind byte `at`; returns the new upper node."""
        edge = child.edge
        upper = self._new_node(edge[:at], parent, parent.depth + (at >> 2))
        upper.first = child.first
        upper.count = child.count
        child.edge = edge[at:]
        child.parent = upper
        self._edges[(upper.index << 32) | symbol_at(edge, at)] = child
        self._edges[slot] = upper
        return upper

    def columns(self) -> list[object]:
        """Parent, depth, count, first of all nodes; leaf and length of all prompts: int64 vectors.  O(n)."""
        n = len(self._nodes)
        m = len(self._leaves)
        parents = [ROOT if node.parent is None else node.parent.index for node in self._nodes]
        return [
            np.fromiter(parents, np.int64, n),
            np.fromiter([node.depth for node in self._nodes], np.int64, n),
            np.fromiter([node.count for node in self._nodes], np.int64, n),
            np.fromiter([node.first for node in self._nodes], np.int64, n),
            np.fromiter([leaf.index for leaf in self._leaves], np.int64, m),
            np.fromiter(self._lengths, np.int64, m),
        ]
