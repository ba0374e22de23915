"""The specification in code: a tree, a cache and a walk that are slow and obviously right.

Everything here follows its definition, and is computed by looking at all requests or all cached sequences.
Nothing is imported from the rest of the library, so an error cannot be shared.  `NaivePendingTree` specifies
`PendingTree`, `NaiveCache` an engine's cache, `NaiveCacheView` a `CacheView` of it, `naive_walk` `DualWalk`.

A *place* is `(namespace, symbols from the root)`; it names a tree node, a cached node, a cursor or a key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

Place = tuple[str, tuple[int, ...]]


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """Number of elements that two sequences have in common from their start."""
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


def prefixes(place: Place) -> list[Place]:
    """All non-empty prefixes of a place, the shortest first, the place itself included."""
    namespace, symbols = place
    return [(namespace, symbols[:end]) for end in range(1, len(symbols) + 1)]


def longest(places: Iterable[Place], place: Place) -> int:
    """Length of the longest prefix that `place` shares with one of `places`."""
    namespace, symbols = place
    return max((common_length(other, symbols) for ns, other in places if ns == namespace), default=0)


def radix_nodes(keys: Iterable[Place]) -> set[Place]:
    """Places of a radix tree's nodes: every prefix where a key ends or keys diverge."""
    continuations: defaultdict[Place, set[int | None]] = defaultdict(set)
    for namespace, symbols in keys:
        for end in range(1, len(symbols)):
            continuations[namespace, symbols[:end]].add(symbols[end])
        continuations[namespace, symbols].add(None)
    return {place for place, after in continuations.items() if None in after or len(after) > 1}


class NaivePendingTree:
    """The waiting requests in a dictionary; gives all answers of `PendingTree` by counting."""

    def __init__(self) -> None:
        self.waiting: dict[str, Place] = {}
        """The key of every waiting request, in the order they were inserted."""

    def insert(self, request_id: str, key: Sequence[int], namespace: str = "") -> None:
        assert key, "empty key"
        assert request_id not in self.waiting, request_id
        self.waiting[request_id] = (namespace, tuple(key))

    def remove(self, request_id: str) -> None:
        del self.waiting[request_id]

    def counts(self) -> Counter[Place]:
        """For every prefix of a waiting key, the number of waiting requests that start with it."""
        return Counter(prefix for key in self.waiting.values() for prefix in prefixes(key))

    def pending_count(self, key: Sequence[int], namespace: str = "") -> int:
        return sum(
            own_namespace == namespace and symbols[: len(key)] == tuple(key)
            for own_namespace, symbols in self.waiting.values()
        )

    def has_sharing(self) -> bool:
        return any(count >= 2 for count in self.counts().values())

    def nodes(self) -> dict[Place, int]:
        """The nodes of the tree and the number of requests at or below each."""
        counts = self.counts()
        return {node: counts[node] for node in radix_nodes(self.waiting.values())}

    def scores(self) -> dict[str, int]:
        """Sum over the nodes of a path of pending_count x edge length (Eq. 1).

        That is the sum over a key's symbols of the requests that share the key up to it.
        """
        counts = self.counts()
        return {name: sum(counts[prefix] for prefix in prefixes(key)) for name, key in self.waiting.items()}

    def clusters(self) -> dict[str, Place | None]:
        """The deepest node on each request's path with two requests or more at or below it."""
        nodes = self.nodes()
        found: dict[str, Place | None] = {}
        for request_id, key in self.waiting.items():
            shared = [prefix for prefix in prefixes(key) if nodes.get(prefix, 0) >= 2]
            found[request_id] = shared[-1] if shared else None
        return found

    def heads(self, theta: int) -> dict[str, Place | None]:
        """The first `theta` symbols of each key; None for shorter keys."""
        return {
            request_id: (namespace, symbols[:theta]) if len(symbols) >= theta else None
            for request_id, (namespace, symbols) in self.waiting.items()
        }


