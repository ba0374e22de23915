"""The dual-walk: every waiting request's cached length, in one joint descent of queue and cache.

`walk` descends the pending tree and the engine's prefix cache together, with one `CacheView.advance` call per
pending edge.  It is Algorithm 1 of the paper, made resumable: a child edge starts at the cursor of its parent
edge, and the cache is never entered again at its root.  The walk writes `request.cached_len`; `match` returns
the same as a dictionary.

The result is exact: it equals the engine's own longest-prefix match of every request alone.  It takes one
call per edge that the cache follows, and one per edge where it stops, instead of one match per request.  The
walk leaves a branch where the cache stops, because all requests below have the same cached length.

A cache that matches whole blocks only (`block_symbols`) stands at a block boundary, at or before the end of
an edge.  The children are then asked about from that boundary, with the rest of the path in front of their
edge.  Such a cache stops at an edge of which it misses a whole block or more.

The marks of the last walk stay.  A walk that asks again notes in the tree's journal each node whose answer
differs, so that a policy updates only what it knows of these.  A cache may carry a `version` that changes
whenever an answer may.  While it is unchanged, the walk asks only about newer nodes.  A cache may also tell
its changes: symbols, if keys are chained (`changed_since`), or keys that came in (`inserted_since`).  The
walk then looks at these and at new nodes.  With `inserted_since` it also looks at what was cached, unless the
cache kept everything (`keeps_since`).

The walk goes over the tree in pre-order by its links.  Each node remembers how far the cache followed its
path and the cursor there (`walk_*`).  The demand index of `peek.eviction` reads these marks afterwards.

The code of a `CacheView` may be anyone's.  An answer that no cache can give raises `InvalidCache`, which
names the call and the value.  Whole numbers are what Python takes for one (`operator.index`), numpy's
included, on both builds.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, final

from peek.errors import InvalidCache, a_kind
from peek.native import i64
from peek.trie.keys import COMPILED, MAX_SYMBOL, SYMBOL_BYTES, match_edge, symbol_at
from peek.trie.node import Node, forget_below, next_branch, next_preorder, write_own, write_subtree
from peek.trie.pending_tree import Bookmark, PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView

_HUGE: Final = 2**62 - 1
"""The largest number that compiled code compares without conversion."""

_PROBES: Final = 4
"""Edges that are asked about again while no answer proves that a cache matches single symbols."""


@final
class DualWalk:
    """Joint descent of one pending tree and any cache.

    For one thread at a time, like the tree.  A walk holds the tree while it calls the cache, so a change of
    the tree meanwhile, or a second walk, raises `PlannerBusy`.

    >>> DualWalk(tree).match(cache)        # doctest: +SKIP
    {'request-1': 4096, 'request-2': 0}
    """

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree
        self.epoch: i64 = 0
        """The tree's epoch at the last walk; 0 before the first one and after one that failed."""
        self._cache: object = None
        self._cache_version: Any = None  # comparing numpy's numbers gives no native bool
        self._single: object = None
        self._block: i64 = 1
        self._unit: i64 = 1
        self._worth: object = None
        self._advance: object = None
        self._bookmark = Bookmark()
        self._by_symbol = False
        self._goes_on = False
        self.advances: i64 = 0
        """Calls of `CacheView.advance` in the last walk."""

    def match(self, cache: CacheView) -> dict[str, int]:
        """Return the cached length in tokens of every waiting request.  Cost and errors as `walk`."""
        self.walk(cache)
        return {request.request_id: request.cached_len for request in self._tree.requests()}

    def walk(self, cache: CacheView) -> None:
        """Write `request.cached_len` (tokens) for every request and the marks of every node reached.

        O(nodes that the cache follows) calls into the cache, plus O(n) to write the results.  A view that
        declares no `block_symbols` gets one to four calls more until its answers show that it matches symbol
        by symbol.

        Raises `InvalidCache` for an answer that no cache can give, and whatever the view raises.  The next
        walk then starts afresh; until it is done, `cached_len` means nothing.  `PlannerBusy` while another
        call holds the tree.
        """
        self._tree.enter("DualWalk.walk")
        try:
            self.walk_held(cache, unit_tokens_of(cache))
        finally:
            self._tree.leave()

    def walk_held(self, cache: CacheView, unit: i64) -> None:
        """`walk` for a caller that holds the tree (`PendingTree.enter`) and knows the tokens per symbol."""
        whole = False
        try:
            self._walk(cache, unit)
            whole = True
        finally:
            if not whole:
                self._forget()

    def _walk(self, cache: CacheView, unit: i64) -> None:
        declared = block_symbols_of(cache)
        block: i64 = max(1, declared)
        worth = getattr(cache, "worth", None)
        version: Any = getattr(cache, "version", None)
        known = cache is self._cache and block == self._block and unit == self._unit
        known = known and self.epoch == self._tree.epoch
        start = self._bookmark.at
        told: list[Any] | None = None
        if version is not None and worth is None:  # the worth of a token may change though no answer does
            told = self._told(cache, known)
        changed = version is None or bool(version != self._cache_version)
        keeps = self._by_symbol or not changed or (told is not None and self._keeps(cache))
        if not known:
            self.epoch = self._tree.begin_walk(block)
        self._cache = cache
        self._cache_version = version
        self._block = block
        self._unit = unit
        self._worth = worth
        self._advance = cache.advance
        self.advances = 0
        self._goes_on = told is not None or (known and changed)
        if told is None:
            for namespace, root in self._tree.roots():
                self._mark_root(root, cache.root(namespace))
                self._walk_below(root, None, changed)
        else:
            self._walk_on(cache, start, told if changed else [], keeps)
        if self.advances > 0:
            if declared == 0 and cache is not self._single and matches_single_symbols(self._tree, cache):
                self._single = cache
            self._tree.walks += 1

    def _told(self, cache: CacheView, marked: bool) -> list[Any] | None:
        """The cache's changes since the last walk, as symbols or keys; None if they are not known.

        They are of use only if the tree's journal still has the tree's own changes since then.
        """
        changed: Any = getattr(cache, "changed_since", None) if self._tree.chained else None
        ask: Any = changed or getattr(cache, "inserted_since", None)
        self._by_symbol = changed is not None
        if ask is None or self._block != 1:
            return None
        known = self._bookmark.catch_up(self._tree.journal())
        if not (known and marked):
            return None
        told: Any = ask(self._cache_version)
        try:
            return None if told is None else list(told)
        except TypeError:
            name = "inserted_since" if changed is None else "changed_since"
            raise InvalidCache(f"{name}(...) answered {told!r}; need a list, or None") from None

    def _keeps(self, cache: CacheView) -> bool:
        """Whether the cache says that it still holds all that it held at the last walk."""
        keeps: Any = getattr(cache, "keeps_since", None)
        return keeps is not None and bool(keeps(self._cache_version))

    def _forget(self) -> None:
        """Make the marks of a failed walk old, so that they are not taken for complete."""
        self.epoch = 0
        self._cache = None
        self._cache_version = None
        self._tree.begin_walk(1)

    def _tokens_at(self, node: Node) -> i64:
        """Cached length in tokens of a request whose match ends in `node`."""
        matched = node.walk_matched
        tokens = matched * self._unit
        if self._worth is None:
            return tokens
        worth: Any = self._worth
        value = whole_number(worth(node.walk_cursor, matched), f"worth(cursor, {matched})")
        if not 0 <= value <= tokens:
            raise InvalidCache(f"worth(cursor, {matched}) answered {value}; need 0 to {tokens} tokens")
        return value

    def _mark_root(self, root: Node, cursor: object) -> None:
        root.walk_matched = 0
        root.walk_cursor = cursor
        root.walk_epoch = self.epoch

    def _walk_below(self, top: Node, stop: Node | None, anew: bool) -> None:
        """Ask about the nodes below `top`, whose path the cache holds, down to where the cache stops.

        `stop` is the node after the branch of `top`.  Nodes with marks of this epoch are asked about only if
        `anew`.
        """
        epoch = self.epoch
        block = self._block
        node = top
        while True:
            if node.terminator is not None:
                write_own(node, self._tokens_at(node))
            following = node.kid if node.kid is not None else next_branch(node)
            while following is not stop and following is not None:
                known = following.walk_epoch == epoch
                if anew or not known:
                    before = following.walk_matched
                    self._ask(following)
                    if known and before != following.walk_matched:
                        self._tree.journal().note(following)
                if following.depth - following.walk_matched < block:
                    break
                if self._goes_on:  # nodes below a new node may have marks of this epoch
                    forget_below(following)
                tokens = following.walk_matched * self._unit
                if self._worth is not None:
                    tokens = self._tokens_at(following)
                following = write_subtree(following, tokens)
            if following is stop or following is None:
                return
            node = following

    def _ask(self, node: Node) -> None:
        """Ask the cache about one node and mark it.  Its parent has marks."""
        parent = node.parent
        assert parent is not None
        start = parent.walk_matched
        asked = node.depth - start
        view = node.view
        if start != parent.depth:
            view = rest_and_edge(parent, node)
        elif view is None:
            view = memoryview(node.edge).cast("i")
            node.view = view
        self.advances += 1
        advance: Any = self._advance  # looked up dynamically: views are ordinary Python objects
        answer = advance(parent.walk_cursor, view, start)
        matched: i64 = -1
        if COMPILED:  # the usual kind of answer is unpacked natively
            try:
                step: tuple[i64, object] = answer
                matched, node.walk_cursor = step
            except (TypeError, ValueError, OverflowError):
                pass  # a wrong answer, or one of other types than Python's own
        elif type(answer) is tuple and len(answer) == 2 and type(answer[0]) is int:
            matched, node.walk_cursor = answer
        if not 0 <= matched <= asked:
            matched, node.walk_cursor = checked_step(answer, asked)
        node.walk_matched = start + matched
        node.walk_epoch = self.epoch

    # -- going on from the last walk ---------------------------------------------------------------

    def _walk_on(self, cache: CacheView, start: i64, told: list[Any], keeps: bool) -> None:
        """Look at the nodes in the tree's journal from entry `start` on, and at what the cache told.

        O(depth) for each of these nodes.
        """
        tree = self._tree
        fresh = tree.journal().nodes[start:]  # read first: notes of this walk may begin the journal anew
        for namespace, root in tree.roots():
            if root.walk_epoch != self.epoch:
                self._mark_root(root, cache.root(namespace))
        if not keeps:  # a cursor may point into an entry that is gone
            self._look_again_at(followed(tree, self.epoch))
        for node in fresh:
            if node.count > 0:
                self._reach(node, not keeps)
        if told:
            self._look_again_at(owners_of(tree, told) if self._by_symbol else on_paths(tree, told))
        self._bookmark.catch_up(tree.journal())

    def _look_again_at(self, nodes: list[Node]) -> None:
        """Ask again about nodes whose answers may differ, parents first."""
        for node in nodes:
            parent = node.parent
            if parent is not None and parent.walk_epoch == self.epoch and parent.walk_matched == parent.depth:
                self._look_again(node, False)

    def _look_again(self, node: Node, lost: bool) -> None:
        """Ask about a node whose parent's path is cached, and update the nodes below.

        With `lost`, nodes below a new node are asked about again: their cache entries may be gone.
        """
        known = node.walk_epoch == self.epoch
        before = node.walk_matched
        self._ask(node)
        if known and before == node.walk_matched:
            return
        self._tree.journal().note(node)
        if node.walk_matched == node.depth:
            self._walk_below(node, next_branch(node), known or lost)
            return
        forget_below(node)
        write_subtree(node, self._tokens_at(node))

    def _reach(self, node: Node, lost: bool) -> None:
        """Ask about the nodes on the path to `node` whose marks are old, down to where the cache stops.

        `lost` as in `_look_again`.
        """
        path: list[Node] = []
        at = node
        while at.parent is not None:
            path.append(at)
            at = at.parent
        while path and at.walk_matched == at.depth:
            at = path.pop()
            if at.walk_epoch != self.epoch:
                self._look_again(at, lost)
        write_own(node, self._tokens_at(at))


