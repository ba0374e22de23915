"""`CacheView`s over SGLang's radix trees, which they leave unchanged.

SGLang's `match_prefix` splits the node in which a match ends, and refreshes the recency of all nodes passed.
`NodeView` only reads Python's nodes: `node.children`, `node.key`, and what KV a node has.  It covers
`RadixCache` and `UnifiedRadixCache` with its Python core.  In a hybrid model a prompt can go on only after
`window` tokens that have their sliding-window KV, or an unbroken run of them from the start; and only after a
whole node that holds the state of the recurrent layers.

`CoreView` is for `UnifiedRadixCache`'s Rust core, which shows no nodes.  For each pending edge that the cache
follows, it calls `match_full_device_prefix` with the whole prompt up to the edge's end.  That neither splits
nor touches nodes, and costs O(prompt) in native code.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, final
from weakref import WeakKeyDictionary, WeakValueDictionary

from mypy_extensions import i64

from peek.adapters.symbols import ALONE, FIRST_LETTER, OF_A_SESSION, owner_of
from peek.trie.keys import SYMBOL_BYTES, PageTable, match_span, symbol_at
from peek.trie.tree_view import edge_bytes

_HOST_COST: Final = 0.5
"""How much less a token on the host is worth than one on the device, because it has to be loaded."""

_WHOLE: Final[i64] = 1 << 60
"""The run of sliding-window KV before the first token, where nothing is missing."""


@final
class NodePlace:
    """A cursor: `at` bytes into the packed key of `node`, after `host` tokens that are on the host.

    Attributes:
        key, packed: the node's key when it was read, and packed; after a split the node keeps the key's end.
        run: number of tokens with sliding-window KV since the last one without it.
        best: tokens up to the last place from which a hybrid model can go on; -1 for other models.
    """

    __slots__ = ("at", "best", "first", "host", "key", "node", "owner", "packed", "run")

    def __init__(self, node: object, owner: object, first: object, best: int) -> None:
        self.node = node
        self.owner = owner
        self.first = first
        self.key: object = None
        self.packed = b""
        self.at: i64 = 0
        self.host: i64 = 0
        self.run: i64 = _WHOLE
        self.best: i64 = best

    def copy(self) -> NodePlace:
        place = NodePlace(self.node, self.owner, self.first, self.best)
        place.key, place.packed = self.key, self.packed
        place.at, place.host, place.run = self.at, self.host, self.run
        return place


class RadixView:
    """What both views have in common.

    `door`: the `Translator` that makes the keys.  `insertions`: see `Insertions`; None if none are reported.
    """

    def __init__(self, door: Any, insertions: Any) -> None:
        self.unit_tokens: int = door.page_tokens
        self.block_symbols = 1
        self._pages: PageTable | None = door.pages
        self._alphabet: Any = door.alphabet
        self._lent: Any = door.lent
        self._insertions: Any = insertions

    @property
    def version(self) -> object:
        """See `Insertions.version`; None if unknown.  A split changes no answer.  O(1)."""
        return None if self._insertions is None else self._insertions.version

    def inserted_since(self, version: Any) -> list[tuple[str, bytes]] | None:
        """See `CacheView`."""
        if self._insertions is None or version is None:
            return None
        keys: list[tuple[str, bytes]] | None = self._insertions.since(version[0])
        return keys

    def keeps_since(self, version: Any) -> bool:
        """See `CacheView`."""
        now: Any = self.version
        return now is not None and version is not None and bool(now[1] == version[1])

    # The cursor of a request that is alone is the number of tokens that its session lends it, or None.

    def root(self, namespace: str) -> object:
        return self._lent.get(namespace)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        return 0 if cursor is None else len(segment), cursor  # the key has just as many symbols

    def node_id(self, cursor: object) -> int:
        return OF_A_SESSION

    @property
    def worth(self) -> Callable[[object, int], int] | None:
        """See `CacheView`; None while every token saves one, so that a walk need not call it."""
        return self._worth if self._lent or self._insertions is None else None

    def _worth(self, cursor: object, matched: int) -> int:
        whole = matched * self.unit_tokens
        if isinstance(cursor, int):
            return min(cursor, whole)
        if not isinstance(cursor, NodePlace):
            return whole
        return whole - int(_HOST_COST * float(cursor.host)) if cursor.best < 0 else int(cursor.best)


@final
class NodeView(RadixView):
    """`root` returns the tree's root node (a reset makes a new one); `hybrid`: see `hybrid_of`."""

    def __init__(self, door: Any, insertions: Any, root: Callable[[], Any], hybrid: Any) -> None:
        super().__init__(door, insertions)
        self._root = root
        self._hybrid: Any = hybrid
        self._last_root: object = None
        self._packed: WeakKeyDictionary[Any, tuple[object, bytes, object]] = WeakKeyDictionary()
        self._by_id: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def inserted_since(self, version: Any) -> list[tuple[str, bytes]] | None:
        """See `CacheView`; also None after a reset, which makes every cursor old."""
        root = self._root()
        stood = root is self._last_root
        self._last_root = root
        return super().inserted_since(version) if stood else None

    def root(self, namespace: str) -> object:
        if namespace.startswith(ALONE):
            return super().root(namespace)
        first, extra_key, salt = owner_of(namespace)
        owner = extra_key if salt is None else (extra_key, salt)
        return NodePlace(self._root(), owner, first, -1 if self._hybrid is None else 0)

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if not isinstance(cursor, NodePlace):
            return super().advance(cursor, segment, offset)
        symbols = edge_bytes(segment)
        place = cursor.copy()
        tokens = self._fresh(place)
        n: i64 = len(symbols)
        done: i64 = 0
        while done < n:
            if place.at == len(tokens):
                child = self._child(place, tokens, symbols, done)
                on_host = None if child is None else self._on_host(child)
                if on_host is None:
                    break
                place.node = child
                place.at = 0
                tokens = self._tokens_of(place)
            else:
                on_host = self._on_host(place.node)
            common = self._common(tokens, place.at, symbols, done)
            done += common
            place.at += common * self.unit_tokens
            ended = place.at == len(tokens)
            if self._hybrid is not None:
                self._reach(place, common >> 2, offset + (done >> 2), ended)
            elif on_host:
                place.host += (common >> 2) * self.unit_tokens
            if not ended:
                break
        return done >> 2, place

    def node_id(self, cursor: object) -> int:
        if not isinstance(cursor, NodePlace):
            return super().node_id(cursor)
        self._fresh(cursor)
        node: Any = cursor.node
        self._by_id[node.id] = node
        return int(node.id)

    def parent_id(self, node_id: int) -> int:
        """Return the parent of a cached node, 0 for a root."""
        node = self._by_id.get(node_id)
        if node is None or node.parent is None or node.parent.parent is None:
            return 0
        self._by_id[node.parent.id] = node.parent
        return int(node.parent.id)

    def _on_host(self, node: Any) -> bool | None:
        """Whether a node's KV is only on the host; None if none of it can be used."""
        if not node.evicted:
            return False
        return True if self._hybrid is None and node.backuped else None

    def _reach(self, place: NodePlace, symbols: i64, position: i64, ended: bool) -> None:
        """Note that `symbols` more of a node match, up to `position`; `ended`: to the node's end."""
        hybrid: Any = self._hybrid
        if hybrid.has_window is not None:
            held: bool = hybrid.has_window(place.node)
            place.run = place.run + symbols * self.unit_tokens if held else 0
            if place.run < hybrid.window:  # at least one token
                return
        if hybrid.has_state is None or (ended and hybrid.has_state(place.node)):
            place.best = position * self.unit_tokens

    def _fresh(self, place: NodePlace) -> bytes:
        """Move a cursor to where its symbols are now; return the packed symbols of its node's key.

        A split leaves the end of the key to the node, and gives its beginning to a new parent.  O(splits).
        """
        node: Any = place.node
        if node.key is place.key:
            return place.packed
        at: i64 = place.at
        size: i64 = len(place.packed)
        tokens = self._tokens_of(place)
        if size == len(tokens) or at == 0:
            return tokens
        behind = size - len(tokens) - at
        while behind >= 0:
            node = place.node
            place.node = node.parent
            tokens = self._tokens_of(place)
            behind -= len(tokens)
        place.at = -behind
        return tokens

    def _tokens_of(self, place: NodePlace) -> bytes:
        """Return the packed symbols of the key of a cursor's node; kept as long as node and key live."""
        node: Any = place.node
        key: Any = node.key
        place.key = key
        known = self._packed.get(node)
        if known is not None and known[0] is key:
            place.packed = known[1]
            return place.packed
        raw: Any = ()  # the root's key may be anything that is empty
        if len(key):
            raw = key.raw_token_ids() if hasattr(key, "raw_token_ids") else key.token_ids
        if place.first is not None and len(raw):
            # Pairs are tuples in 0.5.9; in later versions the key has one token more than pairs.
            raw = [pair[1] for pair in raw] if isinstance(raw[0], tuple) else raw[1:]
        packed: tuple[bytes, object] = self._alphabet.pack(raw) if len(raw) else (b"", ())
        self._packed[node] = (key, packed[0], packed[1])
        place.packed = packed[0]
        return place.packed

    def _child(self, place: NodePlace, tokens: bytes, symbols: bytes, at: i64) -> Any:
        symbol: int = int(symbol_at(symbols, at))
        plain: object = symbol
        if self._pages is not None:
            plain = tuple(self._alphabet.spell(self._pages.page(symbol)))
        elif symbol >= FIRST_LETTER:
            plain = self._alphabet.value(symbol)
        if place.first is not None:  # pairs of neighbours: find the left token of the first pair
            left = place.first
            if len(tokens):
                left = self._alphabet.value(int(symbol_at(tokens, len(tokens) - SYMBOL_BYTES)))
            run: Any = plain if isinstance(plain, tuple) else (plain,)
            pairs = tuple(zip((left, *run), run, strict=False))
            plain = pairs if isinstance(plain, tuple) else pairs[0]
        owner = place.owner
        node: Any = place.node
        return node.children.get(plain if owner is None else (owner, plain))

    def _common(self, tokens: bytes, at: i64, symbols: bytes, done: i64) -> i64:
        """Return how many bytes of `symbols[done:]` equal the tokens at `tokens[at:]`."""
        pages = self._pages
        if pages is None:
            return match_span(symbols, done, tokens, at)
        n: i64 = len(symbols)
        start = done
        while done < n and tokens.startswith(pages.page(symbol_at(symbols, done)), at):
            done += SYMBOL_BYTES
            at += SYMBOL_BYTES * self.unit_tokens
        return done - start


