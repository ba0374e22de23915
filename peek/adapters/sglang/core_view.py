"""`CacheView` over `UnifiedRadixCache`'s Rust core, by its own read-only match.

The Rust core shows no nodes to Python.  What it has is `match_full_device_prefix(key)`, which neither
splits nor touches.  So an edge is asked for by the whole prompt up to its end: one call per pending edge
on which the cache has followed so far, O(prompt) each in native code.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, final

from peek.adapters.sglang.alphabet import Alphabet
from peek.adapters.sglang.insertions import Insertions
from peek.adapters.sglang.namespaces import ALONE, OF_A_SESSION, first_of, owner_of
from peek.adapters.sglang.pages import PageTable
from peek.trie.tree_view import edge_bytes


@final
class CorePlace:
    """A cursor: the tokens matched so far (int64, as the core takes them) and the core's node there."""

    __slots__ = ("ended", "extra_key", "node", "salt", "tokens")

    def __init__(
        self, tokens: array[int], node: int, ended: bool, extra_key: str | None, salt: str | None
    ) -> None:
        self.tokens = tokens
        self.node = node
        self.ended = ended
        self.extra_key = extra_key
        self.salt = salt


@final
class CoreView:
    """See the module's description.

    Args:
        match: `(tokens, extra_key, cache_salt) -> (tokens matched, node)`, read-only.
        page_tokens: SGLang's page size.
        pages: the table of pages, None for pages of one token.
        alphabet: what spells symbols.
        insertions: notes what comes in; None where it may come in unnoticed.
        sizes: tokens that could be evicted and that are locked, which grow smaller by eviction only.
        lent: tokens that a request's session lends it, by the request's own namespace; see `Translator`.
    """

    def __init__(
        self,
        match: Callable[[array[int], str | None, str | None], tuple[int, int]],
        page_tokens: int,
        pages: PageTable | None,
        alphabet: Alphabet,
        insertions: Insertions | None = None,
        sizes: Callable[[], int] = int,
        lent: Mapping[str, int] | None = None,
    ) -> None:
        self.unit_tokens = page_tokens
        self.block_symbols = 1
        self._match = match
        self._pages = pages
        self._alphabet = alphabet
        self._insertions = insertions
        self._sizes = sizes
        self._lent = {} if lent is None else lent

    @property
    def version(self) -> tuple[int, int] | None:
        """Insertions so far, and how much the cache holds."""
        return None if self._insertions is None else (self._insertions.count, self._sizes())

    def inserted_since(self, version: tuple[int, int]) -> list[tuple[str, bytes]] | None:
        """See `CacheView`."""
        return None if self._insertions is None else self._insertions.since(version[0])

    def close(self) -> None:
        """Leave the cache as it was."""
        if self._insertions is not None:
            self._insertions.close()

    def root(self, namespace: str) -> object:
        if namespace.startswith(ALONE):
            return self._lent.get(namespace)
        first, rest = first_of(namespace)
        extra_key, salt = owner_of(rest)
        return CorePlace(array("q", () if first is None else (first,)), 0, False, extra_key, salt)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if cursor is None:
            return 0, None
        if isinstance(cursor, int):  # lent: the key has as many symbols as that takes
            return len(segment), cursor
        assert isinstance(cursor, CorePlace)
        if cursor.ended:
            return 0, cursor
        tokens = cursor.tokens + self._tokens(segment)
        matched, node = self._match(tokens, cursor.extra_key, cursor.salt)
        done = matched // self.unit_tokens - offset
        if done <= 0:
            return 0, CorePlace(cursor.tokens, cursor.node, True, cursor.extra_key, cursor.salt)
        ended = done < len(segment)
        return done, CorePlace(tokens, node, ended, cursor.extra_key, cursor.salt)

    def node_id(self, cursor: object) -> int:
        if isinstance(cursor, int):
            return OF_A_SESSION
        assert isinstance(cursor, CorePlace)
        return cursor.node

    @property
    def worth(self) -> Callable[[object, int], int] | None:
        """See `CacheView`; None, which spares a walk the calls, where nothing is lent."""
        return self._worth if self._lent else None

    def _worth(self, cursor: object, matched: int) -> int:
        whole = matched * self.unit_tokens
        return min(cursor, whole) if isinstance(cursor, int) else whole

    def _tokens(self, segment: Any) -> array[int]:
        pages = self._pages
        packed = edge_bytes(segment)
        if pages is not None:
            packed = b"".join([pages.page(symbol) for symbol in segment])
        return self._alphabet.spell(packed)
