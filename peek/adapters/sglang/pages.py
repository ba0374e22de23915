"""Pages of tokens as symbols, for caches that match whole pages only.

With a page size above 1 SGLang finds a prefix page by page, so a page is the unit in which requests
share and hit.  `PageTable` gives equal pages of waiting requests equal symbols; a symbol's number is
used again when the last request that has it is gone.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from peek.trie.keys import SYMBOL_BYTES, pack, symbol_at


@final
class PageTable:
    """Interns pages of packed int32 tokens.

    Args:
        page_tokens: tokens per page, at least 2.
    """

    def __init__(self, page_tokens: int) -> None:
        self._page_bytes: i64 = page_tokens * SYMBOL_BYTES
        self._symbols: dict[bytes, int] = {}
        self._pages: list[bytes] = []
        self._users: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Pages in use."""
        return len(self._symbols)

    def intern(self, tokens: bytes) -> bytes:
        """The packed symbols of whole pages of packed tokens.  O(pages)."""
        symbols: list[int] = []
        at: i64 = 0
        while at < len(tokens):
            page = tokens[at : at + self._page_bytes]
            symbol = self._symbols.get(page, -1)
            if symbol < 0:
                symbol = self._new(page)
            self._users[symbol] += 1
            symbols.append(symbol)
            at += self._page_bytes
        return pack(symbols)

    def known(self, tokens: bytes) -> bytes:
        """The same up to the first page that nobody has; nothing is interned.  O(pages)."""
        symbols: list[int] = []
        at: i64 = 0
        while at + self._page_bytes <= len(tokens):
            symbol = self._symbols.get(tokens[at : at + self._page_bytes], -1)
            if symbol < 0:
                break
            symbols.append(symbol)
            at += self._page_bytes
        return pack(symbols) if symbols else b""

    def _new(self, page: bytes) -> int:
        if self._free:
            symbol = self._free.pop()
            self._pages[symbol] = page
        else:
            symbol = len(self._pages)
            self._pages.append(page)
            self._users.append(0)
        self._symbols[page] = symbol
        return symbol

    def release(self, symbols: bytes) -> None:
        """One request less has these pages.  O(pages)."""
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
        """The packed tokens of a page."""
        return self._pages[symbol]