@final
class CoreView(RadixView):
    """`match(tokens, extra_key, cache_salt)` returns the tokens matched, and the core's node there.

    A cursor has the tokens matched so far (as int64, for the core), the node, and the last two arguments.
    """

    def __init__(
        self, door: Any, insertions: Any, match: Callable[[Any, str | None, str | None], tuple[int, int]]
    ) -> None:
        super().__init__(door, insertions)
        self._match = match

    def root(self, namespace: str) -> object:
        if namespace.startswith(ALONE):
            return super().root(namespace)
        first, extra_key, salt = owner_of(namespace)
        return array("q", () if first is None else (first,)), 0, extra_key, salt

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        if not isinstance(cursor, tuple):
            return super().advance(cursor, segment, offset)
        before, _, extra_key, salt = cursor
        packed, pages = edge_bytes(segment), self._pages
        if pages is not None:
            packed = b"".join([pages.page(symbol) for symbol in segment])
        tokens = before + self._alphabet.spell(packed)
        matched, node = self._match(tokens, extra_key, salt)
        done = matched // self.unit_tokens - offset
        if done <= 0:
            return 0, cursor
        if done < len(segment):
            del tokens[len(tokens) - (len(segment) - done) * self.unit_tokens :]
        return done, (tokens, node, extra_key, salt)

    def node_id(self, cursor: object) -> int:
        return int(cursor[1]) if isinstance(cursor, tuple) else super().node_id(cursor)
