"""The frontier of a pending tree: the pieces of work that compete for the next place, kept current.

A piece is a request whose whole path is cached, or a prefix that is not: the highest uncached node on a path,
with all that waits below it.  What a piece's index is made of changes only when something below it arrives,
leaves, or comes into or falls out of the cache, all of which the tree's journal tells; only age and what is
at risk above it move by themselves.  So pieces stand in columns, and an order looks at all of them with a
few vector operations.

Cached nodes are groups: what is at risk above a piece is a number of the group that it hangs from.

What the frontier knows of a node stands in `Below`, what it knows of a request in `Waiting`, each in a list
by `uid`.  A `uid` is used again, so an entry names what it is of; one of another node or request is stale.
"""

from __future__ import annotations

import math
from typing import Final, final

from mypy_extensions import i64

from peek.policy.default.answers import AnswerLengths, Expected
from peek.policy.default.columns import Columns
from peek.request import PendingRequest
from peek.trie.journal import Bookmark
from peek.trie.node import Node, Terminator, next_branch, next_preorder, uncached_symbols
from peek.trie.pending_tree import PendingTree

_LATE: Final = 1 << 62


@final
class Below:
    """What waits at or below a node: its group, its piece, and sums.

    Attributes:
        node: whose this is.
        slot, group: of the piece that it is, and of the group; -1 for none.
        round: the call of `Frontier.follow` that made its piece last.
        tokens: lengths of prompts.
        lasting: the same, each times how many mean answers its own is expected to last.
        work: tokens to compute, every uncached edge once.
        excess: tokens that answers are expected to take beyond that.
        since, first: arrival in seconds and number of the oldest.
    """

    __slots__ = (
        "excess",
        "first",
        "group",
        "lasting",
        "node",
        "round",
        "since",
        "slot",
        "tokens",
        "work",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.slot: i64 = -1
        self.group: i64 = -1
        self.round: i64 = 0
        self.tokens: float = 0.0
        self.lasting: float = 0.0
        self.work: i64 = 0
        self.excess: float = 0.0
        self.since: float = math.inf
        self.first: i64 = _LATE

    @property
    def foretells(self) -> bool:
        """Whether answers are expected to be others than the mean one."""
        return self.excess != 0.0 or self.lasting != self.tokens

    def begin(self, edge_work: i64) -> None:
        """Nothing but the uncached part of the node's edge."""
        self.tokens = 0.0
        self.lasting = 0.0
        self.work = edge_work
        self.excess = 0.0
        self.since = math.inf
        self.first = _LATE

    def add_own(self, request: PendingRequest, expected: Expected, depth_tokens: i64) -> None:
        """Add a request that ends in the node."""
        length = own_length(request)
        self.tokens += length
        self.lasting += length * expected.ratio
        self.work += own_work(request, depth_tokens)
        self.excess += float(expected.excess)
        self._note(request.arrival_time, request.sequence)

    def add(self, child: Below) -> None:
        """Add what waits at or below a child."""
        self.tokens += child.tokens
        self.lasting += child.lasting
        self.work += child.work
        self.excess += child.excess
        self._note(child.since, child.first)

    def _note(self, since: float, first: i64) -> None:
        """Update the oldest arrival."""
        if since < self.since or (since == self.since and first < self.first):
            self.since = since
            self.first = first


@final
class Waiting:
    """One request: the slot of its piece, -1 where it is none, and what is expected of its answer."""

    __slots__ = ("expected", "slot", "terminator")

    def __init__(self, terminator: Terminator, expected: Expected) -> None:
        self.terminator = terminator
        self.expected = expected
        self.slot: i64 = -1


def own_work(request: PendingRequest, depth_tokens: i64) -> i64:
    """Tokens that a request has to itself: its prompt behind the key."""
    return max(1, request.num_tokens - depth_tokens)


def own_length(request: PendingRequest) -> float:
    """Tokens of its prompt."""
    return float(max(1, request.num_tokens))


def edge_at_risk(node: Node, parent: Node, unit_tokens: i64) -> float:
    """A whole edge, cached or paid, divided among those that wait below it."""
    return float((node.depth - parent.depth) * unit_tokens) / float(node.count)


@final
class Frontier:
    """The pieces of one tree.

    Args:
        tree: the waiting requests, with the marks of a dual-walk.
        answers: what is expected of each.
        beta, gamma: exponents of count and length, see `peek.policy.default.policy`.

    Attributes:
        columns: the pieces.
        owners: by slot, the prefix or request that a piece is; None where a slot is free.
        live: how many pieces there are.
    """

    __slots__ = (
        "_answers",
        "_below",
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
        "_tree",
        "_waiting",
        "columns",
        "live",
        "owners",
        "unit",
    )

    def __init__(self, tree: PendingTree, answers: AnswerLengths, beta: float, gamma: float) -> None:
        self._tree = tree
        self._answers = answers
        self._beta: float = beta
        self._gamma: float = gamma
        self._bookmark = Bookmark()
        self._epoch: i64 = -1
        self._round: i64 = 0
        self._last_length: float = 1.0
        self._last_price: float = 1.0
        self.unit: i64 = 1
        self._clear()

    def _clear(self) -> None:
        self.columns = Columns()
        self.owners: list[Node | Terminator | None] = []
        self.live: i64 = 0
        self._below: list[Below | None] = []
        self._waiting: list[Waiting | None] = []
        self._free: list[int] = []
        self._groups: list[Node | None] = []
        self._free_groups: list[int] = []

    def is_of(self, tree: PendingTree, beta: float, gamma: float) -> bool:
        """Whether it was made with these arguments."""
        return tree is self._tree and beta == self._beta and gamma == self._gamma

    # -- what is known of nodes and requests -------------------------------------------------------

    def below(self, node: Node) -> Below:
        """What is known of a node of the tree.  O(1)."""
        known = self._below
        uid = node.uid
        while len(known) <= uid:
            known.append(None)
        below = known[uid]
        if below is not None:
            if below.node is node:
                return below
            self._forget(below)  # of a node that is gone
        below = Below(node)
        known[uid] = below
        return below

    def waiting(self, terminator: Terminator) -> Waiting:
        """What is known of a request of the tree.  O(1)."""
        known = self._waiting
        uid = terminator.uid
        while len(known) <= uid:
            known.append(None)
        waiting = known[uid]
        if waiting is not None:
            if waiting.terminator is terminator:
                return waiting
            self._leave_slot_of(waiting)
        waiting = Waiting(terminator, self._answers.expected(terminator.request.request_id))
        known[uid] = waiting
        return waiting

    def _forget(self, below: Below) -> None:
        self._leave_slot(below)
        self._leave_group(below)

    def _leave_slot(self, below: Below) -> None:
        if below.slot >= 0:
            self._release(below.slot)
            below.slot = -1

    def _leave_slot_of(self, waiting: Waiting) -> None:
        if waiting.slot >= 0:
            self._release(waiting.slot)
            waiting.slot = -1

    def _leave_group(self, below: Below) -> None:
        if below.group >= 0:
            self._groups[below.group] = None
            self._free_groups.append(below.group)
            below.group = -1

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

    # -- keeping up --------------------------------------------------------------------------------

    def follow(self, unit_tokens: i64) -> None:
        """Bring the pieces up to date with tree and marks.

        O(journal entries x depth + what is below the prefixes they lie in); O(n + nodes) the first time,
        after a walk that began anew, and where the journal has become too long.
        """
        tree = self._tree
        journal = tree.journal()
        self._round += 1
        start = self._bookmark.at
        left_from = self._bookmark.left_at
        if not self._bookmark.catch_up(journal) or self._epoch != tree.epoch or self.unit != unit_tokens:
            self._epoch = tree.epoch
            self.unit = unit_tokens
            self._clear()
            for _, root in tree.roots():
                self._enter(root)
            return
        for terminator in journal.left[left_from:]:
            self._left(terminator)
        for node in journal.nodes[start:]:
            self._settle(node)

    def _left(self, terminator: Terminator) -> None:
        """A request has left its place."""
        if terminator.uid < len(self._waiting):
            waiting = self._waiting[terminator.uid]
            if waiting is not None and waiting.terminator is terminator:
                self._leave_slot_of(waiting)
                self._waiting[terminator.uid] = None

    def _settle(self, node: Node) -> None:
        """Something has changed at or below a node."""
        if node.count == 0:
            if node.uid < len(self._below):
                below = self._below[node.uid]
                if below is not None and below.node is node:
                    self._forget(below)
                    self._below[node.uid] = None
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
            if self.below(current).group < 0:
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
            below = self.below(node)
            self._leave_slot(below)
            if self._free_groups:
                below.group = self._free_groups.pop()
                self._groups[below.group] = node
            else:
                below.group = len(self._groups)
                self._groups.append(node)
            self._add_own(node)
            kid = node.kid
            while kid is not None:
                if not self._is_cached(kid):
                    self._refresh(kid)
                elif self.below(kid).group < 0:
                    entering.append(kid)
                kid = kid.next

    # -- pieces ------------------------------------------------------------------------------------

    def _add_own(self, node: Node) -> None:
        """Pieces for the requests that end in a cached node; those that have one are behind the others."""
        group = self.below(node).group
        terminator = node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            if waiting.slot >= 0:
                return
            waiting.slot = self._take(terminator)
            self._put_own(waiting, group)
            terminator = terminator.next

    def _put_own(self, waiting: Waiting, group: i64) -> None:
        request, node, expected = waiting.terminator.request, waiting.terminator.node, waiting.expected
        length = own_length(request)
        work = float(own_work(request, node.depth * self.unit))
        weight = foretold = self.weight(1.0, length)
        if expected.ratio != 1.0:
            foretold = self.weight(1.0, length * expected.ratio)
        self.columns.put(
            waiting.slot,
            request.arrival_time,
            request.sequence,
            weight,
            1.0 / work,
            0.0,
            group,
            foretold,
            1.0 / (work + float(expected.excess)),
        )

    def renew(self, terminator: Terminator) -> None:
        """Make the piece of a request anew whose expected answer has changed; after `follow`."""
        waiting = self.waiting(terminator)
        node: Node | None = terminator.node
        if waiting.slot >= 0 and node is not None:
            self._put_own(waiting, self.below(node).group)
            return
        while node is not None and self.below(node).slot < 0:
            node = node.parent
        assert node is not None
        self._refresh(node)

    def _refresh(self, top: Node) -> None:
        """The piece of an uncached prefix, made anew.  O(nodes and requests below)."""
        piece = self.below(top)
        if piece.round == self._round:
            return
        piece.round = self._round
        if piece.slot < 0:
            piece.slot = self._take(top)
        self._sum_up(top)
        parent = top.parent
        assert parent is not None
        count = float(top.count)
        work = float(piece.work)
        cached = (top.depth - parent.depth - uncached_symbols(top, parent, self._epoch)) * self.unit
        weight = foretold = self.weight(count, piece.tokens / count)
        if piece.lasting != piece.tokens:
            foretold = self.weight(count, piece.lasting / count)
        self.columns.put(
            piece.slot,
            piece.since,
            piece.first,
            weight,
            count / max(1.0, work),
            float(cached) / count,
            self.below(parent).group,
            foretold,
            count / max(1.0, work + piece.excess),
        )

    def _sum_up(self, top: Node) -> None:
        """What waits at or below each node from a prefix down; none of them is a group, only it a piece."""
        found: list[Below] = []
        stop = next_branch(top)
        node: Node | None = top
        while node is not None and node is not stop:
            below = self.below(node)
            if node is not top:
                self._leave_slot(below)
            self._leave_group(below)
            self._sum_own(below)
            found.append(below)
            node = next_preorder(node)
        i: i64 = len(found) - 1
        while i > 0:
            parent = found[i].node.parent
            assert parent is not None
            self.below(parent).add(found[i])
            i -= 1

    def _sum_own(self, below: Below) -> None:
        """The node's own requests, which are no pieces, and the uncached part of its edge.  O(requests)."""
        node = below.node
        parent = node.parent
        assert parent is not None
        below.begin(uncached_symbols(node, parent, self._epoch) * self.unit)
        depth_tokens = node.depth * self.unit
        terminator = node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            self._leave_slot_of(waiting)
            below.add_own(terminator.request, waiting.expected, depth_tokens)
            terminator = terminator.next

    def above(self) -> list[float]:
        """By group: tokens at risk for one request that hangs from it.  O(groups)."""
        at_risk = [-1.0] * len(self._groups)
        for node in self._groups:
            path: list[Node] = []
            while node is not None and at_risk[self.below(node).group] < 0.0:
                path.append(node)
                node = node.parent
            risk = 0.0 if node is None else at_risk[self.below(node).group]
            while path:
                current = path.pop()
                parent = current.parent
                if parent is not None:
                    risk += edge_at_risk(current, parent, self.unit)
                at_risk[self.below(current).group] = risk
        return at_risk

    def weight(self, count: float, length: float) -> float:
        """`count` ** beta / `length` ** gamma."""
        if length != self._last_length:  # prompts of a kind are often of a length
            self._last_length = length
            self._last_price = math.pow(length, self._gamma)
        sharing = 1.0 if count == 1.0 else math.pow(count, self._beta)
        return sharing / self._last_price
