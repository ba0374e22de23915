"""A prefix cache as vLLM keeps it: a pool of blocks named by chained hashes, and a free queue.

Semantics follow `vllm/v1/core/block_pool.py`: a block stays cached after its last user left and sits
in the free queue until it is handed out again; a freed request gives its blocks back last block
first, so a chain is lost from its end; blocks without a name go to the front of the queue.

Names are *symbols*: small integers for chained hashes, equal exactly when all tokens up to and
including the block are equal; one below 0 is for a block that no prompt asks for.  It is also a
`CacheView` over such symbols.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import final

from mypy_extensions import i64

from peek.eviction.demand import victims
from peek.trie.keys import symbol_at
from peek.trie.tree_view import edge_bytes

NAMELESS = -(2**31)


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
class BlockCache:
    """The blocks of one engine, in a pool of fixed size."""

    def __init__(self, n_blocks: int, unit_tokens: int = 16) -> None:
        self.unit_tokens = unit_tokens
        self.block_symbols = 1
        self.n_blocks = n_blocks
        self.version: i64 = 0
        """Grows with every name given or forgotten that a prompt may ask for."""
        self.lone_requests: i64 = -1
        """Waiting requests known to share with nobody and to hit nothing; -1 where nobody has looked."""
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
            if symbol >= 0:
                self.version += 1

    def rename(self, symbol: int, other: int) -> None:
        """What a block holds turns out to have another name; nothing happens if that is taken.  O(1)."""
        block = self._blocks.get(symbol, -1)
        if block >= 0 and other not in self._blocks:
            self._forget(block)
            self.name(block, other)

    def release(self, blocks: list[int]) -> None:
        """One request less uses `blocks` (in order of the prompt)."""
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
