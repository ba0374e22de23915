"""`CacheView` over `UnifiedRadixCache`'s Rust core, by its own read-only match.

The Rust core shows no nodes to Python.  What it has is `match_full_device_prefix(key)`, which neither
splits nor touches.  So an edge is asked for by the whole prompt up to its end: one call per pending edge
on which the cache has followed so far, O(prompt) each in native code.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, final

from peek.adapters.sglang.requests import Translator
from peek.adapters.sglang.symbols import ALONE, OF_A_SESSION, first_of, owner_of
from peek.trie.tree_view import edge_bytes

MOST_TOKENS: Final = 1 << 22
"""Of keys that are remembered until a walk: about 32 MiB."""


class Insertions:
    """Notes the key of every `cache.insert`, so that a walk need not ask about everything.

    The method is replaced on the instance, and does what it did.

    Args:
        cache: a prefix cache that gets nothing from the host or from elsewhere.
        door: makes the planner's keys.
        size: tokens in the cache: those that could be evicted and those that are locked.

    Attributes:
        count: insertions so far.
    """

    def __init__(self, cache: Any, door: Translator, size: Callable[[], int]) -> None:
        self.count = 0
        self._size = size
        self._came = 0
        """Tokens that insertions have added."""
        self._cache = cache
        self._door = door
        self._first = 0
        self._keys: list[Any] = []
        self._tokens = 0
        self._insert = cache.insert
        cache.insert = self._noted

    def _noted(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = len(params.key.token_ids)
        if self._tokens + tokens > MOST_TOKENS:
            self._forget(self.count)
        self._tokens += tokens
        self._keys.append(params.key)
        self.count += 1
        before = self._size()
        try:
            return self._insert(params, *args, **kwargs)
        finally:
            self._came += self._size() - before

    @property
    def gone(self) -> int:
        """Tokens that have left the cache, but for a constant.  O(1)."""
        return self._came - self._size()

    def since(self, count: int) -> list[tuple[str, bytes]] | None:
        """Namespaces and packed symbols of what came in since the `count`-th; None if not all are known.

        O(tokens).  A key is cut where no waiting prompt goes on with it.  What was before is forgotten.
        """
        if count < self._first:
            return None
        self._forget(count)
        return [
            self._door.known(key.token_ids, key.extra_key, getattr(key, "cache_salt", None))
            for key in self._keys
        ]

    def _forget(self, count: int) -> None:
        """Keys that came in before the `count`-th."""
        del self._keys[: count - self._first]
        self._first = count
        self._tokens = sum(len(key.token_ids) for key in self._keys)

    def close(self) -> None:
        """The cache's own method again."""
        if self._cache.__dict__.get("insert") == self._noted:
            del self._cache.insert


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
        door: what has made the keys that the view is asked for.
        insertions: notes what comes in; None where it may come in unnoticed.
    """

    def __init__(
        self,
        match: Callable[[array[int], str | None, str | None], tuple[int, int]],
        door: Translator,
        insertions: Insertions | None = None,
    ) -> None:
        self.unit_tokens = door.page_tokens
        self.block_symbols = 1
        self._match = match
        self._pages = door.pages
        self._alphabet = door.alphabet
        self._insertions = insertions
        self._lent = door.lent

    @property
    def version(self) -> tuple[int, int] | None:
        """Insertions so far, and how much has gone."""
        return None if self._insertions is None else (self._insertions.count, self._insertions.gone)

    def inserted_since(self, version: tuple[int, int]) -> list[tuple[str, bytes]] | None:
        """See `CacheView`."""
        return None if self._insertions is None else self._insertions.since(version[0])

    def keeps_since(self, version: tuple[int, int]) -> bool:
        """See `CacheView`."""
        return self._insertions is not None and self._insertions.gone == version[1]

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