def owners_of(tree: PendingTree, symbols: list[Any]) -> list[Node]:
    """The nodes whose edges hold these symbols of chained keys, each once.  O(symbols)."""
    nodes: dict[int, Node] = {}
    for symbol in symbols:
        node = tree.owner(whole_number(symbol, "a symbol that changed_since(...) told"))
        if node is not None:
            nodes[node.uid] = node
    return list(nodes.values())


def followed(tree: PendingTree, epoch: i64) -> list[Node]:
    """The nodes on whose edges the cache held something in walk `epoch`, parents first.

    O(children of nodes that the cache held to the end).
    """
    nodes: list[Node] = []
    whole: list[Node] = [root for _, root in tree.roots()]
    while whole:
        node = whole.pop()
        kid = node.kid
        while kid is not None:
            if kid.walk_epoch == epoch and kid.walk_matched > node.depth:
                nodes.append(kid)
                if kid.walk_matched == kid.depth:
                    whole.append(kid)
            kid = kid.next
    return nodes


def on_paths(tree: PendingTree, keys: list[Any]) -> list[Node]:
    """The nodes on the paths of packed keys, each key with its namespace, parents first.  O(symbols)."""
    nodes: list[Node] = []
    for key in keys:
        namespace, packed = checked_key(key)
        node = tree.root(namespace)
        n: i64 = len(packed)
        at: i64 = 0
        while node is not None and at < n:
            node = tree.child(node, symbol_at(packed, at))
            if node is not None:
                nodes.append(node)
                common = match_edge(node.edge, packed, at)
                at += common
                if common < len(node.edge):
                    break
    return nodes


