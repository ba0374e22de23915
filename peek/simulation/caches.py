"""The prefix caches of the simulated engines: a radix tree as SGLang keeps it, a pool of blocks as vLLM does.

`RadixCache` follows `sglang/srt/mem_cache/radix_cache.py`: a match splits a node where it ends and refreshes
the recency of its path, running requests lock their path, only unlocked leaves can be evicted, least recently
used first.  With symbols of several tokens it is the paged form.

`BlockCache` follows `vllm/v1/core/block_pool.py`: a block stays cached after its last user left and sits in
the free queue until it is handed out again; a freed request gives its blocks back last block first, so a
chain is lost from its end; blocks without a name go to the front of the queue.  Names are *symbols*: small
integers for chained hashes, equal exactly when all tokens up to and including the block are equal; one below
0 is for a block that no prompt asks for.

Both are cache views: the planner walks them directly, and that walk changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
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
    """One cached run of symbols."""

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
    """A cursor: `at` bytes into the edge of `node`."""

    __slots__ = ("at", "node")

    def __init__(self, node: RadixNode, at: i64) -> None:
        self.node = node
        self.at: i64 = at


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
        """Give what node `uid` holds other symbols, as far as it reaches.  O(symbols).

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
        """Drop leaves without demand by recency, and only when none is left the least needed.

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


NAMELESS: Final = -(2**31)
"""The name of a block that has none: the one symbol that neither prompts nor answers use."""


@final
class SymbolTable:
    """Interns chained blocks: equal prefixes get equal symbols."""

    def __init__(self) -> None:
        self._symbols: dict[tuple[int, bytes], int] = {}
        self._roots: dict[str, int] = {}
        self._last: i64 = 0

    def fresh(self) -> int:
        """A symbol that no prompt has, for a block of generated tokens."""
        self._last += 1
        return self._last

    def intern(self, key: bytes, block_bytes: int, namespace: str) -> list[int]:
        """The symbols of the full blocks of a packed key.  O(blocks)."""
        previous = self._roots.get(namespace, 0)
        if previous == 0:
            previous = self.fresh()
            self._roots[namespace] = previous
        symbols: list[int] = []
        for start in range(0, len(key) - block_bytes + 1, block_bytes):
            chained = (previous, key[start : start + block_bytes])
            symbol = self._symbols.get(chained, 0)
            if symbol == 0:
                symbol = self.fresh()
                self._symbols[chained] = symbol
            symbols.append(symbol)
            previous = symbol
        return symbols


@final
class HostTier:
    """Names of blocks that fell out of a device's pool into host memory, the first to have fallen first.

    A block is in the pool or here, never in both: what is loaded, or computed again, is here no more.

    Args:
        n_blocks: room; the first to have fallen makes it for the next.
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._names: OrderedDict[int, None] = OrderedDict()

    def names(self) -> list[int]:
        """The symbols of what is here, the next to be lost first.  O(blocks)."""
        return list(self._names)

    def holds(self, symbol: int) -> bool:
        """Whether a block of that name is here.  O(1)."""
        return symbol in self._names

    def put(self, symbol: int) -> None:
        """A block falls in.  O(1)."""
        self._names[symbol] = None
        if len(self._names) > self.n_blocks:
            self._names.popitem(last=False)

    def drop(self, symbol: int) -> None:
        """The block of that name, if here, is in the pool again.  O(1)."""
        self._names.pop(symbol, None)

    def run(self, symbols: list[int], start: int, end: int) -> int:
        """How many of `symbols[start:end]` in a row are here, from the first on.  O(blocks)."""
        at = start
        while at < min(end, len(symbols)) and symbols[at] in self._names:
            at += 1
        return at - start


