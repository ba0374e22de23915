"""Keys: what a prompt looks like inside the tree.

A key is `bytes`: the prompt's symbols as packed little-endian int32.  A prompt is packed once, when it
arrives; a buffer that already holds int32 is simply copied.  Edges are slices of those bytes, and equality is
one `memcmp`.  For a cache in pages, a `PageTable` has a symbol for each page of tokens that is in use.

Some functions have two versions side by side, because only compiled code can use native loads (`librt`).
`COMPILED` picks one at import time; both give equal results.  They differ in native integers, `vec` for
packing and 8-byte loads for comparing.  The same tests run on both builds and cover these differences.
"""

from __future__ import annotations

import operator
import struct
import sys
from typing import Final, final

import numpy as np
from mypy_extensions import i32, i64

from peek.errors import InvalidKey, a_kind

try:
    from librt.strings import read_i32_le, read_i64_le
    from librt.vecs import vec
except ImportError:  # pragma: no cover - an interpreted install on a platform without librt
    pass

COMPILED: Final = not __file__.endswith((".py", ".pyc"))  # without sources, or frozen, it is a .pyc
"""True when mypyc compiled this module."""

SYMBOL_BYTES: Final = 4
MAX_SYMBOL: Final = 2**31 - 1

_SIGN_BITS: Final[i64] = -0x7FFFFFFF80000000
"""The sign bits of two int32 side by side in an int64."""

_MEMCMP_FROM: Final = 256
"""Bytes from which it pays to try one `memcmp` over the whole edge before a search for the difference."""

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("peek packs keys as little-endian int32 and needs a little-endian machine")


def pack(key: object) -> bytes:
    """Pack a key into int32 bytes.

    Args:
        key: `list` or `tuple` of ints in [0, 2**31); `bytes` / `bytearray` of little-endian int32; `array` or
            contiguous one-dimensional numpy vector of integers (not of unsigned bytes).  Symbols that are
            already packed as int32 are not checked.

    Returns:
        The packed symbols; for `bytes` the same object.

    Raises:
        InvalidKey: wrong type, empty key, a symbol outside [0, 2**31), a byte count that is not a multiple of
            4.

    Cost: about 1.2 ns per symbol from a list (compiled), a `memcpy` from int32 buffers.
    """
    if isinstance(key, list):
        packed = _pack_list(key)
    elif isinstance(key, bytes):
        packed = key
    else:
        packed = _pack_other(key)
    if not packed:
        raise InvalidKey("empty key: a request needs a symbol; one of its own if it fills no page or block")
    if len(packed) & 3:
        raise InvalidKey(f"key of {len(packed)} bytes is not a whole number of int32 symbols")
    return packed


def unpack(packed: bytes) -> list[int]:
    """The symbols of a packed key.  O(n)."""
    return list(struct.unpack(f"<{len(packed) >> 2}i", packed))


def _pack_list(symbols: list[int]) -> bytes:
    try:
        if COMPILED:
            return _pack_native(symbols)
        packed = struct.pack(f"<{len(symbols)}i", *symbols)
    except (TypeError, ValueError, OverflowError, struct.error):
        raise _offender(symbols) from None
    if packed and max(packed[3::4]) > 0x7F:  # a sign bit is set
        raise _offender(symbols)
    return packed


def _pack_native(symbols: list[i32]) -> bytes:
    packed = bytes(vec[i32]([symbol for symbol in symbols]))
    n: i64 = len(packed)
    signs: i64 = 0
    at: i64 = 0
    last: i64 = n - 32
    while at <= last:
        signs |= (
            read_i64_le(packed, at)
            | read_i64_le(packed, at + 8)
            | read_i64_le(packed, at + 16)
            | read_i64_le(packed, at + 24)
        )
        at += 32
    while at < n:
        signs |= i64(read_i32_le(packed, at))
        at += 4
    if signs & _SIGN_BITS != 0:
        raise ValueError
    return packed


