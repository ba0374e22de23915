"""The prefix caches of the simulated engines: SGLang's radix tree of tokens and vLLM's pool of blocks.

`RadixCache` follows `sglang/srt/mem_cache/radix_cache.py`.  Running requests lock their paths; the least
recently used unlocked leaf is evicted first.  With several tokens per symbol it is SGLang's paged cache.

`BlockCache` follows `vllm/v1/core/block_pool.py`.  A block without users stays cached, in the free queue,
until it is handed out again.  A request frees its last block first, so a prefix is lost from its end; blocks
without a name go to the front of the queue.  A name is a *symbol*, a small integer in place of a chained
hash: two are equal exactly if all tokens up to the end of the block are.  No prompt has a name below 0.

Both caches are cache views: the planner walks them directly, and its walk changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64
from sortedcontainers import SortedList

from peek.eviction.demand import victims
from peek.trie.keys import match_edge, match_span, symbol_at
from peek.trie.tree_view import edge_bytes

if TYPE_CHECKING:
    Leaves = SortedList[tuple[int, int]]


@final
class RadixNode:
    """A node of the radix cache: the cached symbols between it and its parent."""

    __slots__ = ("depth", "edge", "kids", "last_access", "locks", "parent", "uid")

    def __init__(self, edge: bytes, parent: RadixNode | None, uid: i64, depth: i64) -> None:
        self.edge = edge
        self.parent: RadixNode | None = parent
        self.uid: i64 = uid
        self.depth: i64 = depth
        self.kids: i64 = 0
        self.locks: i64 = 0
        self.last_access: i64 = 0


@final
class RadixPlace:
    """A cursor of the radix cache: the place `at` bytes into the edge of `node`."""

    __slots__ = ("at", "node")

    def __init__(self, node: RadixNode, at: i64) -> None:
        self.node = node
        self.at: i64 = at


@final
class RadixCache:
    """The prefix cache of an SGLang-like engine, a radix tree for each namespace; sizes in tokens."""

    def __init__(self, unit_tokens: int = 1) -> None:
        self.unit_tokens, self.block_symbols = unit_tokens, 1
        self.cached_tokens: i64 = 0  # in the tree, locked or not
        self.locked_tokens: i64 = 0  # in nodes that running requests lock
        self.version: i64 = 0  # of the cache view: it grows with every change of the tree's nodes
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

    def match(self, key: bytes, namespace: str, max_symbols: int) -> RadixNode:
        """Return the node where the longest cached prefix of the first `max_symbols` symbols ends.

        A node in which the prefix ends is split.  Refreshes the recency of the path.
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
        """Cache `key`; return the node where it ends.  Only tokens that are new count."""
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
        """Replace the first symbols on the edge of node `uid`, at most as many as it has.  O(symbols).

        Does nothing if the node is gone, or if its parent already has a child with that first symbol.
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
        """Lock the path to `node` for one more running request."""
        current = node
        while (parent := current.parent) is not None:
            if current.locks == 0:
                self.locked_tokens += (len(current.edge) >> 2) * self.unit_tokens
                if current.kids == 0:
                    self._leaves.remove((current.last_access, current.uid))
            current.locks += 1
            current = parent

    def unlock(self, node: RadixNode) -> None:
        current = node
        while (parent := current.parent) is not None:
            assert current.locks > 0, "unlock without lock"
            current.locks -= 1
            if current.locks == 0:
                self.locked_tokens -= (len(current.edge) >> 2) * self.unit_tokens
                if current.kids == 0:
                    self._leaves.add((current.last_access, current.uid))
            current = parent

    def evict(self, tokens: int, score: Callable[[int], float] | None = None) -> int:
        """Evict unlocked leaves until `tokens` tokens are freed or no leaf is left; return the tokens freed.

        `score` returns the demand by node id; None evicts the least recently used leaf first.
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
        """Evict leaves without demand by recency; when none is left, the leaf with the least demand.

        A parent that becomes a leaf takes its place among the leaves at once.  Each leaf with demand is
        scored once a call.
        """
        leaves = self._leaves
        needed: list[tuple[float, int, int]] = []
        scored: set[int] = set()
        at: i64 = 0  # all leaves before this position have demand
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
        evictable = [node for node in self._nodes.values() if node.kids == 0 and node.locks == 0]
        leaves = sorted([(node.last_access, node.uid) for node in evictable])
        assert leaves == list(self._leaves), "evictable leaves"

    # -- structure ---------------------------------------------------------------------------------

    def _root_for(self, namespace: str) -> RadixNode:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._new_node(b"", None, 0)
        return root

    def _new_node(self, edge: bytes, parent: RadixNode | None, depth: i64) -> RadixNode:
        node = RadixNode(edge, parent, self._next_uid, depth)
        self._next_uid += 1
        if parent is not None:
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
        """Remove a leaf; return its parent if the parent can be evicted now, else None."""
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


NAMELESS: Final = -(2**31)  # marks a block without a name; neither prompts nor answers use this symbol


