"""The dual-walk: every waiting request's cached length, in one joint descent.

Operations: `walk` descends the pending tree and the engine's prefix cache together, one
`CacheView.advance` call per pending edge (Algorithm 1 of the paper, made resumable: the cursor of
the parent edge is where the child edge starts, the cache is never entered again at its root), and
writes `request.cached_len`; `match` returns the same as a dictionary.

Goals: exact (equal to the engine's own longest-prefix match of every request alone), and O(edges the
cache has in common + 1 probe per edge where it stops) calls instead of one match per request.  A
branch on which the cache stops is left at once: everything below it has the same cached length.

A cache may carry a `version` that changes whenever an answer could; while it stands still, the marks
of the last walk are good and only nodes that are new since then are asked for.

Plan: pre-order over the tree by its links.  Each node remembers how far the cache followed its edge
and the cursor there (`walk_*`); the demand index of `peek.eviction` reads these marks afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from mypy_extensions import i64

from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class DualWalk:
    """Co-descent of one pending tree with any cache.

    >>> DualWalk(tree).match(cache)        # doctest: +SKIP
    {'request-1': 4096, 'request-2': 0}
    """

    __slots__ = ("_cache", "_cache_version", "_tree", "_unit", "_worth", "advances", "epoch")

    def __init__(self, tree: PendingTree) -> None:
        self._tree = tree
        self.epoch: i64 = 0
        """The tree's epoch at the last walk."""
        self._cache: object = None
        self._cache_version: object = None
        self._unit: i64 = 1
        self._worth: object = None
        self.advances: i64 = 0
        """Calls of `CacheView.advance` in the last walk."""

    def match(self, cache: CacheView) -> dict[str, int]:
        """Cached length in tokens of every waiting request.  Cost as `walk`."""
        self.walk(cache)
        return {request.request_id: request.cached_len for request in self._tree.requests()}

    def walk(self, cache: CacheView) -> None:
        """Write `request.cached_len` (tokens) for every request and the marks of every node reached.

        O(nodes where the cache follows) calls into the cache, plus O(n) to write the results.
        """
        version: object = getattr(cache, "version", None)
        unchanged = version is not None and cache is self._cache and version == self._cache_version
        if not unchanged or self.epoch != self._tree.epoch:
            self._tree.epoch += 1
            self.epoch = self._tree.epoch
        self._cache = cache
        self._cache_version = version
        self.advances = 0
        self._unit = cache.unit_tokens
        self._worth = getattr(cache, "worth", None)
        for namespace, root in self._tree.roots():
            root.walk_matched = 0
            root.walk_cursor = cache.root(namespace)
            root.walk_epoch = self.epoch
            self._walk_below(root, cache)

    def _tokens_at(self, node: Node) -> i64:
        """Cached length in tokens for whoever's match ends in `node`."""
        if self._worth is None:
            return node.walk_matched * self._unit
        worth: Any = self._worth
        tokens: int = worth(node.walk_cursor, node.walk_matched)
        return tokens

    def _walk_below(self, root: Node, cache: CacheView) -> None:
        # A cache is looked up dynamically: adapters are ordinary Python objects.
        advance: Any = cache.advance
        epoch = self.epoch
        calls: i64 = 0
        node = root
        while True:
            if node.terminator is not None:
                _write_terminators(node, self._tokens_at(node))
            following = next_preorder(node)
            while following is not None:
                parent = following.parent
                assert parent is not None
                if following.walk_epoch != epoch:
                    calls += 1
                    view = following.view
                    if view is None:
                        view = memoryview(following.edge).cast("i")
                        following.view = view
                    step: tuple[int, object] = advance(parent.walk_cursor, view, parent.depth)
                    following.walk_matched = parent.depth + step[0]
                    following.walk_cursor = step[1]
                    following.walk_epoch = epoch
                if following.walk_matched == following.depth:
                    break
                _write_subtree(following, self._tokens_at(following))
                following = next_branch(following)
            if following is None:
                self.advances += calls
                return
            node = following


def _write_terminators(node: Node, cached_len: i64) -> None:
    terminator = node.terminator
    while terminator is not None:
        terminator.request.cached_len = cached_len
        terminator = terminator.next


def _write_subtree(top: Node, cached_len: i64) -> None:
    """The same cached length for every request at or below `top`."""
    if top.kid is None:
        _write_terminators(top, cached_len)
        return
    stop = next_branch(top)
    node: Node | None = top
    while node is not None and node is not stop:
        _write_terminators(node, cached_len)
        node = next_preorder(node)
