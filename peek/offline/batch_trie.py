"""The compiled part of offline scheduling: the trie of a whole batch, and an LRU cache over its nodes.

**The trie** takes prompts one after another and returns its finished shape.  Nothing is ever removed from a
batch, so a node needs only a parent.  A million prompts take a third of a `PendingTree`'s memory, without
reference cycles.  All children are in one dictionary by `(node index << 32) | first token`.  The trie keeps
only the part of a prompt that no earlier prompt has, as packed `bytes`.

**The cache** is exact for every block, at a cost per node.  All blocks of an edge are used together, so they
are neighbours in the LRU order, deeper blocks first, as engines free them.  So one entry per node, with the
number of its blocks that are left, is enough.  The tests compare the hits with `ShadowCache`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

import numpy as np
from mypy_extensions import i64

from peek.trie.keys import match_edge, pack, symbol_at

ROOT: Final = 0  # index of the root in arrays and lists by node


@final
class BatchNode:
    """A node and the edge from its parent; `depth`, `count` and `first` are those of `BatchShape`."""

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
    """Compressed trie over the prompts of a batch, or their first `max_tokens` tokens unless that is 0."""

    __slots__ = ("_edges", "_leaves", "_lengths", "_max_tokens", "_nodes", "_root", "_roots")

    def __init__(self, max_tokens: int = 0) -> None:
        self._max_tokens: i64 = max_tokens
        self._root = BatchNode(b"", None, ROOT, 0, 0)
        self._nodes = [self._root]
        self._roots: dict[str, BatchNode] = {}
        self._edges: dict[int, BatchNode] = {}
        self._leaves: list[BatchNode] = []
        self._lengths: list[int] = []

    def add(self, prompt: object, namespace: str = "") -> None:
        """Add the next prompt; its index is the number of prompts added before.

        `InvalidKey` as `peek.trie.keys.pack`; the trie is then unchanged.  Cost: packing (about 3 ns per
        token of a list), one comparison of the known part of the prompt, and a copy of the new part.
        """
        wanted = self._max_tokens
        packed = pack(prompt[:wanted] if wanted and isinstance(prompt, list) else prompt)
        length = len(prompt) if isinstance(prompt, list) else len(packed) >> 2
        if wanted:
            packed = packed[: wanted << 2]
        self._leaves.append(self._grow(self._start(namespace), packed))
        self._lengths.append(length)

    def _start(self, namespace: str) -> BatchNode:
        """Return the node of depth 0 above a namespace's prompts; the root for the namespace ""."""
        if not namespace:
            return self._root
        if namespace not in self._roots:
            self._roots[namespace] = self._new_node(b"", self._root, 0)
        node = self._roots[namespace]
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
        """Cut `child`'s edge after byte `at`; return the new upper node."""
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
        """Return the fields of `BatchShape` in order, as int64 vectors, depths in tokens.  O(nodes)."""
        nodes = self._nodes
        return [
            np.array([ROOT if node.parent is None else node.parent.index for node in nodes], np.int64),
            np.array([node.depth for node in nodes], np.int64),
            np.array([node.count for node in nodes], np.int64),
            np.array([node.first for node in nodes], np.int64),
            np.array([leaf.index for leaf in self._leaves], np.int64),
            np.array(self._lengths, np.int64),
        ]


@final
class Residency:
    """An LRU cache of blocks over the nodes of a trie."""

    __slots__ = ("_kept", "capacity", "lengths", "parent", "used")

    def __init__(self, parent: list[int], lengths: list[int], capacity: int) -> None:
        self.parent = parent  # index of each node's parent; the root is node 0
        self.lengths = lengths  # number of blocks on each node's edge, 0 for the root
        self.capacity: i64 = capacity  # in blocks
        self.used: i64 = 0
        # By node: how many leading blocks of its edge are in the cache; the node used longest ago is first.
        self._kept: OrderedDict[int, int] = OrderedDict()

    def admit(self, leaf: int) -> int:
        """Run the prompt that ends at `leaf`; return how many of its leading blocks were cached.

        Afterwards all its blocks are cached, or as many leading blocks as fit.  Amortised O(path).
        """
        parent, lengths, kept = self.parent, self.lengths, self._kept
        hits: i64 = 0
        needed: i64 = 0
        node = leaf
        while node != 0:  # upwards: if blocks of a node are missing, hits below it do not count
            held: i64 = kept.pop(node, 0)
            length: i64 = lengths[node]
            hits = hits + held if held == length else held
            needed += length
            self.used -= held
            node = parent[node]
        surplus = needed - self.capacity
        self._free(needed if surplus < 0 else self.capacity)
        node = leaf
        while node != 0:
            length = lengths[node]
            if surplus > 0:  # if a prompt is larger than the cache, its first blocks are cached
                cut = surplus if surplus < length else length
                surplus -= cut
                length -= cut
            if length:
                kept[node] = length
                self.used += length
            node = parent[node]
        return hits

    def match(self, leaf: int) -> int:
        """Return how many leading blocks of the prompt ending at `leaf` are cached.  O(path)."""
        hits: i64 = 0
        node = leaf
        while node != 0:
            held: i64 = self._kept.get(node, 0)
            length: i64 = self.lengths[node]
            hits = hits + held if held == length else held
            node = self.parent[node]
        return hits

    def _free(self, blocks: i64) -> None:
        """Evict until `blocks` blocks fit: from the node used longest ago, its deepest block first."""
        over = self.used + blocks - self.capacity
        while over > 0:
            victim, held = self._kept.popitem(last=False)
            if held > over:
                self._kept[victim] = held - over
                self._kept.move_to_end(victim, last=False)
                held = over
            self.used -= held
            over -= held


def run_through(cache: Residency, leaves: list[int], limits: list[int], in_flight: int = 0) -> list[int]:
    """Run prompts, given by the nodes where they end, through a cache; return the blocks that each hits.

    A prompt hits at most its entry of `limits`, as engines always compute the last token.  `in_flight` later
    prompts start before a prompt's blocks can be hit.
    """
    result: list[int] = []
    n: i64 = len(leaves)
    i: i64 = 0
    while i < n:
        if in_flight:
            hits: i64 = cache.match(leaves[i])
            if i >= in_flight:
                cache.admit(leaves[i - in_flight])
        else:
            hits = cache.admit(leaves[i])
        limit: i64 = limits[i]
        result.append(hits if hits < limit else limit)
        i += 1
    return result


def shared_with_previous(parent: list[int], depth: list[int], leaves: list[int]) -> list[int]:
    """Return the depth that each prompt shares with the prompt before it in this order; 0 for the first.

    Cost: O(path) per prompt.
    """
    result: list[int] = []
    previous: i64 = 0
    for leaf in leaves:
        a: i64 = leaf
        b = previous
        while a != b:
            a_depth: i64 = depth[a]
            b_depth: i64 = depth[b]
            if a_depth >= b_depth and a != 0:
                a = parent[a]
            else:
                b = parent[b]
        result.append(depth[a])
        previous = leaf
    return result
