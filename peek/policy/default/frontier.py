"""The frontier of a pending tree: the pieces of work that compete for the next place, kept current.

A piece is a request whose whole path is cached, or a prefix that is not: the highest uncached node on a path,
with all that waits below it.  What a piece's index is made of changes only when something below it arrives,
leaves, or comes into or falls out of the cache, all of which the tree's journal tells; only age and what is
at risk above it move by themselves.  So pieces stand in columns, and an order looks at all of them with a
few vector operations.

Cached nodes are groups: what is at risk above a piece is a number of the group that it hangs from.  A node
or request knows the slot of its piece, a node its group; -1 is none.
"""

from __future__ import annotations

import math
from typing import final

from mypy_extensions import i64

from peek.policy.default.below import add_to_parent, edge_at_risk, own_length, own_work, sum_own
from peek.policy.default.columns import Columns
from peek.trie.journal import Bookmark
from peek.trie.node import Node, Terminator, next_branch, next_preorder, uncached_symbols
from peek.trie.pending_tree import PendingTree


@final
class Frontier:
    """The pieces of one tree.  One frontier a tree: a second one takes over, and the first starts afresh.

    Args:
        tree: the waiting requests, with the marks of a dual-walk.
        beta, gamma: exponents of count and length, see `peek.policy.default.policy`.

    Attributes:
        columns: the pieces.
        owners: by slot, the prefix or request that a piece is; None where a slot is free.
        live: how many pieces there are.
    """

    __slots__ = (
        "_beta",
        "_bookmark",
        "_epoch",
        "_free",
        "_free_groups",
        "_gamma",
        "_groups",
        "_last_length",
        "_last_price",
        "_round",
        "_starting",
        "_tree",
        "columns",
        "live",
        "owners",
        "unit",
    )

    def __init__(self, tree: PendingTree, beta: float, gamma: float) -> None:
        self._tree = tree
        self._beta: float = beta
        self._gamma: float = gamma
        self._bookmark = Bookmark()
        self._epoch: i64 = -1
        self._round: i64 = 0
        self._last_length: float = 1.0
        self._last_price: float = 1.0
        self._starting = False
        self.unit: i64 = 1
        self._clear()

    def _clear(self) -> None:
        self.columns = Columns()
        self.owners: list[Node | Terminator | None] = []
        self.live: i64 = 0
        self._free: list[int] = []
        self._groups: list[Node | None] = []
        self._free_groups: list[int] = []

    def is_of(self, tree: PendingTree, beta: float, gamma: float) -> bool:
        """Whether it was made with these arguments."""
        return tree is self._tree and beta == self._beta and gamma == self._gamma

    # -- keeping up --------------------------------------------------------------------------------

    def follow(self, unit_tokens: i64) -> None:
        """Bring the pieces up to date with tree and marks.

        O(journal entries x depth + what is below the prefixes they lie in); O(n + nodes) the first time,
        after a walk that began anew, and where the journal has become too long.
        """
        tree = self._tree
        journal = tree.journal()
        journal.rounds += 1
        self._round = journal.rounds
        start = self._bookmark.at
        known = self._bookmark.catch_up(journal) and tree.frontier is self
        if not known or self._epoch != tree.epoch or self.unit != unit_tokens:
            self._epoch = tree.epoch
            self.unit = unit_tokens
            tree.frontier = self
            self._start()
        else:
            for slot in journal.freed:
                self._release(slot)
            for node in journal.nodes[start:]:
                self._settle(node)
        journal.freed = []

    def _start(self) -> None:
        self._clear()
        self._starting = True  # slots and groups of before mean nothing
        for _, root in self._tree.roots():
            self._enter(root)
        self._starting = False

    def _settle(self, node: Node) -> None:
        """Something has changed at or below a node."""
        if node.count == 0:
            self._leave_slot(node)
            self._leave_group(node)
            return
        path: list[Node] = [node]
        parent = node.parent
        while parent is not None:
            path.append(parent)
            parent = parent.parent
        while path:
            current = path.pop()
            if not self._is_cached(current):
                self._refresh(current)
                return
            if current.group < 0:
                self._enter(current)
            elif current is node:
                self._add_own(current)

    def _is_cached(self, node: Node) -> bool:
        parent = node.parent
        return parent is None or uncached_symbols(node, parent, self._epoch) == 0

    def _enter(self, top: Node) -> None:
        """A node whose path is cached becomes a group, and so do those below it; the rest are pieces."""
        entering: list[Node] = [top]
        while entering:
            node = entering.pop()
            self._leave_slot(node)
            if self._free_groups:
                node.group = self._free_groups.pop()
                self._groups[node.group] = node
            else:
                node.group = len(self._groups)
                self._groups.append(node)
            self._add_own(node)
            kid = node.kid
            while kid is not None:
                if not self._is_cached(kid):
                    self._refresh(kid)
                elif kid.group < 0 or self._starting:
                    entering.append(kid)
                kid = kid.next

    def _leave_slot(self, node: Node) -> None:
        if node.slot >= 0 and not self._starting:
            self._release(node.slot)
        node.slot = -1

    def _leave_group(self, node: Node) -> None:
        if node.group >= 0 and not self._starting:
            self._groups[node.group] = None
            self._free_groups.append(node.group)
        node.group = -1

    def _release(self, slot: i64) -> None:
        self.columns.drop(slot)
        self.owners[slot] = None
        self._free.append(slot)
        self.live -= 1

    def _take(self, owner: Node | Terminator) -> i64:
        self.live += 1
        if self._free:
            slot: i64 = self._free.pop()
            self.owners[slot] = owner
            return slot
        self.owners.append(owner)
        return len(self.owners) - 1

    # -- pieces ------------------------------------------------------------------------------------

    def _add_own(self, node: Node) -> None:
        """Pieces for the requests that end in a cached node; those that have one are behind the others."""
        terminator = node.terminator
        while terminator is not None and (self._starting or terminator.slot < 0):
            terminator.slot = self._take(terminator)
            self._put_own(terminator)
            terminator = terminator.next

    def _put_own(self, terminator: Terminator) -> None:
        request, node = terminator.request, terminator.node
        length = own_length(request)
        work = float(own_work(request, node.depth * self.unit))
        weight = foretold = self.weight(1.0, length)
        if request.answer_ratio != 1.0:
            foretold = self.weight(1.0, length * request.answer_ratio)
        self.columns.put(
            terminator.slot,
            request.arrival_time,
            request.sequence,
            weight,
            1.0 / work,
            0.0,
            node.group,
            foretold,
            1.0 / (work + float(request.answer_excess)),
        )

    def renew(self, terminator: Terminator) -> None:
        """Its request's length or work is another one than when its piece was made.

        `follow` has been called, and the requests of all who are renewed after it know their new numbers.
        """
        if terminator.slot >= 0:
            self._put_own(terminator)
            return
        node: Node | None = terminator.node
        while node is not None and node.slot < 0:
            node = node.parent
        assert node is not None
        self._refresh(node)

    def _refresh(self, top: Node) -> None:
        """The piece of an uncached prefix, made anew.  O(nodes and requests below)."""
        if top.below_round == self._round:
            return
        top.below_round = self._round
        if top.slot < 0 or self._starting:
            top.slot = self._take(top)
        self._sum_up(top)
        parent = top.parent
        assert parent is not None
        count = float(top.count)
        work = float(top.below_work)
        cached = (top.depth - parent.depth - uncached_symbols(top, parent, self._epoch)) * self.unit
        weight = foretold = self.weight(count, top.below_tokens / count)
        if top.below_lasting != top.below_tokens:
            foretold = self.weight(count, top.below_lasting / count)
        self.columns.put(
            top.slot,
            top.below_since,
            top.below_first,
            weight,
            count / max(1.0, work),
            float(cached) / count,
            parent.group,
            foretold,
            count / max(1.0, work + top.below_excess),
        )

    def _sum_up(self, top: Node) -> None:
        """What waits at or below each node from a prefix down; none of them is a group, only it a piece."""
        nodes: list[Node] = []
        stop = next_branch(top)
        node: Node | None = top
        while node is not None and node is not stop:
            if node is not top:
                self._leave_slot(node)
            self._leave_group(node)
            self._release_own(node)
            sum_own(node, self.unit, self._epoch)
            nodes.append(node)
            node = next_preorder(node)
        i: i64 = len(nodes) - 1
        while i > 0:
            add_to_parent(nodes[i])
            i -= 1

    def _release_own(self, node: Node) -> None:
        """The requests that end in a node are no pieces."""
        terminator = node.terminator
        while terminator is not None:
            if terminator.slot >= 0 and not self._starting:
                self._release(terminator.slot)
            terminator.slot = -1
            terminator = terminator.next

    def above(self) -> list[float]:
        """By group: tokens at risk for one request that hangs from it.  O(groups)."""
        at_risk = [-1.0] * len(self._groups)
        for node in self._groups:
            path: list[Node] = []
            while node is not None and at_risk[node.group] < 0.0:
                path.append(node)
                node = node.parent
            risk = 0.0 if node is None else at_risk[node.group]
            while path:
                current = path.pop()
                parent = current.parent
                if parent is not None:
                    risk += edge_at_risk(current, parent, self.unit)
                at_risk[current.group] = risk
        return at_risk

    def weight(self, count: float, length: float) -> float:
        """`count` ** beta / `length` ** gamma."""
        if length != self._last_length:  # prompts of a kind are often of a length
            self._last_length = length
            self._last_price = math.pow(length, self._gamma)
        sharing = 1.0 if count == 1.0 else math.pow(count, self._beta)
        return sharing / self._last_price