@final
class SymbolTable:
    """Gives each block a symbol, chained: two blocks get equal symbols if their whole prefixes are equal."""

    def __init__(self) -> None:
        self._symbols: dict[object, int] = {}  # by namespace, or by the symbol before and the block
        self._last: i64 = 0

    def fresh(self) -> int:
        """Return a new symbol, for example for a block of generated tokens."""
        self._last += 1
        return self._last

    def intern(self, key: bytes, block_bytes: int, namespace: str) -> list[int]:
        """Return the symbols of the full blocks of a packed key.  O(symbols)."""
        previous = self._symbol_of(namespace)
        symbols: list[int] = []
        for start in range(0, len(key) - block_bytes + 1, block_bytes):
            previous = self._symbol_of((previous, key[start : start + block_bytes]))
            symbols.append(previous)
        return symbols

    def _symbol_of(self, named: object) -> int:
        symbol = self._symbols.get(named, 0)
        if symbol == 0:
            symbol = self._symbols[named] = self.fresh()
        return symbol


@final
class BlockCache:
    """The prefix cache of a vLLM-like engine, a pool of fixed size."""

    def __init__(self, n_blocks: int, unit_tokens: int = 16) -> None:
        self.unit_tokens = unit_tokens
        self.block_symbols = 1
        self.n_blocks = n_blocks
        self.version: i64 = 0  # of the cache view: it grows with every change of the names from 0 on
        self.lone_requests: i64 = -1  # waiting requests, if none shares or hits anything; -1: unknown
        self._users: list[int] = [0] * n_blocks
        self._names: list[int] = [NAMELESS] * n_blocks
        self._blocks: dict[int, list[int]] = {}  # by name, the oldest first; as in vLLM, copies stay
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(n_blocks))

    # -- CacheView: read-only, for the planner -----------------------------------------------------

    def root(self, namespace: str) -> object:
        return 0  # a chained symbol names its whole prefix, so a cursor says nothing

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        symbols = edge_bytes(segment)
        blocks = self._blocks
        n: i64 = len(symbols)
        at: i64 = 0
        while at < n and symbol_at(symbols, at) in blocks:
            at += 4
        if at == 0:
            return 0, cursor
        return at >> 2, symbol_at(symbols, at - 4)

    def node_id(self, cursor: object) -> int:
        assert isinstance(cursor, int)
        return cursor

    # -- what the engine does ----------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Number of blocks that no running request uses, cached or not."""
        return len(self._free)

    def match(self, symbols: list[int], max_blocks: int) -> list[int]:
        """Return the blocks of the longest cached prefix, at most `max_blocks`."""
        found: list[int] = []
        for symbol in symbols[:max_blocks]:
            blocks = self._blocks.get(symbol)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def holds(self, symbol: int) -> bool:
        return symbol in self._blocks

    def names(self) -> frozenset[int]:
        """Return the names of all cached blocks.  O(blocks)."""
        return frozenset(self._blocks)

    def idle(self, blocks: list[int]) -> int:
        """Return how many of `blocks` are in the free queue."""
        return sum(1 for block in blocks if self._users[block] == 0)

    def use(self, blocks: list[int]) -> None:
        """Count one more user of each cached block; used blocks leave the free queue."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int, score: Callable[[int], float] | None = None, scan_limit: int = 0) -> list[int]:
        """Hand out `count` free blocks and evict what they cached; the caller checks `free_blocks`."""
        assert count <= len(self._free), "more blocks than free"
        order = iter(self._free)
        if score is not None:
            order = victims(self._free, _BlockScorer(self._names, score).demand, max(1, scan_limit))
        taken = list(islice(order, max(0, count)))
        for block in taken:
            del self._free[block]
            self._users[block] = 1
            self._forget(block)
        return taken

    def name(self, block: int, symbol: int) -> None:
        """Give a full block its name, so that it can be hit."""
        self._names[block] = symbol
        if symbol in self._blocks:
            self._blocks[symbol].append(block)
            return
        self._blocks[symbol] = [block]
        if symbol >= 0:
            self.version += 1

    def rename(self, symbol: int, other: int) -> None:
        """Give the blocks named `symbol` the name `other`; does nothing if a block has that name."""
        if symbol in self._blocks and other not in self._blocks:
            for block in list(self._blocks[symbol]):
                self._forget(block)
                self.name(block, other)

    def release(self, blocks: list[int]) -> None:
        """Count one user less of `blocks`, given in order of the prompt; unused ones join the free queue."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if self._names[block] == NAMELESS:
                    self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        symbol = self._names[block]
        if symbol != NAMELESS:
            self._names[block] = NAMELESS
            self._blocks[symbol].remove(block)
            if not self._blocks[symbol]:
                del self._blocks[symbol]
                if symbol >= 0:
                    self.version += 1

    def check(self) -> None:
        """Verify the bookkeeping; `AssertionError` names what is off."""
        assert all((users == 0) == (block in self._free) for block, users in enumerate(self._users)), "free"
        named = [(symbol, block) for block, symbol in enumerate(self._names) if symbol != NAMELESS]
        held = [(symbol, block) for symbol, blocks in self._blocks.items() for block in blocks]
        assert sorted(named) == sorted(held) and all(self._blocks.values()), "names"


@final
class _BlockScorer:
    """Scores a block by the demand of its name; a block without a name has none."""

    def __init__(self, names: list[int], score: Callable[[int], float]) -> None:
        self._names = names
        self._score = score

    def demand(self, block: int) -> float:
        symbol = self._names[block]
        return 0.0 if symbol == NAMELESS else self._score(symbol)
