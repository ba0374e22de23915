"""Which of the blocks that waiting requests need are in vLLM's pool, as small integers.

vLLM names a block by a 32-byte hash that chains in all before it (LoRA, cache salt and multimodal
content included).  `BlockMirror` interns the hashes of waiting requests as symbols, so that the pending
tree compares integers, and keeps one flag per symbol, "cached", which the pool's own insertions and
removals keep current.  A walk then reads flags instead of making a Python call per block.

A symbol lives as long as a waiting request needs it; its number is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from peek.trie.keys import SYMBOL_BYTES, pack, symbol_at
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import edge_bytes


@final
class BlockMirror:
    """`CacheView` over interned block hashes.

    Args:
        unit_tokens: tokens per block.
        is_cached: asks the pool whether a block hash is cached; called once per new symbol.
    """

    def __init__(self, unit_tokens: int, is_cached: Callable[[bytes], bool]) -> None:
        self.unit_tokens = unit_tokens
        self.version: i64 = 0
        """Grows when a block that somebody waits for enters or leaves the cache."""
        self._is_cached = is_cached
        self._symbols: dict[bytes, int] = {}
        self._hashes: list[bytes] = []
        self._cached: list[bool] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Symbols in use."""
        return len(self._symbols)

    # -- CacheView ---------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        return 0  # a chained hash names its whole prefix: there is no place to remember

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        symbols = edge_bytes(segment)
        cached = self._cached
        n: i64 = len(symbols)
        at: i64 = 0
        while at < n and cached[symbol_at(symbols, at)]:
            at += 4
        return at >> 2, cursor

    def node_id(self, cursor: object) -> int:
        return -1  # demand is looked up by symbol, see `PendingTree.owner`

    # -- waiting requests --------------------------------------------------------------------------

    def intern(self, hashes: list[bytes]) -> bytes:
        """The packed symbols of a request's blocks; new ones get the pool's present state."""
        symbols: list[int] = []
        table = self._symbols
        for block_hash in hashes:
            symbol = table.get(block_hash, -1)
            if symbol < 0:
                symbol = self._new_symbol(block_hash, self._is_cached(block_hash))
            symbols.append(symbol)
        return pack(symbols)

    def alone(self, name: str) -> bytes:
        """A key that no other request has, for one whose blocks cannot be shared."""
        return pack([self._new_symbol(b"alone:" + name.encode(), False)])

    def _new_symbol(self, block_hash: bytes, cached: bool) -> int:
        if self._free:
            symbol = self._free.pop()
            self._hashes[symbol] = block_hash
            self._cached[symbol] = cached
        else:
            symbol = len(self._hashes)
            self._hashes.append(block_hash)
            self._cached.append(cached)
        self._symbols[block_hash] = symbol
        return symbol

    def release(self, key: bytes, tree: PendingTree) -> None:
        """A request left `tree`: forget those of its symbols that nobody waits for any more.

        Symbols are chained, so what is needed is a prefix of the key.  O(symbols forgotten).
        """
        at: i64 = len(key) - SYMBOL_BYTES
        while at >= 0:
            symbol = symbol_at(key, at)
            if tree.owner(symbol) is not None:
                return
            del self._symbols[self._hashes[symbol]]
            self._hashes[symbol] = b""
            self._free.append(symbol)
            at -= SYMBOL_BYTES

    # -- the pool ----------------------------------------------------------------------------------

    def block_cached(self, block_hash: bytes) -> None:
        """The pool caches a block."""
        symbol = self._symbols.get(block_hash, -1)
        if symbol >= 0 and not self._cached[symbol]:
            self._cached[symbol] = True
            self.version += 1

    def block_gone(self, block_hash: bytes) -> None:
        """The pool holds no block of that hash any more."""
        symbol = self._symbols.get(block_hash, -1)
        if symbol >= 0 and self._cached[symbol]:
            self._cached[symbol] = False
            self.version += 1

    def reset(self) -> None:
        """Ask the pool about every symbol anew: its table was replaced.  O(symbols)."""
        self.version += 1
        for block_hash, symbol in self._symbols.items():
            self._cached[symbol] = self._is_cached(block_hash)

    def symbol_of(self, block_hash: bytes) -> int:
        """The symbol of a block that somebody waits for, -1 for any other."""
        return self._symbols.get(block_hash, -1)