class NaiveCache:
    """The content of a prefix cache: a list of token sequences, whole pages only."""

    def __init__(self, page_tokens: int = 1) -> None:
        self.page_tokens = page_tokens
        self.sequences: list[Place] = []

    def add(self, tokens: Sequence[int], namespace: str = "") -> None:
        whole = len(tokens) - len(tokens) % self.page_tokens
        self.sequences.append((namespace, tuple(tokens[:whole])))

    def longest_prefix(self, tokens: Sequence[int], namespace: str = "") -> int:
        """Tokens of the longest cached prefix, whole pages only: an engine's own match."""
        best = longest(self.sequences, (namespace, tuple(tokens)))
        return best - best % self.page_tokens


def naive_walk(prompts: Mapping[str, Place], cache: NaiveCache) -> dict[str, int]:
    """Match each waiting prompt (its tokens) alone; return the cached lengths in tokens."""
    return {
        request_id: cache.longest_prefix(tokens, namespace)
        for request_id, (namespace, tokens) in prompts.items()
    }


class Pages:
    """Translates tokens to symbols as an adapter does: one symbol per whole page, the rest left out.

    With `chained` a page's symbol stands for everything up to its end (vLLM's block hashes).
    """

    def __init__(self, page_tokens: int = 1, chained: bool = False) -> None:
        self.page_tokens = page_tokens
        self.chained = chained
        self._numbers: dict[Hashable, int] = {}
        self._contents: list[tuple[int, ...]] = []

    def key(self, tokens: Sequence[int], namespace: str = "") -> list[int]:
        symbols = []
        for end in range(self.page_tokens, len(tokens) + 1, self.page_tokens):
            page = tuple(tokens[end - self.page_tokens : end])
            identity: Hashable = (namespace, tuple(tokens[:end])) if self.chained else page
            if identity not in self._numbers:
                self._numbers[identity] = len(self._contents)
                self._contents.append(page)
            symbols.append(self._numbers[identity])
        return symbols

    def tokens(self, symbols: Iterable[int]) -> list[int]:
        """The tokens that symbols stand for."""
        return [token for symbol in symbols for token in self._contents[symbol]]


class NaiveCacheView:
    """`CacheView` (and `CacheTree`) over a `NaiveCache` as it is now, for keys that `pages` makes.

    A cursor is the place itself.  Every call matches from the very first token, so the answers cannot depend
    on how the walk reached the place.  Node ids follow the radix tree of the cached sequences.
    """

    def __init__(self, cache: NaiveCache, pages: Pages) -> None:
        self.unit_tokens = pages.page_tokens
        self._cache = cache
        self._pages = pages
        keys = [(ns, tuple(pages.key(tokens, ns))) for ns, tokens in cache.sequences]
        self.nodes: list[Place] = sorted(radix_nodes(key for key in keys if key[1]))

    def root(self, namespace: str) -> Place:
        return (namespace, ())

    def advance(self, cursor: Place, segment: memoryview, offset: int) -> tuple[int, Place]:
        namespace, behind = cursor
        path = behind + tuple(segment)
        matched = self._cache.longest_prefix(self._pages.tokens(path), namespace) // self.unit_tokens
        return matched - len(behind), (namespace, path[:matched])

    def holder(self, place: Place) -> Place:
        """The cached node on whose edge a place's last symbol lies."""
        namespace, symbols = place
        below = [node for node in self.nodes if node[0] == namespace and node[1][: len(symbols)] == symbols]
        return min(below, key=lambda node: len(node[1]))

    def above(self, node: Place) -> Place | None:
        """The parent of a cached node; None below a root."""
        nodes = [prefix for prefix in prefixes(node)[:-1] if prefix in self.nodes]
        return nodes[-1] if nodes else None

    def id_of(self, node: Place) -> int:
        return self.nodes.index(node) + 1

    def node_id(self, cursor: Place) -> int:
        return self.id_of(self.holder(cursor))

    def parent_id(self, node_id: int) -> int:
        above = self.above(self.nodes[node_id - 1])
        return 0 if above is None else self.id_of(above)
