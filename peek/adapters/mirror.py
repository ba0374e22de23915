"""Mirrors which of the blocks that waiting requests need are in vLLM's pool, with small integers for blocks.

vLLM names a block by a 32-byte hash that covers all blocks before it, and LoRA, cache salt and multimodal
content.  `BlockMirror` interns the hashes of waiting requests as symbols, so that the pending tree compares
integers.  For each symbol it keeps the pool's state, updated by the pool's own insertions and removals.  A
walk then reads states and makes no Python call per block.

Two things keep this cheap.  A block's state is looked up only when a walk reaches it; walks end at the first
missing block, so they reach few.  A request whose first block is neither needed by another request nor in the
pool can neither hit nor share.  That block is its whole key until this changes; then it is *outgrown*.

A symbol lives as long as a waiting request needs it; then its number is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, final

from mypy_extensions import i64

from peek.trie.keys import SYMBOL_BYTES, pack, symbol_at
from peek.trie.tree_view import edge_bytes

_UNKNOWN: Final = 0
_ABSENT: Final = 1
_CACHED: Final = 2

_MOST_CHANGES: Final = 65536
"""Most changes that are remembered until a walk; they take half a MiB."""


class BlockMirror:
    """`CacheView` over interned block hashes, with `unit_tokens` per block.

    `is_cached` looks up whether the pool caches the block of a key; the pool makes a key of a block hash by
    appending `key_suffix`.
    """

    def __init__(self, unit_tokens: int, is_cached: Callable[[bytes], bool], key_suffix: bytes = b"") -> None:
        self.unit_tokens = unit_tokens
        self.block_symbols = 1
        self.version: i64 = 0
        """Grows when an answer of `advance` may have changed."""
        self.symbols: dict[bytes, int] = {}
        """Symbols, by the pool keys that waiting requests need."""
        self._is_cached = is_cached
        self._suffix = key_suffix
        self._keys: list[bytes] = []
        self._state: list[int] = []
        self._free: list[int] = []
        self._lone: dict[int, str] = {}
        self._outgrown: list[str] = []
        self._changes: list[int] = []
        self._changes_from: i64 = 0

    def __len__(self) -> int:
        """Number of symbols in use."""
        return len(self.symbols)

    # -- CacheView ---------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        return 0  # a chained hash names its whole prefix: there is no place to remember

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        symbols = edge_bytes(segment)
        n: i64 = len(symbols)
        at: i64 = 0
        while at < n and self._holds(symbol_at(symbols, at)):
            at += SYMBOL_BYTES
        return at >> 2, cursor

    def node_id(self, cursor: object) -> int:
        return -1  # demand is looked up by symbol, see `PendingTree.owner`

    def changed_since(self, version: int) -> list[int] | None:
        """Return the symbols whose answers may have changed since `version`; None if any may have."""
        if version < self._changes_from:
            return None
        return self._changes[version - self._changes_from :]

    def _note_change(self, symbol: int) -> None:
        if len(self._changes) >= _MOST_CHANGES:
            self._forget_changes()
        self._changes.append(symbol)
        self.version += 1

    def _forget_changes(self) -> None:
        """Begin a new version, in which any answer may differ from earlier ones."""
        self.version += 1
        self._changes = []
        self._changes_from = self.version

    def _holds(self, symbol: int) -> bool:
        state = self._state[symbol]
        if state == _UNKNOWN:
            state = _CACHED if self._is_cached(self._keys[symbol]) else _ABSENT
            self._state[symbol] = state
        return state == _CACHED

    # -- waiting requests --------------------------------------------------------------------------

    def intern(self, request_id: str, hashes: list[bytes], usable: int) -> bytes:
        """Return packed symbols of a request's first `usable` >= 1 blocks; of only one if it is alone."""
        first = hashes[0] + self._suffix
        symbol = self.symbols.get(first, -1)
        if symbol >= 0:
            self._outgrow(symbol)
            return self.intern_all(hashes, usable)
        if self._is_cached(first):
            packed = self.intern_all(hashes, usable)
            self._state[self.symbols[first]] = _CACHED
            return packed
        symbol = self._new_symbol(first)
        self._state[symbol] = _ABSENT
        self._lone[symbol] = request_id
        return pack([symbol])

    def intern_all(self, hashes: list[bytes], usable: int) -> bytes:
        """Return the packed symbols of a request's first `usable` blocks.  O(usable).

        Raises, before anything has changed, if an item is not a hash.
        """
        symbols: list[int] = []
        suffix = self._suffix
        for key in [block_hash + suffix for block_hash in hashes[:usable]]:
            symbol = self.symbols.get(key, -1)
            if symbol < 0:
                symbol = self._new_symbol(key)
            symbols.append(symbol)
        return pack(symbols)

    def alone(self, request_id: str) -> bytes:
        """Return a key that no other request has, for a request whose blocks cannot be shared."""
        symbol = self._new_symbol(b"alone:" + request_id.encode())
        self._lone[symbol] = request_id
        return pack([symbol])

    @property
    def lone_requests(self) -> int:
        """Number of requests that can neither hit nor share, as far as is known."""
        return len(self._lone)

    def pop_outgrown(self) -> list[str]:
        """Return, once, the requests interned by only their first block whose other blocks matter now."""
        if not self._outgrown:
            return []
        outgrown = self._outgrown
        self._outgrown = []
        return outgrown

    def _outgrow(self, symbol: int) -> None:
        if symbol in self._lone:
            self._outgrown.append(self._lone.pop(symbol))

    def symbol_of(self, key: bytes) -> int:
        """Return the symbol of a pool key of any KV cache group; -1 if no waiting request needs it."""
        return self.symbols.get(key, -1)

    def wanted(self) -> Container[bytes]:
        """Return the pool keys, of any KV cache group, that waiting requests need; it stays up to date."""
        return self.symbols

    def _new_symbol(self, key: bytes) -> int:
        if self._free:
            symbol = self._free.pop()
            self._keys[symbol] = key
            self._state[symbol] = _UNKNOWN
        else:
            symbol = len(self._keys)
            self._keys.append(key)
            self._state.append(_UNKNOWN)
        self.symbols[key] = symbol
        return symbol

    def release(self, key: bytes, is_needed: Callable[[int], bool]) -> None:
        """Forget the symbols of a departed request that no other request needs.  O(symbols forgotten).

        Symbols are chained, so the needed ones are a prefix of the key.
        """
        at: i64 = len(key) - SYMBOL_BYTES
        while at >= 0:
            symbol = symbol_at(key, at)
            if is_needed(symbol):
                return
            del self.symbols[self._keys[symbol]]
            self._keys[symbol] = b""
            self._free.append(symbol)
            if at == 0:
                self._lone.pop(symbol, "")
            at -= SYMBOL_BYTES

    # -- the pool ----------------------------------------------------------------------------------

    def block_cached(self, key: bytes) -> None:
        symbol = self.symbols.get(key, -1)
        if symbol < 0:
            return
        if self._state[symbol] != _CACHED:
            self._state[symbol] = _CACHED
            self._note_change(symbol)
        self._outgrow(symbol)

    def block_gone(self, key: bytes) -> None:
        """Note that the pool dropped a block; it may still have another one with that key."""
        symbol = self.symbols.get(key, -1)
        if symbol >= 0 and self._state[symbol] == _CACHED:
            self._state[symbol] = _UNKNOWN
            self._note_change(symbol)

    def reset(self) -> None:
        """Forget all states, because the pool's table was replaced.  O(symbols)."""
        self._forget_changes()
        for symbol in self.symbols.values():
            self._forget(symbol)
        for symbol in list(self._lone):
            if self._holds(symbol):
                self._outgrow(symbol)

    def _forget(self, symbol: int) -> None:
        self._state[symbol] = _UNKNOWN


