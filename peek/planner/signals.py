"""What a plan knows of cache and queue, each worked out at most once per plan.

`Signals` writes what the waiting requests have cached and what they share.

`PrefillsInFlight` is for engines (SGLang) that show a prefix to others only when its prefill ends.  A waiting
request with the same prefix would compute it once more if it were admitted now, so it had better wait.
`note_coming` writes how much of each prompt will be cached when the prefills under way have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from peek.native import i64
from peek.planner.stats import PlannerStats
from peek.request import PendingRequest
from peek.trie.dual_walk import DualWalk, unit_tokens_of
from peek.trie.node import Node, next_branch, next_preorder
from peek.trie.pending_tree import PendingTree

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class PrefillsInFlight:
    """The prompts that are being computed, in a tree of their own; several planners may share it.

    `ended` may be called before `admit`: an engine may finish a short prefill before its adapter compares
    queues and learns of the admission.

    Args:
        chained: as in `PendingTree`.
        shown_tokens: tokens that a prefill in parts shows to others in a step; see `Cycle`.
    """

    def __init__(self, chained: bool = False, shown_tokens: int = 0) -> None:
        self.version: i64 = 0
        """Grows when the prefills under way may have changed."""
        self.shown_tokens = shown_tokens
        self._tree = PendingTree(chained)
        self._ended_early: set[str] = set()

    def __len__(self) -> int:
        """Number of prefills under way."""
        return len(self._tree)

    def needs(self, symbol: int) -> bool:
        """Whether a prefill under way has this symbol in its key; for `chained` keys.  O(1)."""
        return self._tree.owner(symbol) is not None

    def admit(self, request_id: str, key: bytes, namespace: str) -> None:
        """Add the prefill of an admitted request, unless it has already ended.  O(depth)."""
        if request_id in self._ended_early:
            self._ended_early.discard(request_id)
        elif request_id not in self._tree:
            self._tree.insert(request_id, key, namespace)
            self.version += 1

    def ended(self, request_id: str, is_waiting: bool) -> None:
        """Remove a prefill that ended; with `is_waiting` its admission is still to come.  O(depth)."""
        if request_id in self._tree:
            self._tree.remove(request_id)
        elif is_waiting:
            self._ended_early.add(request_id)
        else:
            return
        self.version += 1

    def withdrawn(self, request_id: str) -> None:
        """Forget a waiting request that left and whose prefill will not be followed.  O(1)."""
        self._ended_early.discard(request_id)

    def note_coming(self, waiting: PendingTree, unit_tokens: i64, noted: list[PendingRequest]) -> None:
        """Write `coming_len` of every waiting request; `noted` lists the requests for which it is not 0.

        O(requests below what both trees have in common, now and at the last call).  Descends both trees once,
        like the dual-walk, but does not touch its marks.
        """
        for request in noted:
            request.coming_len = 0
        noted.clear()
        if len(self._tree) == 0:
            return
        for namespace, root in self._tree.roots():
            top = waiting.root(namespace)
            if top is not None:
                self._descend(top, root, unit_tokens, noted)

    def _descend(self, top: Node, root: Node, unit_tokens: i64, noted: list[PendingRequest]) -> None:
        # Each entry: a fully matched node of `waiting`, and the place in `self._tree` where its path ends.
        stack: list[tuple[Node, Node, i64]] = [(top, root, 0)]
        while stack:
            node, our_node, our_at = stack.pop()
            if node.depth > 0:
                _note(node, next_preorder(node), node.depth * unit_tokens, noted)
            kid = node.kid
            while kid is not None:
                matched, behind, at = self._tree.follow(kid.edge, our_node, our_at)
                if matched == len(kid.edge):
                    stack.append((kid, behind, at))
                elif node.depth > 0 or matched > 0:
                    _note(kid, next_branch(kid), (node.depth + (matched >> 2)) * unit_tokens, noted)
                kid = kid.next


def _note(top: Node, stop: Node | None, coming_len: i64, noted: list[PendingRequest]) -> None:
    """Write `coming_len` of the requests that end in the nodes from `top` to before `stop`, in pre-order."""
    node: Node | None = top
    while node is not None and node is not stop:
        terminator = node.terminator
        while terminator is not None:
            terminator.request.coming_len = coming_len
            noted.append(terminator.request)
            terminator = terminator.next
        node = next_preorder(node)


@final
class Signals:
    """Brings `cached_len`, `coming_len` and the tree's signals up to date when they are asked for."""

    def __init__(
        self, tree: PendingTree, in_flight: PrefillsInFlight | None, stats: PlannerStats, unit_tokens: int
    ) -> None:
        self.cache: CacheView | None = None
        """The cache of the last plan."""
        self._tree = tree
        self._in_flight = in_flight
        self._stats = stats
        self._coming: list[PendingRequest] = []
        """Requests with a `coming_len`; all others have 0."""
        self._walk = DualWalk(tree)
        self._walked = False
        self.unit_tokens: i64 = unit_tokens
        """Tokens per symbol of the cache of the last plan; before that, as the driver says."""
        self._refreshed: i64 = -1
        self._theta: i64 = -1

    def look_at(self, cache: CacheView) -> int:
        """Begin a plan: forget what was known of the cache; return its tokens per symbol.  O(1).

        `InvalidCache` for an impossible number; nothing has changed then.
        """
        unit = unit_tokens_of(cache)
        self.cache = cache
        self.unit_tokens = unit
        self._walked = False
        return unit

    def match_cache(self) -> None:
        """Write `cached_len` and `coming_len`, once per plan.

        The caller holds the tree.  Cost and errors of `DualWalk.walk`.
        """
        cache = self.cache
        if self._walked or cache is None:
            return
        if self._in_flight is not None:
            self._in_flight.note_coming(self._tree, self.unit_tokens, self._coming)
        self._walk.walk_held(cache, self.unit_tokens)
        self._walked = True
        self._stats.cache_calls += self._walk.advances

    def match_cache_now(self, caller: str) -> None:
        """`match_cache` for a method of the planner, named `caller`, that does not hold the tree."""
        self._tree.enter(caller)
        try:
            self.match_cache()
        finally:
            self._tree.leave()

    def match_queue(self, theta_tokens: i64) -> None:
        """Write score, cluster and head, unless the tree is unchanged.  O(n + nodes).

        The caller holds the tree.
        """
        theta = (theta_tokens + self.unit_tokens - 1) // self.unit_tokens
        if self._refreshed != self._tree.version or self._theta != theta:
            self._tree.refresh_held(theta)
            self._refreshed = self._tree.version
            self._theta = theta

    def walk_epoch(self) -> int:
        """The epoch of the walk of the last plan's cache that left its marks in the tree; walks if needed."""
        if not self._walked or self._walk.epoch != self._tree.epoch:
            self._walked = False
            self.match_cache_now("Planner.eviction_score")
        return self._walk.epoch
