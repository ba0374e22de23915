"""A prefix cache as SGLang keeps it: a radix tree of symbols with locks and leaf eviction.

Semantics follow `sglang/srt/mem_cache/radix_cache.py`: a match splits a node where it ends and
refreshes the recency of its path, running requests lock their path, only unlocked leaves can be
evicted, least recently used first.  With symbols of several tokens it is the paged form.  It is also
a `CacheTree`, so the planner walks it directly; that walk changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, final

from mypy_extensions import i64
from sortedcontainers import SortedList

from peek.simulation.radix_node import RadixNode, RadixPlace
from peek.trie.keys import match_edge, match_span, symbol_at
from peek.trie.tree_view import edge_bytes

if TYPE_CHECKING:
    Leaves = SortedList[tuple[int, int]]


@final
class RadixCache:
    """The cached tokens of one engine; sizes in tokens."""

    def __init__(self, unit_tokens: int = 1) -> None:
        self.unit_tokens, self.block_symbols = unit_tokens, 1
        self.cached_tokens: i64 = 0
        """Tokens in the tree, locked or not."""
        self.locked_tokens: i64 = 0
        """Tokens of nodes that a running request needs."""
        self.version: i64 = 0
        """Grows with every change of the tree's shape."""
        self._roots: dict[str, RadixNode] = {}
        self._edges: dict[int, RadixNode] = {}
        self._nodes: dict[int, RadixNode] = {}
        self._leaves: Leaves = SortedList()
        self._next_uid: i64 = 1
        self._clock: i64 = 0

    # -- CacheTree: read-only, for the planner -----------------------------------------------------

    def root(self, namespace: str) -> object:
        node = self._roots.get(namespace)
        return None if node is None else RadixPlace(node, 0)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if cursor is None:
            return 0, None
        assert isinstance(cursor, RadixPlace)
        symbols = edge_bytes(segment)
        node = cursor.node
        at = cursor.at
        n: i64 = len(symbols)
        done: i64 = 0
        while done < n:
            if at == len(node.edge):
                child = self._edges.get((node.uid << 32) | symbol_at(symbols, done))
                if child is None:
                    break
                node = child
                at = 0
            common: i64 = match_span(symbols, done, node.edge, at)
            done += common
            at += common
            if at < len(node.edge):
                break
        if done == 0:
            return 0, cursor
        return done >> 2, RadixPlace(node, at)

    def node_id(self, cursor: object) -> int:
        assert isinstance(cursor, RadixPlace)
        return cursor.node.uid

    def parent_id(self, node_id: int) -> int:
        node = self._nodes.get(node_id)
        parent = None if node is None else node.parent
        return 0 if parent is None or parent.parent is None else parent.uid

    # -- what the engine does ----------------------------------------------------------------------

    @property
    def evictable_tokens(self) -> int:
        """Tokens that `evict` could free."""
        return self.cached_tokens - self.locked_tokens

    def match(self, key: bytes, namespace: str, max_symbols: int) -> RadixNode:
        """The node where the longest cached prefix of `key[:max_symbols]` ends; its depth is the length.

        Splits a node in which the match ends and refreshes recency on the path.
        """
        node = self._root_for(namespace)
        n: i64 = min(len(key), max_symbols << 2)
        at: i64 = 0
        self._clock += 1
        while at < n:
            slot: i64 = (node.uid << 32) | symbol_at(key, at)
            child = self._edges.get(slot)
            if child is None:
                break
            common: i64 = min(match_edge(child.edge, key, at), n - at)
            if common < len(child.edge):
                child = self._split(node, child, slot, common)
            self._touch(child)
            node = child
            at += common
        return node

    def insert(self, key: bytes, namespace: str) -> RadixNode:
        """Cache `key`; returns its node.  Tokens that were cached already are not counted again."""
        node = self.match(key, namespace, len(key) >> 2)
        at: i64 = node.depth << 2
        if at == len(key):
            return node
        leaf = self._new_node(key[at:], node, len(key) >> 2)
        self._edges[(node.uid << 32) | symbol_at(key, at)] = leaf
        if node.kids == 0 and node.locks == 0 and node.parent is not None:
            self._leaves.remove((node.last_access, node.uid))
        node.kids += 1
        self.cached_tokens += (len(leaf.edge) >> 2) * self.unit_tokens
        leaf.last_access = self._clock
        self._leaves.add((leaf.last_access, leaf.uid))
        return leaf

    def rename(self, uid: int, symbols: bytes) -> None:
        """What node `uid` holds turns out to begin with other symbols; as many as it has.  O(symbols).

        Nothing happens if it is gone, or if its parent has a child of that first symbol.
        """
        node = self._nodes.get(uid)
        parent = None if node is None else node.parent
        if node is None or parent is None or not symbols:
            return
        slot: i64 = (parent.uid << 32) | symbol_at(symbols, 0)
        if slot in self._edges:
            return
        del self._edges[(parent.uid << 32) | symbol_at(node.edge, 0)]
        node.edge = symbols[: len(node.edge)] + node.edge[len(symbols) :]
        self._edges[slot] = node
        self.version += 1

    def lock(self, node: RadixNode) -> None:
        """A running request needs the path to `node`."""
        current = node
        while True:
            parent = current.parent
            if parent is None:
                return
            if current.locks == 0:
                self.locked_tokens += (len(current.edge) >> 2) * self.unit_tokens
                if current.kids == 0:
                    self._leaves.remove((current.last_access, current.uid))
            current.locks += 1
            current = parent

    def unlock(self, node: RadixNode) -> None:
        """The request behind one `lock` of `node` is gone."""
        current = node
        while True:
            parent = current.parent
            if parent is None:
                return
            assert current.locks > 0, "unlock without lock"
            current.locks -= 1
            if current.locks == 0:
                self.locked_tokens -= (len(current.edge) >> 2) * self.unit_tokens
                if current.kids == 0:
                    self._leaves.add((current.last_access, current.uid))
            current = parent

    def evict(self, tokens: int, score: Callable[[int], float] | None = None) -> int:
        """Free at least `tokens` tokens of unlocked leaves if there are that many.

        Args:
            score: demand of a node id; least recently used first without it.

        Returns:
            Tokens freed.
        """
        freed: i64 = 0
        if score is not None:
            return self._evict_by_demand(tokens, score)
        while freed < tokens and self._leaves:
            node = self._nodes[self._leaves[0][1]]
            freed += (len(node.edge) >> 2) * self.unit_tokens
            self._drop(node)
        return freed

    def _evict_by_demand(self, tokens: int, score: Callable[[int], float]) -> int:
        """Leaves that nobody needs by recency; only when none is left the least needed.

        A leaf set free by dropping its last child takes its place among the others at once.  Each leaf
        is scored once a call.
        """
        leaves = self._leaves
        needed: list[tuple[float, int, int]] = []
        scored: set[int] = set()
        at: i64 = 0  # leaves before this position are needed
        freed: i64 = 0
        while freed < tokens:
            victim: i64 = 0
            for last_access, uid in leaves.islice(at):
                if uid not in scored:
                    demand = score(uid)
                    if demand == 0.0:
                        victim = uid
                        break
                    scored.add(uid)
                    heappush(needed, (demand, last_access, uid))
                at += 1
            if victim == 0:
                if not needed:
                    break
                _, _, victim = heappop(needed)
                at -= 1
            node = self._nodes[victim]
            freed += (len(node.edge) >> 2) * self.unit_tokens
            parent = self._drop(node)
            if parent is not None:
                at = min(at, leaves.bisect_left((parent.last_access, parent.uid)))
        return freed

    def check(self) -> None:
        """Verify the bookkeeping; `AssertionError` names what is off."""
        cached = sum(len(node.edge) >> 2 for node in self._nodes.values()) * self.unit_tokens
        locked = sum(len(n.edge) >> 2 for n in self._nodes.values() if n.locks) * self.unit_tokens
        assert cached == self.cached_tokens and locked == self.locked_tokens, "token counts"
        leaves = [
            (node.last_access, node.uid)
            for node in self._nodes.values()
            if node.parent is not None and node.kids == 0 and node.locks == 0
        ]
        assert sorted(leaves) == list(self._leaves), "evictable leaves"

    # -- structure ---------------------------------------------------------------------------------

    def _root_for(self, namespace: str) -> RadixNode:
        root = self._roots.get(namespace)
        if root is None:
            root = RadixNode(b"", None, self._take_uid(), 0)
            self._roots[namespace] = root
        return root

    def _take_uid(self) -> i64:
        uid = self._next_uid
        self._next_uid = uid + 1
        return uid

    def _new_node(self, edge: bytes, parent: RadixNode, depth: i64) -> RadixNode:
        node = RadixNode(edge, parent, self._take_uid(), depth)
        self.version += 1
        self._nodes[node.uid] = node
        return node

    def _split(self, parent: RadixNode, child: RadixNode, slot: i64, at: i64) -> RadixNode:
        edge = child.edge
        upper = self._new_node(edge[:at], parent, parent.depth + (at >> 2))
        upper.kids = 1
        upper.locks = child.locks
        upper.last_access = child.last_access
        child.edge = edge[at:]
        child.parent = upper
        self._edges[(upper.uid << 32) | symbol_at(edge, at)] = child
        self._edges[slot] = upper
        return upper

    def _touch(self, node: RadixNode) -> None:
        if node.kids == 0 and node.locks == 0:
            self._leaves.remove((node.last_access, node.uid))
            self._leaves.add((self._clock, node.uid))
        node.last_access = self._clock

    def _drop(self, node: RadixNode) -> RadixNode | None:
        """Forget a leaf; its parent if that can be evicted now."""
        parent = node.parent
        assert parent is not None and node.kids == 0 and node.locks == 0
        self._leaves.remove((node.last_access, node.uid))
        del self._edges[(parent.uid << 32) | symbol_at(node.edge, 0)]
        del self._nodes[node.uid]
        self.version += 1
        self.cached_tokens -= (len(node.edge) >> 2) * self.unit_tokens
        parent.kids -= 1
        if parent.parent is not None and parent.kids == 0 and parent.locks == 0:
            self._leaves.add((parent.last_access, parent.uid))
            return parent
        return None