def _offender(symbols: list[int]) -> InvalidKey:
    """The error for a list that did not pack; it names the first bad symbol."""
    found: list[object] = list(symbols)
    for position, symbol in enumerate(found):
        try:
            value = operator.index(symbol)  # type: ignore[arg-type]
        except TypeError:
            return InvalidKey(f"symbol {position} is {symbol!r}, {a_kind(symbol)}, not an int")
        if not 0 <= value <= MAX_SYMBOL:
            return InvalidKey(f"symbol {position} is {value}, outside [0, 2**31)")
    return InvalidKey("key changed while it was packed")


def _pack_other(key: object) -> bytes:
    if isinstance(key, tuple):
        return _pack_list(list(key))
    if isinstance(key, (str, dict, set)):
        raise InvalidKey(f"key is {a_kind(key)}, not a sequence of int symbols")
    if isinstance(key, bytearray):
        return bytes(key)
    try:
        view = memoryview(key)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidKey(
            f"key is {a_kind(key)}; need a list, array, bytes or numpy int32 / int64 vector"
        ) from None
    if view.ndim != 1 or not view.c_contiguous:
        raise InvalidKey(f"key has {view.ndim} dimensions or gaps; need one contiguous dimension")
    kind = view.format
    if kind in ("i", "l") and view.itemsize == SYMBOL_BYTES:
        return view.tobytes()
    if kind in ("b", "h", "i", "l", "q", "H", "I", "L", "Q"):
        return _narrow(view)
    raise InvalidKey(f"key has elements of buffer format {kind!r}; need int32 or int64")


def _narrow(view: memoryview) -> bytes:
    """Convert other integer widths to int32, range checked."""
    wide = np.asarray(view)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > MAX_SYMBOL):
        raise _offender(wide.tolist())
    return wide.astype(np.int32).tobytes()


def symbol_at(packed: bytes, at: i64) -> i64:
    """The symbol at byte offset `at`, as an unsigned 32-bit number (a dictionary key).  O(1)."""
    if COMPILED:
        return i64(read_i32_le(packed, at)) & 0xFFFFFFFF
    return packed[at] | packed[at + 1] << 8 | packed[at + 2] << 16 | packed[at + 3] << 24


def match_edge(edge: bytes, packed: bytes, at: i64) -> i64:
    """Bytes that `edge` and `packed[at:]` have in common from their start (a multiple of 4).

    Cost: one memcmp when the edge matches whole, else linear in the common part; no copies.
    """
    if COMPILED:
        if len(edge) >= _MEMCMP_FROM and packed.startswith(edge, at):
            return len(edge)
        return _common_native(edge, 0, packed, at)
    if packed.startswith(edge, at):
        return len(edge)
    return _common_slices(edge, 0, packed, at)


def match_span(a: bytes, a_at: i64, b: bytes, b_at: i64) -> i64:
    """Bytes that `a[a_at:]` and `b[b_at:]` have in common from their start (a multiple of 4)."""
    if not COMPILED:
        return _common_slices(a, a_at, b, b_at)
    if a_at == 0 and len(a) <= len(b) - b_at:
        return match_edge(a, b, b_at)
    if b_at == 0 and len(b) <= len(a) - a_at:
        return match_edge(b, a, a_at)
    return _common_native(a, a_at, b, b_at)


def _common_native(a: bytes, a_at: i64, b: bytes, b_at: i64) -> i64:
    n: i64 = len(a) - a_at
    m: i64 = len(b) - b_at
    if m < n:
        n = m
    i: i64 = 0
    last: i64 = n - 32
    while i <= last:
        if (
            (read_i64_le(a, a_at + i) ^ read_i64_le(b, b_at + i))
            | (read_i64_le(a, a_at + i + 8) ^ read_i64_le(b, b_at + i + 8))
            | (read_i64_le(a, a_at + i + 16) ^ read_i64_le(b, b_at + i + 16))
            | (read_i64_le(a, a_at + i + 24) ^ read_i64_le(b, b_at + i + 24))
        ) != 0:
            break
        i += 32
    while i < n and read_i32_le(a, a_at + i) == read_i32_le(b, b_at + i):
        i += 4
    return i


