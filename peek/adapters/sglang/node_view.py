"""`CacheView` over SGLang's radix trees made of Python nodes, without touching them.

`RadixCache.match_prefix` splits the node in which a match ends and refreshes the recency of all it
passes.  `NodeView` only reads: `node.children`, `node.key`, and whether the KV is on the device or on
the host.  A node's tokens are packed once and kept as long as node and key live, with their letters.

Covers `RadixCache` (0.5.9 to 0.5.23) and `UnifiedRadixCache` with its Python core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final
from weakref import WeakKeyDictionary, WeakValueDictionary

from mypy_extensions import i64

from peek.adapters.sglang.alphabet import FIRST_LETTER
from peek.adapters.sglang.namespaces import ALONE, owner_of
from peek.adapters.sglang.pages import PageTable
from peek.trie.keys import SYMBOL_BYTES, match_span, symbol_at
from peek.trie.tree_view import edge_bytes


@final
class NodePlace:
    """A cursor: `at` bytes into the packed key of `node`, behind `host` tokens that are on the host."""

    __slots__ = ("at", "host", "node", "owner")

    def __init__(self, node: object, at: i64, host: i64, owner: object) -> None:
        self.node = node
        self.at: i64 = at
        self.host: i64 = host
        self.owner = owner


@final
class NodeView:
    """See the module's description.

    Args:
        root: returns the tree's root node (a reset makes a new one).
        page_tokens: SGLang's page size.
        pages: the table of pages, None for pages of one token.
        alphabet: packs and spells tokens.
        on_host: whether a node's KV is on the host only; None if it has none at all.
        host_share: worth of a token on the host as a part of one on the device, 0..1.
    """

    def __init__(
        self,
        root: Callable[[], Any],
        page_tokens: int,
        pages: PageTable | None,
        alphabet: Any,
        on_host: Callable[[Any], bool | None],
        host_share: float = 0.5,
    ) -> None:
        self.unit_tokens = page_tokens
        self._root = root
        self._pages = pages
        self._alphabet: Any = alphabet
        self._on_host = on_host
        self._host_cost: float = 1.0 - host_share
        self._packed: WeakKeyDictionary[Any, tuple[object, bytes, object]] = WeakKeyDictionary()
        self._by_id: WeakValueDictionary[int, Any] = WeakValueDictionary()

    # -- CacheView ---------------------------------------------------------------------------------

    def root(self, namespace: str) -> object:
        if namespace.startswith(ALONE):
            return None
        extra_key, salt = owner_of(namespace)
        owner: object = extra_key if salt is None else (extra_key, salt)
        return NodePlace(self._root(), 0, 0, owner)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if cursor is None:
            return 0, None
        assert isinstance(cursor, NodePlace)
        symbols = edge_bytes(segment)
        node: Any = cursor.node
        at = cursor.at
        host = cursor.host
        tokens = self._tokens_of(node)
        n: i64 = len(symbols)
        done: i64 = 0
        while done < n:
            if at == len(tokens):
                child = self._child(node, cursor.owner, symbols, done)
                if child is None:
                    break
                on_host = self._on_host(child)
                if on_host is None:
                    break
                node = child
                at = 0
                tokens = self._tokens_of(node)
            common = self._common(tokens, at, symbols, done)
            done += common
            at += common * self.unit_tokens
            if self._on_host(node):
                host += (common >> 2) * self.unit_tokens
            if at < len(tokens):
                break
        return done >> 2, NodePlace(node, at, host, cursor.owner)

    def node_id(self, cursor: object) -> int:
        assert isinstance(cursor, NodePlace)
        node: Any = cursor.node
        self._by_id[node.id] = node
        return int(node.id)

    def parent_id(self, node_id: int) -> int:
        """The parent of a cached node, 0 for a root."""
        node = self._by_id.get(node_id)
        if node is None or node.parent is None or node.parent.parent is None:
            return 0
        self._by_id[node.parent.id] = node.parent
        return int(node.parent.id)

    def worth(self, cursor: object, matched: int) -> int:
        """Tokens of a match of `matched` symbols, those on the host at their share."""
        tokens = matched * self.unit_tokens
        if cursor is None:
            return tokens
        assert isinstance(cursor, NodePlace)
        return tokens - int(self._host_cost * float(cursor.host))

    # -- SGLang's nodes ----------------------------------------------------------------------------

    def _tokens_of(self, node: Any) -> bytes:
        """The packed tokens of a node's key; a split gives a node another key object."""
        key: Any = node.key
        known = self._packed.get(node)
        if known is not None and known[0] is key:
            return known[1]
        raw: Any = key.raw_token_ids() if hasattr(key, "raw_token_ids") else key.token_ids
        packed = b""
        letters: object = ()
        if len(raw):
            both: tuple[bytes, object] = self._alphabet.pack(raw)
            packed, letters = both
        self._packed[node] = (key, packed, letters)
        return packed

    def _child(self, node: Any, owner: object, symbols: bytes, at: i64) -> Any:
        symbol: int = int(symbol_at(symbols, at))
        plain: object = symbol
        if self._pages is not None:
            plain = tuple(self._alphabet.spell(self._pages.page(symbol)))
        elif symbol >= FIRST_LETTER:
            plain = self._alphabet.value(symbol)
        return node.children.get(plain if owner is None else (owner, plain))

    def _common(self, tokens: bytes, at: i64, symbols: bytes, done: i64) -> i64:
        """Bytes of `symbols[done:]` whose tokens stand at `tokens[at:]`."""
        pages = self._pages
        if pages is None:
            return match_span(symbols, done, tokens, at)
        n: i64 = len(symbols)
        start = done
        while done < n and tokens.startswith(pages.page(symbol_at(symbols, done)), at):
            done += SYMBOL_BYTES
            at += SYMBOL_BYTES * self.unit_tokens
        return done - start