@final
class OtherGroup:
    """A KV cache group that does not need all blocks of a prefix (sliding window, Mamba).

    To go on from a point, it needs `needed` cached blocks in a row before it, or all blocks of a shorter
    prefix.  `is_cached` looks up its block for the key of a full-attention block.
    """

    def __init__(self, needed: int, is_cached: Callable[[bytes], bool]) -> None:
        self.needed: i64 = needed
        self.is_cached = is_cached
        self.state: list[int] = []


@final
class GroupMirror(BlockMirror):
    """`CacheView` of the prefixes that all groups together can use.

    Args:
        unit_tokens, is_cached, key_suffix: those of the full-attention group, see `BlockMirror`.
        others: the other groups that must be able to use a prefix.
        dropped: blocks at the end of a match that the engine computes again (1 with EAGLE).
    """

    def __init__(
        self,
        unit_tokens: int,
        is_cached: Callable[[bytes], bool],
        key_suffix: bytes,
        others: Sequence[OtherGroup] = (),
        dropped: int = 0,
    ) -> None:
        super().__init__(unit_tokens, is_cached, key_suffix)
        self._others: list[OtherGroup] = list(others)
        self._dropped: i64 = dropped

    # -- CacheView ---------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        return [0] * (1 + len(self._others))

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        """A cursor has the last point where all groups agree, then each other group's blocks in a row."""
        assert isinstance(cursor, list)
        place: list[int] = cursor[:]
        symbols = edge_bytes(segment)
        n: i64 = len(symbols)
        at: i64 = 0
        depth: i64 = offset
        while at < n:
            symbol = symbol_at(symbols, at)
            if not self._holds(symbol):
                break
            at += SYMBOL_BYTES
            depth += 1
            if self._others_agree(place, symbol, depth):
                place[0] = depth
        return at >> 2, place

    def _others_agree(self, place: list[int], symbol: int, depth: i64) -> bool:
        """Whether all other groups can go on after `symbol`, the prefix's last; updates `place`."""
        agree = True
        row: i64 = 0
        for group in self._others:
            row += 1
            state = group.state[symbol]
            if state == _UNKNOWN:
                state = _CACHED if group.is_cached(self._keys[symbol]) else _ABSENT
                group.state[symbol] = state
            if state == _ABSENT:
                place[row] = 0
                agree = False
                continue
            in_a_row: i64 = place[row] + 1
            place[row] = in_a_row
            if in_a_row < group.needed and in_a_row < depth:
                agree = False
        return agree

    def changed_since(self, version: int) -> list[int] | None:
        """None, because a change affects every symbol after it, through the cursor."""
        return None

    def worth(self, cursor: object, matched: int) -> int:
        """Return the tokens that need not be computed if a match ends at `cursor`."""
        assert isinstance(cursor, list)
        usable: i64 = cursor[0] - self._dropped
        return usable * self.unit_tokens if usable > 0 else 0

    # -- symbols -----------------------------------------------------------------------------------

    def symbol_of(self, key: bytes) -> int:
        return self.symbols.get(key[: len(key) - len(self._suffix)] + self._suffix, -1)

    def wanted(self) -> Container[bytes]:
        return self

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        return self.symbol_of(key) >= 0

    def _new_symbol(self, key: bytes) -> int:
        symbol = super()._new_symbol(key)
        for group in self._others:
            if symbol == len(group.state):
                group.state.append(_UNKNOWN)
            else:
                group.state[symbol] = _UNKNOWN
        return symbol

    # -- the pool ----------------------------------------------------------------------------------

    def block_cached(self, key: bytes) -> None:
        self._changed(key)

    def block_gone(self, key: bytes) -> None:
        self._changed(key)

    def _changed(self, key: bytes) -> None:
        """Forget the state of a symbol, because a block of some group came or went."""
        symbol = self.symbol_of(key)
        if symbol < 0:
            return
        self._forget_changes()
        self._forget(symbol)
        if symbol in self._lone and self._holds(symbol):
            self._outgrow(symbol)

    def _forget(self, symbol: int) -> None:
        super()._forget(symbol)
        for group in self._others:
            group.state[symbol] = _UNKNOWN