def _common_slices(a: bytes, a_at: int, b: bytes, b_at: int) -> int:
    n = min(len(a) - a_at, len(b) - b_at)
    if a[a_at : a_at + n] == b[b_at : b_at + n]:
        return n
    low, high = 0, n
    while high - low > 32:
        middle = (low + high) >> 1
        if a[a_at + low : a_at + middle] == b[b_at + low : b_at + middle]:
            low = middle
        else:
            high = middle
    left = int.from_bytes(a[a_at + low : a_at + high], "little")
    right = int.from_bytes(b[b_at + low : b_at + high], "little")
    differ = left ^ right
    return (low + (((differ & -differ).bit_length() - 1) >> 3)) & ~3


HEADS: Final = (64, 256, 1024)
"""Lengths, in tokens, of the beginnings of a prompt that get a name."""


def heads_of(packed: bytes, unit_tokens: int = 1) -> tuple[object, ...]:
    """Names of a packed prompt's beginnings, shortest first, for each length of `HEADS` that it has.

    Lengths that round to the same number of symbols, at least one, give one name.
    The keys' symbols must mean the same as long as the process lives.  O(1024 / unit_tokens).
    """
    found: list[object] = []
    last = 0
    for tokens in HEADS:
        end = max(1, tokens // unit_tokens) * SYMBOL_BYTES
        if last < end <= len(packed):
            found.append(hash(packed[:end]))
        last = end
    return tuple(found)


@final
class PageTable:
    """Interns pages of `page_tokens` >= 2 packed int32 tokens: equal pages in use have equal symbols."""

    def __init__(self, page_tokens: int) -> None:
        self._page_bytes: i64 = page_tokens * SYMBOL_BYTES
        self._symbols: dict[bytes, int] = {}
        self._pages: list[bytes] = []
        self._users: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Number of pages in use."""
        return len(self._symbols)

    def intern(self, tokens: bytes) -> bytes:
        """Return the packed symbols of whole pages of packed tokens.  O(pages)."""
        symbols: list[int] = []
        at: i64 = 0
        while at < len(tokens):
            page = tokens[at : at + self._page_bytes]
            symbol = self._symbols.get(page, -1)
            if symbol < 0:
                if not self._free:
                    self._free.append(len(self._pages))
                    self._pages.append(b"")
                    self._users.append(0)
                symbol = self._symbols[page] = self._free.pop()
                self._pages[symbol] = page
            self._users[symbol] += 1
            symbols.append(symbol)
            at += self._page_bytes
        return pack(symbols)

    def known(self, tokens: bytes) -> bytes:
        """Return the symbols up to the first page that is not in use; intern nothing.  O(pages)."""
        symbols: list[int] = []
        at: i64 = 0
        while at + self._page_bytes <= len(tokens):
            symbol = self._symbols.get(tokens[at : at + self._page_bytes], -1)
            if symbol < 0:
                break
            symbols.append(symbol)
            at += self._page_bytes
        return pack(symbols) if symbols else b""

    def release(self, symbols: bytes) -> None:
        """Drop one request's use of these pages.  O(pages)."""
        at: i64 = 0
        while at < len(symbols):
            symbol = symbol_at(symbols, at)
            self._users[symbol] -= 1
            if self._users[symbol] == 0:
                del self._symbols[self._pages[symbol]]
                self._pages[symbol] = b""
                self._free.append(symbol)
            at += SYMBOL_BYTES

    def page(self, symbol: int) -> bytes:
        """Return the packed tokens of a page."""
        return self._pages[symbol]