@final
class BlockCache:
    """The blocks of one engine, in a pool of fixed size; with `tier` what it forgets falls in there."""

    def __init__(self, n_blocks: int, unit_tokens: int = 16, tier: HostTier | None = None) -> None:
        self.tier = tier
        self.unit_tokens = unit_tokens
        self.block_symbols = 1
        self.n_blocks = n_blocks
        self.version: i64 = 0
        """Grows with every name given or forgotten that a prompt may ask for."""
        self.lone_requests: i64 = -1
        """Waiting requests known to share nothing and to hit nothing; -1 where that is not known."""
        self._users: list[int] = [0] * n_blocks
        self._names: list[int] = [NAMELESS] * n_blocks
        self._blocks: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(n_blocks))

    # -- CacheView: read-only, for the planner -----------------------------------------------------

    def root(self, namespace: str) -> object:
        return 0  # chained symbols need no place: they name their whole prefix

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
        """Blocks that no running request uses, cached or not."""
        return len(self._free)

    def match(self, symbols: list[int], max_blocks: int) -> list[int]:
        """Blocks of the longest cached prefix, at most `max_blocks`."""
        found: list[int] = []
        for symbol in symbols[:max_blocks]:
            block = self._blocks.get(symbol, -1)
            if block < 0:
                break
            found.append(block)
        return found

    def holds(self, symbol: int) -> bool:
        """Whether a block of that name is cached.  O(1)."""
        return symbol in self._blocks

    def names(self) -> frozenset[int]:
        """The symbols of all blocks that have one.  O(blocks)."""
        return frozenset(self._blocks)

    def idle(self, blocks: list[int]) -> int:
        """How many of `blocks` sit in the free queue and would leave it when used."""
        return sum(1 for block in blocks if self._users[block] == 0)

    def use(self, blocks: list[int]) -> None:
        """One more request uses cached blocks."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int, score: Callable[[int], float] | None = None, scan_limit: int = 0) -> list[int]:
        """Hand out `count` free blocks, forgetting what they cached; caller checks `free_blocks`."""
        assert count <= len(self._free), "more blocks than free"
        taken: list[int] = []
        if count <= 0:
            return taken
        for block in self._in_order(score, scan_limit):
            taken.append(block)
            if len(taken) == count:
                break
        for block in taken:
            del self._free[block]
            self._users[block] = 1
            if self.tier is not None and self._names[block] != NAMELESS:
                self.tier.put(self._names[block])
            self._forget(block)
        return taken

    def _in_order(self, score: Callable[[int], float] | None, scan_limit: int) -> Iterator[int]:
        if score is None:
            return iter(self._free)
        scorer = _BlockScorer(self._names, score)
        return victims(self._free, scorer.demand, max(1, scan_limit))

    def name(self, block: int, symbol: int) -> None:
        """A block is full: from now on it answers to its symbol, unless another does."""
        if symbol not in self._blocks:
            self._blocks[symbol] = block
            self._names[block] = symbol
            if self.tier is not None:
                self.tier.drop(symbol)
            if symbol >= 0:
                self.version += 1

    def rename(self, symbol: int, other: int) -> None:
        """Give a block another name; nothing happens if that is taken.  O(1)."""
        block = self._blocks.get(symbol, -1)
        if block >= 0 and other not in self._blocks:
            self._forget(block)
            self.name(block, other)

    def release(self, blocks: list[int]) -> None:
        """One request less uses `blocks`, which are in order of the prompt."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if self._names[block] == NAMELESS:
                    self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        symbol = self._names[block]
        if symbol != NAMELESS:
            del self._blocks[symbol]
            if symbol >= 0:
                self.version += 1
            self._names[block] = NAMELESS

    def check(self) -> None:
        """Verify the bookkeeping; `AssertionError` names what is off."""
        assert all((users == 0) == (block in self._free) for block, users in enumerate(self._users)), "free"
        named = {symbol: block for block, symbol in enumerate(self._names) if symbol != NAMELESS}
        assert named == self._blocks, "names"


@final
class _BlockScorer:
    """Demand of a block by its symbol."""

    def __init__(self, names: list[int], score: Callable[[int], float]) -> None:
        self._names = names
        self._score = score

    def demand(self, block: int) -> float:
        symbol = self._names[block]
        return 0.0 if symbol == NAMELESS else self._score(symbol)
