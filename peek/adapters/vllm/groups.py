"""The mirror for models whose layers keep KV in several groups, and for draft models that drop a block.

A prefix of such a model can be used up to a point where every group can go on.  Full attention needs all
blocks before it; a sliding window the last few, and a recurrent state (Mamba) the last one alone.  So the
walk follows the blocks of full attention, and its cursor carries how many blocks in a row each other group
has there and the last point where all of them agreed.  That point is what the match is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, final

from mypy_extensions import i64

from peek.adapters.vllm.mirror import BlockMirror
from peek.trie.keys import SYMBOL_BYTES, symbol_at
from peek.trie.tree_view import edge_bytes

_UNKNOWN: Final = 0
_ABSENT: Final = 1
_CACHED: Final = 2


@final
class OtherGroup:
    """A group that does not need all blocks of a prefix.

    Args:
        needed: cached blocks in a row in front of a point from which it can go on; fewer where the prefix
            itself has fewer.
        is_cached: asks the pool for the group's block of a key (one of full attention).
    """

    def __init__(self, needed: int, is_cached: Callable[[bytes], bool]) -> None:
        self.needed: i64 = needed
        self.is_cached = is_cached
        self.state: list[int] = []


@final
class GroupMirror(BlockMirror):
    """`CacheView` of what all groups together can use.

    Args:
        unit_tokens, is_cached, key_suffix: those of the full-attention group, see `BlockMirror`.
        others: the groups that a prefix must suit besides.
        dropped: blocks at the end of a match that the engine computes anew (1 with EAGLE).
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
        """A cursor holds the last point where all agree, then the blocks in a row of each other group."""
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
        """Whether all other groups can go on behind `symbol`, the prefix's last; counts it in `place`."""
        agree = True
        row: i64 = 0
        for group in self._others:
            row += 1
            if not self._other_holds(group, symbol):
                place[row] = 0
                agree = False
                continue
            in_a_row: i64 = place[row] + 1
            place[row] = in_a_row
            if in_a_row < group.needed and in_a_row < depth:
                agree = False
        return agree

    def changed_since(self, version: int) -> list[int] | None:
        """None: a change reaches all that is below it, by way of the cursor."""
        return None

    def _other_holds(self, group: OtherGroup, symbol: int) -> bool:
        state = group.state[symbol]
        if state == _UNKNOWN:
            state = _CACHED if group.is_cached(self._keys[symbol]) else _ABSENT
            group.state[symbol] = state
        return state == _CACHED

    def worth(self, cursor: object, matched: int) -> int:
        """Tokens that need not be computed where a match ends at `cursor`."""
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
        """A block of some group came or went: ask about its symbol anew."""
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