# -- checks of a view's answers ----------------------------------------------------------------------------


def whole_number(value: object, call: str) -> int:
    """Return `value` as a 63-bit int; if it is none, `InvalidCache` names the `call` that returned it."""
    if isinstance(value, int):
        number: int = value
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidCache(f"{call} is {value!r}, {a_kind(value)}; need a whole number") from None
    if -_HUGE <= number <= _HUGE:
        return number
    raise InvalidCache(f"{call} is {number}, beyond all counts and ids")


def unit_tokens_of(cache: object) -> int:
    """Tokens per symbol of a view; `InvalidCache` unless it is a whole number from 1 to 2**31 - 1."""
    return _positive(getattr(cache, "unit_tokens", None), "unit_tokens")


def block_symbols_of(cache: object) -> int:
    """Symbols per block, if a view's cache matches whole blocks; 0 if not declared; `InvalidCache`."""
    size: object = getattr(cache, "block_symbols", None)
    return 0 if size is None else _positive(size, "block_symbols")


def _positive(value: object, name: str) -> int:
    number = whole_number(value, name)
    if 1 <= number <= MAX_SYMBOL:
        return number
    raise InvalidCache(f"{name} is {number}; need a whole number from 1 to 2**31 - 1")


def checked_step(answer: object, asked: i64) -> tuple[i64, object]:
    """Check an answer of `advance` about `asked` symbols; return its two items or raise `InvalidCache`."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise InvalidCache(f"advance(...) answered {answer!r}; need a tuple (symbols followed, cursor)")
    count = whole_number(answer[0], "the first item that advance(...) answered")
    if not 0 <= count <= asked:
        raise InvalidCache(
            f"advance(...) answered {count} for a segment of {asked} symbols; need 0 to {asked}"
        )
    return count, answer[1]


def checked_key(key: object) -> tuple[str, bytes]:
    """Check a key from `inserted_since`; return its namespace and symbols or raise `InvalidCache`."""
    if isinstance(key, tuple) and len(key) == 2:
        namespace, packed = key
        if isinstance(namespace, str) and isinstance(packed, bytes) and len(packed) % SYMBOL_BYTES == 0:
            return namespace, packed
    raise InvalidCache(f"inserted_since(...) told {key!r}; need a tuple (namespace, bytes of int32 symbols)")


def rest_and_edge(parent: Node, node: Node) -> memoryview:
    """The symbols from where the cache stands above `node` to the end of the node's edge.

    A cache that matches whole blocks stands at the last block boundary at or before the end of the parent.
    The symbols behind that boundary are the `rest`, from one or more edges.  O(rest + edge).
    """
    edges: list[bytes] = [node.edge]
    missing = parent.depth - parent.walk_matched
    above = parent
    while missing > 0:
        size: i64 = len(above.edge) >> 2
        edges.append(above.edge if size <= missing else above.edge[SYMBOL_BYTES * (size - missing) :])
        missing -= size
        if above.parent is None:
            break
        above = above.parent
    edges.reverse()
    return memoryview(b"".join(edges)).cast("i")


# -- whether a cache matches whole blocks without declaring it --------------------------------------------


def matches_single_symbols(tree: PendingTree, cache: Any) -> bool:
    """Whether a walk's answers prove that the cache matches symbol by symbol; one to four calls.

    Called after a complete walk with a view that declares no `block_symbols`.  If the cache followed k
    symbols of an edge, it must also follow all of the first k - 1.  If it does not, it matches whole blocks;
    `InvalidCache` is then raised if an edge ends inside a block, because symbols below may be cached as well.
    If the cache has followed no edge that far, there is no proof.  Then some edges on which it stopped are
    asked about again, together with a child's edge.
    """
    sample = _first_followed(tree)
    if sample is None:
        _ask_below(tree, cache)
        return False
    parent = sample.parent
    assert parent is not None
    count = sample.walk_matched - parent.depth
    shorter = memoryview(sample.edge[: SYMBOL_BYTES * (count - 1)]).cast("i")
    answered = checked_step(cache.advance(parent.walk_cursor, shorter, parent.depth), count - 1)[0]
    if answered == count - 1:
        return True
    for node in _stopped(tree, count - answered):
        raise _needs_blocks(
            f"advance(...) followed {count} symbols but {answered} of the first {count - 1}, "
            f"and prompts part ways {node.depth - node.walk_matched} symbols behind the end of a block",
            f"{count - answered}",
        )
    return False


def _needs_blocks(found: str, size: str) -> InvalidCache:
    return InvalidCache(
        f"{found}: this cache matches whole blocks of symbols. Declare on the view how many symbols a "
        f"block has (block_symbols = {size}), or make every block one symbol with unit_tokens"
    )


def _reached(tree: PendingTree) -> Iterator[Node]:
    """The nodes that the walk asked about, in pre-order."""
    for _, root in tree.roots():
        node = next_preorder(root)
        while node is not None:
            yield node
            node = next_preorder(node) if node.walk_matched == node.depth else next_branch(node)


def _first_followed(tree: PendingTree) -> Node | None:
    """The first node of the walk on whose edge the cache followed two symbols or more."""
    for node in _reached(tree):
        parent = node.parent
        assert parent is not None
        if node.walk_matched >= parent.depth + 2:
            return node
    return None


def _stopped(tree: PendingTree, within: i64) -> Iterator[Node]:
    """The nodes with children of which the cache misses at least 1 and fewer than `within` symbols."""
    for node in _reached(tree):
        if 0 < node.depth - node.walk_matched < within and node.kid is not None:
            yield node


def _ask_below(tree: PendingTree, cache: Any) -> None:
    """Raise `InvalidCache` if the cache stopped on an edge, but follows it together with a child's edge."""
    for node in islice(_stopped(tree, MAX_SYMBOL), _PROBES):
        kid = node.kid
        assert kid is not None
        parent = node.parent
        assert parent is not None
        both = memoryview(node.edge + kid.edge).cast("i")
        before = node.walk_matched - parent.depth
        matched = checked_step(cache.advance(parent.walk_cursor, both, parent.depth), len(both))[0]
        if matched > before:
            raise _needs_blocks(
                f"advance(...) followed {before} symbols of an edge, but {matched} of that edge and the next",
                f"{matched}, or a divisor of it",
            )
