"""Translates a request's namespace and tokens for the planner: to a string, and to int32 symbols.

A namespace is one string for everything that keeps equal tokens apart in an engine's caches.  An `Alphabet`
has symbols for token ids that are wider than a symbol.

With EAGLE, cache keys are pairs of neighbouring tokens.  A prompt's symbols are then its tokens from the
second on, each of which stands for the pair that it ends; the first token goes into the namespace.  So
prompts share as many symbols as they share pairs.
"""

from __future__ import annotations

import json
from array import array
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from peek.errors import InvalidKey
from peek.trie.keys import MAX_SYMBOL, pack

ALONE: Final = "alone:"
"""Starts the namespace of a request that shares with no other and hits only what its session holds."""

OF_A_SESSION: Final = -1
"""Node id of the KV of streaming sessions, which is never evicted."""


def namespace_of(extra_key: str | None, cache_salt: str | None, first: int | None = None) -> str:
    """Return the namespace of an extra key and a salt, and of a prompt's first token if keys are pairs.

    "" if there is none of these.  An empty salt counts as none, as in SGLang's `RadixKey`.
    """
    owner = (first, extra_key, cache_salt or None)
    return "" if owner == (None, None, None) else json.dumps(owner)


def owner_of(namespace: str) -> tuple[int | None, str | None, str | None]:
    """Return the first token, the extra key and the salt of a namespace made by `namespace_of`."""
    first, extra_key, salt = json.loads(namespace) if namespace else (None, None, None)
    return first, extra_key, salt


FIRST_LETTER: Final = 3 << 29
"""Wider ids get symbols from here on: above all vocabularies and the 30-bit pad values of old versions."""

_INT32: Final = np.dtype("<i4")


def _plain(tokens: Any, start: int, stop: int | None) -> tuple[bytes, Any]:
    """Return `tokens[start:stop]` packed; b"" and a vector if one is wide or there is none.  O(tokens)."""
    if isinstance(tokens, list):
        tokens, start, stop = tokens[start:stop] if start or stop is not None else tokens, 0, None
        with suppress(InvalidKey):  # a wide id is among them
            packed = pack(tokens)
            if int(np.frombuffer(packed, _INT32).max()) < FIRST_LETTER:
                return packed, None
    wide = np.asarray(tokens)[start:stop]
    fits = wide.dtype == np.int64 and wide.ndim == 1 and wide.size > 0
    if fits and int(wide.view(np.uint64).max()) < FIRST_LETTER:  # as unsigned, values below 0 are large
        return wide.astype(_INT32).tobytes(), None
    return b"", wide


def _wide_values(wide: Any) -> Any:
    return np.unique(wide[(wide < 0) | (wide >= FIRST_LETTER)]).tolist()


class Letter:
    """One wide value and its symbol, which is free again when the letter is no longer referenced."""

    __slots__ = ("__weakref__", "_free", "symbol", "value")

    def __init__(self, symbol: int, value: int, free: list[int]) -> None:
        self.symbol = symbol
        self.value = value
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.symbol)


class Alphabet:
    """Packs token ids of any width, and translates them back.

    SGLang puts an image into a prompt as a run of values derived from the image's hash, up to 62 bits wide.
    Each value that is below 0, or `FIRST_LETTER` or more, gets a symbol of its own while its `Letter` lives.
    """

    def __init__(self) -> None:
        self._by_value: WeakValueDictionary[int, Letter] = WeakValueDictionary()
        self._by_symbol: WeakValueDictionary[int, Letter] = WeakValueDictionary()
        self._free: list[int] = []
        self._made = 0

    def __len__(self) -> int:
        """Number of letters in use."""
        return len(self._by_value)

    def pack(self, tokens: Any, start: int = 0, stop: int | None = None) -> tuple[bytes, tuple[Letter, ...]]:
        """Return `tokens[start:stop]` as packed symbols, and the letters among them, which the caller keeps.

        O(tokens); Python loops only over the letters.  `InvalidKey` if there is nothing to pack, if a value
        is not a 64-bit int, or if there are too many letters.
        """
        packed, wide = _plain(tokens, start, stop)
        if packed:
            return packed, ()
        if wide.dtype != np.int64 or wide.ndim != 1 or wide.size == 0:
            raise InvalidKey("need token ids that are ints of 64 bits")
        letters = tuple([self._letter(value) for value in _wide_values(wide)])
        symbols = wide.copy()
        for letter in letters:
            symbols[wide == letter.value] = letter.symbol
        return symbols.astype(_INT32).tobytes(), letters

    def known(self, tokens: Any, start: int = 0) -> bytes:
        """Return `tokens[start:]` as packed symbols, up to the first wide id without a letter.  O(tokens)."""
        packed, wide = _plain(tokens, start, None)
        if packed or not wide.size:
            return packed
        strange = [value for value in _wide_values(wide) if value not in self._by_value]
        end = min((int(np.argmax(wide == value)) for value in strange), default=len(wide))
        return self.pack(wide, 0, end)[0] if end else b""

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
        """Return the token id of a symbol.  O(1)."""
        return symbol if symbol < FIRST_LETTER else self._by_symbol[symbol].value

    def spell(self, packed: bytes) -> array[int]:
        """Return the token ids of packed symbols, as int64.  O(tokens)."""
        wide = np.frombuffer(packed, dtype="<i4").astype(np.int64)
        if wide.size and int(wide.max()) >= FIRST_LETTER:
            for symbol in np.unique(wide[wide >= FIRST_LETTER]).tolist():
                wide[wide == symbol] = self.value(symbol)
        return array("q", wide.tobytes())
