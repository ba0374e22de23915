"""The dual-walk: every waiting request's cached length, in one joint descent of queue and cache.

`walk` descends the pending tree and the engine's prefix cache together, with one `CacheView.advance` call per
pending edge.  It is Algorithm 1 of the paper, made resumable: a child edge starts at the cursor of its parent
edge, and the cache is never entered again at its root.  The walk writes `request.cached_len`; `match` returns
the same as a dictionary.

The result is exact: it equals the engine's own longest-prefix match of every request alone.  It takes O(edges
the cache has in common + 1 call per edge where it stops) calls instead of one match per request.  The walk
leaves a branch at once where the cache stops, because all requests below have the same cached length.

A cache that matches whole blocks only (`block_symbols`) stands at a block boundary, at or before the end of
an edge.  The children are then asked for from that boundary, with the rest of the path in front of their
edge.  Such a cache stops at an edge on which a whole block or more is missing.

A cache may carry a `version` that changes whenever an answer could.  While it stands still, the marks of the
last walk are good and only newer nodes are asked for.  A cache may also tell its changes: symbols, if keys
are chained (`changed_since`), or keys that came in (`inserted_since`).  A walk then looks at these and at new
nodes.  With `inserted_since` it also looks at what was cached, unless the cache kept everything
(`keeps_since`).

The walk goes over the tree in pre-order by its links.  Each node remembers how far the cache followed its
path and the cursor there (`walk_*`).  The demand index of `peek.eviction` reads these marks afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

from mypy_extensions import i64

from peek.errors import InvalidCache
from peek.trie.cache_answers import (
    block_symbols_of,
    matches_single_symbols,
    out_of_range,
    read_step,
    rest_and_edge,
    unit_tokens_of,
    whole_number,
)
from peek.trie.keys import match_edge, symbol_at
from peek.trie.node import Node, forget_below, is_cached, next_branch, next_preorder, write_own, write_subtree
from peek.trie.pending_tree import PendingTree
from peek.trie.structure import Bookmark

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class DualWalk:
    """Joint descent of one pending tree and any cache.

    For one thread at a time, as the tree.  A walk holds the tree while it calls the cache, so a change of the
    tree meanwhile, or a second walk, ends in `PlannerBusy`.

    >>> DualWalk(tree).match(cache)        # doctest: +SKIP
    {'request-1': 4096, 'request-2': 0}
    """

    __slots__ = (
        "_advance",
        "_block",
        "_bookmark",
        "_by_symbol",
        "_cache",
        "_cache_version",
        "_single",
        "_tree",
        "_unit",
        "_worth",
        "advances",
        "epoch",
    )

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree
        self.epoch: i64 = 0
        """The tree's epoch at the last walk; 0 before the first one and after one that failed."""
        self._cache: object = None
        self._cache_version: object = None
        self._single: object = None
        self._block: i64 = 1
        self._unit: i64 = 1
        self._worth: object = None
        self._advance: object = None
        self._bookmark = Bookmark()
        self._by_symbol = False
        self.advances: i64 = 0
        """Calls of `CacheView.advance` in the last walk."""

    def match(self, cache: CacheView) -> dict[str, int]:
        """Return the cached length in tokens of every waiting request.  Cost and errors as `walk`."""
        self.walk(cache)
        return {request.request_id: request.cached_len for request in self._tree.requests()}

    def walk(self, cache: CacheView) -> None:
        """Write `request.cached_len` (tokens) for every request and the marks of every node reached.

        O(nodes where the cache follows) calls into the cache, plus O(n) to write the results.  A view that
        declares no `block_symbols` gets one to four calls more until its answers show that it matches symbol
        by symbol.

        Raises `InvalidCache` for an answer that no cache can give, and whatever the view raises.  The next
        walk then starts afresh; until it is done the `cached_len` of the requests mean nothing.
        `PlannerBusy` while another call holds the tree.
        """
        self._tree.enter("DualWalk.walk")
        try:
            self.walk_held(cache)
        finally:
            self._tree.leave()

    def walk_held(self, cache: CacheView) -> None:
        """`walk` for a caller that holds the tree already (`PendingTree.enter`)."""
        unit = unit_tokens_of(cache)
        declared = block_symbols_of(cache)
        block: i64 = max(1, declared)
        worth = getattr(cache, "worth", None)
        version: object = getattr(cache, "version", None)
        stands = version is not None and cache is self._cache and block == self._block
        stands = stands and self.epoch == self._tree.epoch
        start = self._bookmark.at
        told = self._told(cache, stands)
        keeps = self._by_symbol or (told is not None and self._keeps(cache))
        changed = version != self._cache_version
        if told is None and (changed or not stands):
            self.epoch = self._tree.begin_walk(block)
        self._cache = cache
        self._cache_version = version
        self._block = block
        self._unit = unit
        self._worth = worth
        self._advance = cache.advance
        self.advances = 0
        whole = False
        try:
            if told is None:
                for namespace, root in self._tree.roots():
                    self._mark_root(root, cache.root(namespace))
                    self._walk_below(root, None, False)
            else:
                self._walk_on(cache, start, told if changed else [], keeps)
            if declared == 0 and self.advances > 0 and cache is not self._single:
                self._note_granularity(cache)
            if self.advances > 0:
                self._tree.walks += 1
            whole = True
        finally:
            if not whole:
                self._forget()

    def _told(self, cache: CacheView, stands: bool) -> list[Any] | None:
        """The changes since the last walk that the cache tells, as symbols or keys; None if not known.

        They count only where the tree's journal tells its changes, too.
        """
        changed: Any = getattr(cache, "changed_since", None) if self._tree.chained else None
        ask: Any = changed or getattr(cache, "inserted_since", None)
        self._by_symbol = changed is not None
        if ask is None or self._block != 1:
            return None
        known = self._bookmark.catch_up(self._tree.journal())
        if not (known and stands):
            return None
        told: list[Any] | None = ask(self._cache_version)
        return told

    def _keeps(self, cache: CacheView) -> bool:
        """Whether the cache still holds all that it held at the last walk."""
        if getattr(cache, "version", None) == self._cache_version:
            return True
        keeps: Any = getattr(cache, "keeps_since", None)
        return keeps is not None and bool(keeps(self._cache_version))

    def _note_granularity(self, cache: CacheView) -> None:
        if matches_single_symbols(self._tree, cache):
            self._single = cache

    def _forget(self) -> None:
        """Make the marks of a failed walk old, so that they are not taken for complete ones."""
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

        `stop` is the node behind the branch of `top`.  Nodes with marks of this epoch are asked about only if
        `anew`.
        """
        epoch = self.epoch
        block = self._block
        node = top
        while True:
            if node.terminator is not None:
                write_own(node, self._tokens_at(node))
            following = next_preorder(node)
            while following is not stop and following is not None:
                if anew or following.walk_epoch != epoch:
                    self._ask(following)
                if following.depth - following.walk_matched < block:
                    break
                if anew:
                    forget_below(following)
                write_subtree(following, self._tokens_at(following))
                following = next_branch(following)
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
        step = read_step(advance(parent.walk_cursor, view, start), asked)
        if not 0 <= step[0] <= asked:
            raise out_of_range(step[0], asked)
        node.walk_matched = start + step[0]
        node.walk_cursor = step[1]
        node.walk_epoch = self.epoch

    # -- going on from the last walk ---------------------------------------------------------------

    def _walk_on(self, cache: CacheView, start: i64, told: list[Any], keeps: bool) -> None:
        """Look at new nodes of the tree, and at the changes that the cache has told."""
        tree = self._tree
        for namespace, root in tree.roots():
            if root.walk_epoch != self.epoch:
                self._mark_root(root, cache.root(namespace))
        if not keeps:  # a cursor may stand in an entry that has gone
            self._look_again_at(followed(tree, self.epoch))
        self._go_on(start, not keeps)
        if told:
            self._look_again_at(owners_of(tree, told) if self._by_symbol else on_paths(tree, told))
        self._bookmark.catch_up(tree.journal())

    def _go_on(self, start: i64, lost: bool) -> None:
        """Ask about nodes that are new in the tree's journal since entry `start`.  O(depth) each.

        With `lost`, marks below a new node may belong to entries that have gone, and are asked for again.
        """
        for node in self._tree.journal().nodes[start:]:
            if node.count > 0:
                self._reach(node, lost)

    def _look_again_at(self, nodes: list[Node]) -> None:
        """Ask again about nodes whose answers may differ, parents first."""
        for node in nodes:
            if node.parent is not None and is_cached(node.parent, self.epoch):
                self._look_again(node, False)

    def _look_again(self, node: Node, lost: bool) -> None:
        """Ask about a node whose parent's path is cached, and update the nodes below; `lost` as above."""
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
        """Ask about the nodes on the path to `node` whose marks are old, down to where the cache stops."""
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


def owners_of(tree: PendingTree, symbols: Iterable[int]) -> list[Node]:
    """The nodes whose edges hold these symbols of chained keys, each once.  O(symbols)."""
    nodes: dict[int, Node] = {}
    for symbol in symbols:
        node = tree.owner(symbol)
        if node is not None:
            nodes[node.uid] = node
    return list(nodes.values())


def followed(tree: PendingTree, epoch: i64) -> list[Node]:
    """The nodes on whose edges the cache held something in walk `epoch`, parents first.

    O(children of nodes that the cache held whole).
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


def on_paths(tree: PendingTree, keys: Iterable[tuple[str, bytes]]) -> list[Node]:
    """The nodes on the paths of packed keys, each key with its namespace, parents first.  O(symbols)."""
    nodes: list[Node] = []
    for namespace, packed in keys:
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
