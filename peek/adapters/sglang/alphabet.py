"""Symbols for token ids that are wider than a symbol, such as the pad values of images.

SGLang stands an image into a prompt as a run of values derived from the image's hash, up to 62 bits wide.
The core's symbols are int32.  Ids below `FIRST_LETTER` are their own symbols; every other value gets a
number from there on, equal values the same one, for as long as somebody holds its `Letter`.
"""

from __future__ import annotations

from array import array
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from peek.errors import InvalidKey
from peek.trie.keys import MAX_SYMBOL, pack

FIRST_LETTER: Final = 3 << 29
"""Ids from here on are numbered; no vocabulary reaches it, nor do the 30-bit pad values of old versions."""


class Letter:
    """One wide value and its symbol.  The symbol is free again when nobody holds the letter any more."""

    __slots__ = ("__weakref__", "_free", "symbol", "value")

    def __init__(self, symbol: int, value: int, free: list[int]) -> None:
        self.symbol = symbol
        self.value = value
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.symbol)


class Alphabet:
    """Packs token ids of any width, and spells them again."""

    def __init__(self) -> None:
        self._by_value: WeakValueDictionary[int, Letter] = WeakValueDictionary()
        self._by_symbol: WeakValueDictionary[int, Letter] = WeakValueDictionary()
        self._free: list[int] = []
        self._made = 0

    def __len__(self) -> int:
        """Letters in use."""
        return len(self._by_value)

    def pack(self, tokens: Any) -> tuple[bytes, tuple[Letter, ...]]:
        """Token ids as packed symbols, and the letters among them, which the caller holds on to.

        O(tokens), without a loop in Python but for each letter.

        Raises:
            InvalidKey: a value that is not an int of 64 bits, or nothing to pack.
        """
        if isinstance(tokens, list):
            try:
                packed = pack(tokens)
            except InvalidKey:
                if not tokens:
                    raise
            else:
                if int(np.frombuffer(packed, dtype="<i4").max()) < FIRST_LETTER:
                    return packed, ()
        wide = np.asarray(tokens)
        if wide.dtype != np.int64 or wide.ndim != 1 or wide.size == 0:
            raise InvalidKey("need token ids that are ints of 64 bits")
        if int(wide.min()) >= 0 and int(wide.max()) < FIRST_LETTER:
            return wide.astype("<i4").tobytes(), ()
        apart = (wide < 0) | (wide >= FIRST_LETTER)
        letters = tuple([self._letter(value) for value in np.unique(wide[apart]).tolist()])
        symbols = wide.copy()
        for letter in letters:
            symbols[wide == letter.value] = letter.symbol
        return symbols.astype("<i4").tobytes(), letters

    def known(self, tokens: Any) -> bytes:
        """Token ids of 64 bits as packed symbols, up to the first wide one that nobody holds.  O(tokens)."""
        wide = np.asarray(tokens, dtype=np.int64)
        apart = (wide < 0) | (wide >= FIRST_LETTER)
        if not apart.any():
            return wide.astype("<i4").tobytes()
        symbols = wide.copy()
        end = len(wide)
        for value in np.unique(wide[apart]).tolist():
            letter = self._by_value.get(value)
            if letter is None:
                end = min(end, int(np.argmax(wide == value)))
            else:
                symbols[wide == value] = letter.symbol
        return symbols[:end].astype("<i4").tobytes()

    def _letter(self, value: int) -> Letter:
        letter = self._by_value.get(value)
        if letter is None:
            if not self._free:
                self._free.append(FIRST_LETTER + self._made)
                self._made += 1
            symbol = self._free.pop()
            if symbol > MAX_SYMBOL:
                raise InvalidKey(f"more than {MAX_SYMBOL - FIRST_LETTER} wide token ids at a time")
            letter = Letter(symbol, value, self._free)
            self._by_value[value] = self._by_symbol[symbol] = letter
        return letter

    def value(self, symbol: int) -> int:
        """The token id behind a symbol.  O(1)."""
        return symbol if symbol < FIRST_LETTER else self._by_symbol[symbol].value

    def spell(self, packed: bytes) -> array[int]:
        """The token ids behind packed symbols, as int64.  O(tokens)."""
        wide = np.frombuffer(packed, dtype="<i4").astype(np.int64)
        if wide.size and int(wide.max()) >= FIRST_LETTER:
            for symbol in np.unique(wide[wide >= FIRST_LETTER]).tolist():
                wide[wide == symbol] = self.value(symbol)
        tokens = array("q")
        tokens.frombytes(wide.tobytes())
        return tokens
