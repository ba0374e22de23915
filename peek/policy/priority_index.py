"""A priority index over the pending tree: one formula for age, sharing, cache and length.

Index policies order work by one number for each piece and serve the largest first: shortest processing time,
HRRN, and, where pieces need a common set-up, Horn's rule for precedence trees (Horn, "Single-machine job
sequencing with treelike precedence ordering", 1972): a set-up goes when the best of what it enables, set-up
paid, is the best of all.  Here the set-up is a prefix that is not cached, and a piece is what waits below it:

    index = age * count ** beta * (1 + at_risk / work) ** 3 / length ** gamma

    age      seconds that the oldest of them has waited
    count    how many they are
    work     tokens to compute for all of them, every uncached edge once
    at_risk  cached tokens that they would have to compute if these were evicted: each cached edge divided
             among all that wait below it, because what many wait for stays cached anyway
    length   mean prompt length in tokens

All factors but the age are ratios or powers of counts, so there is no threshold and no section.  Where
nothing is shared or cached the index is age / length ** gamma.  A request that waits overtakes in the end
whatever keeps coming, because only its age grows without bound.

Order: the best piece goes; if it is a prefix that is not cached, the best request below it pays for it and
the others compete anew with the prefix paid.  On engines that show a prefix only when its prefill ends,
siblings of a prefill under way, or of one earlier in the order, go last.
"""

from __future__ import annotations

import heapq
import math
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.deferral import siblings_last
from peek.request import PendingRequest
from peek.settings import require_one_of, require_within
from peek.trie.node import Node, next_preorder, uncached_symbols

UNSHARED: Final = ("index", "arrival")

_MIN_WAIT_S: Final = 1e-3
"""Requests that have just come wait this long, so that indices do not all become zero."""
_BETA: Final = 0.05
_GAMMA: Final = 0.3
"""The exponents at the end of the dial that favours the tail, ..."""
_MORE_BETA: Final = 0.15
_MORE_GAMMA: Final = 0.7
"""... and how much more they are at the other end."""


def check_mean_bias(mean_bias: object) -> None:
    """`InvalidConfig` unless it is a number from 0 to 1."""
    require_within("mean_bias", mean_bias, 0.0, 1.0)


def check_unshared(unshared: object) -> None:
    """`InvalidConfig` unless it is one of `UNSHARED`."""
    require_one_of("unshared", unshared, UNSHARED)


@final
class Piece:
    """What competes for the next place: a request whose path is cached or paid, or a prefix that is not.

    Attributes:
        key: the negated index; smallest first.
        rank: place of its oldest request in the order of arrival; breaks ties.
        node: the top of the prefix, or where the request ends.
        request: None for a prefix.
        at_risk: cached and paid tokens above the node, each edge divided among those that wait below it.
    """

    __slots__ = ("at_risk", "key", "node", "rank", "request")

    def __init__(self, node: Node, request: PendingRequest | None, at_risk: float) -> None:
        self.key: float = 0.0
        self.rank: i64 = 0
        self.node = node
        self.request: PendingRequest | None = request
        self.at_risk: float = at_risk


@final
class Run:
    """Pieces that came up together, best first, and how many of them have gone."""

    __slots__ = ("at", "pieces")

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.at: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class PriorityIndex(AdmissionPolicy):
    """Largest index first over the pieces of the pending tree, see the module.

    O(nodes + n + p log p) with p pieces, at most n + nodes.

    Args:
        mean_bias: from 0.0, short tail, to 1.0, short mean; see docs/policies.md for the front between.
        unshared: "index" orders a queue in which nothing is shared or cached, too; "arrival" leaves it alone.
    """

    def __init__(self, mean_bias: float = 0.0, unshared: str = "index") -> None:
        check_mean_bias(mean_bias)
        check_unshared(unshared)
        super().__init__(reads_tree=False, needs_sharing=unshared == "arrival")
        self.mean_bias: float = mean_bias
        self.beta: float = _BETA + mean_bias * _MORE_BETA
        self.gamma: float = _GAMMA + mean_bias * _MORE_GAMMA

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        for rank, request in enumerate(queue):
            request.rank = rank
        return siblings_last(Competition(queue, cycle, self.beta, self.gamma).ordered(), cycle)


def index(
    age_s: float, count: float, work: float, at_risk: float, length: float, beta: float, gamma: float
) -> float:
    """The index of one piece; see the module for units."""
    leverage = 1.0 + at_risk / work
    sharing = 1.0 if count == 1.0 else math.pow(count, beta)
    return max(_MIN_WAIT_S, age_s) * sharing * leverage * leverage * leverage / math.pow(length, gamma)


@final
class Competition:
    """One queue's pieces and who of them goes first.

    Args:
        queue: in arrival order, each with its place there as `rank`.
        cycle: its tree with the marks of this cycle's walk.
        beta, gamma: exponents of count and length.
    """

    __slots__ = ("_beta", "_epoch", "_gamma", "_now", "_queue", "_tree", "_unit")

    def __init__(self, queue: list[PendingRequest], cycle: Cycle, beta: float, gamma: float) -> None:
        self._queue = queue
        self._tree = cycle.tree
        self._epoch: i64 = cycle.tree.epoch
        self._now: float = cycle.now
        self._unit: i64 = cycle.unit_tokens
        self._beta: float = beta
        self._gamma: float = gamma

    def ordered(self) -> list[PendingRequest]:
        """All requests, best first; a prefix that goes leaves a run of what is below it.

        Those who follow a pioneer mostly go at once, so the run in hand is only left for a better one.
        """
        run = Run(_sorted(self._pieces()))
        others: list[tuple[float, int, Run]] = []  # a heap, by the first piece of each run
        ordered: list[PendingRequest] = []
        while True:
            if run.at == len(run.pieces):
                if not others:
                    return ordered
                run = heapq.heappop(others)[2]
            piece = run.pieces[run.at]
            if others and others[0][0] <= piece.key:
                run = heapq.heappushpop(others, (piece.key, piece.rank, run))[2]
                piece = run.pieces[run.at]
            run.at += 1
            while piece.request is None:
                if run.at < len(run.pieces):
                    following = run.pieces[run.at]
                    heapq.heappush(others, (following.key, following.rank, run))
                run = Run(_sorted(self._below(piece)))
                piece = run.pieces[0]
                run.at = 1
            ordered.append(piece.request)

    def _pieces(self) -> list[Piece]:
        """All pieces of the tree as the cache stands.  O(nodes + n)."""
        pieces: list[Piece] = []
        for _, root in self._tree.roots():
            sum_up(root, self._unit, self._epoch)
            open_nodes: list[Piece] = [Piece(root, None, 0.0)]
            while open_nodes:
                top = open_nodes.pop()
                node = top.node
                self._add_own(pieces, node, top.at_risk)
                kid = node.kid
                while kid is not None:
                    uncached = uncached_symbols(kid, node, self._epoch)
                    cached = (kid.depth - node.depth - uncached) * self._unit
                    at_risk = top.at_risk + float(cached) / float(kid.count)
                    if uncached == 0:
                        open_nodes.append(Piece(kid, None, at_risk))
                    else:
                        pieces.append(self._prefix(kid, at_risk, top.at_risk))
                    kid = kid.next
        return pieces

    def _below(self, piece: Piece) -> list[Piece]:
        """What competes below a prefix once it is paid.  O(children and requests of the node)."""
        node = piece.node
        parent = node.parent
        assert parent is not None
        paid = float((node.depth - parent.depth) * self._unit)
        at_risk = piece.at_risk + paid / float(node.count)
        below: list[Piece] = []
        self._add_own(below, node, at_risk)
        kid = node.kid
        while kid is not None:
            below.append(self._prefix(kid, at_risk, at_risk))
            kid = kid.next
        return below

    def _prefix(self, node: Node, at_risk: float, above: float) -> Piece:
        """The piece of an uncached prefix; `at_risk` counts the part of it that is cached, `above` not."""
        piece = Piece(node, None, above)
        piece.rank = node.acc_first
        count = float(node.count)
        age_s = self._now - self._queue[node.acc_first].arrival_time
        work = float(max(1, node.acc_work))
        length = node.acc_sum / count
        piece.key = -index(age_s, count, work, at_risk * count, length, self._beta, self._gamma)
        return piece

    def _add_own(self, pieces: list[Piece], node: Node, at_risk: float) -> None:
        """Append a piece for each request that ends in `node`."""
        terminator = node.terminator
        while terminator is not None:
            request = terminator.request
            piece = Piece(node, request, at_risk)
            piece.rank = request.rank
            work = float(max(1, request.num_tokens - node.depth * self._unit))
            age_s = self._now - request.arrival_time
            length = float(max(1, request.num_tokens))
            piece.key = -index(age_s, 1.0, work, at_risk, length, self._beta, self._gamma)
            pieces.append(piece)
            terminator = terminator.next


def sum_up(root: Node, unit_tokens: i64, epoch: i64) -> None:
    """Write into every node what waits below it: prompt tokens, work, oldest.  O(n + nodes)."""
    nodes: list[Node] = []
    node: Node | None = root
    while node is not None:
        nodes.append(node)
        node.acc_sum = 0.0
        node.acc_work = 0
        node.acc_first = 1 << 62
        node = next_preorder(node)
    i: i64 = len(nodes) - 1
    while i >= 0:
        _sum_up_node(nodes[i], unit_tokens, epoch)
        i -= 1


def _sum_up_node(node: Node, unit_tokens: i64, epoch: i64) -> None:
    """Add the node's own requests and edge, then hand the sums to its parent (children are done)."""
    terminator = node.terminator
    while terminator is not None:
        request = terminator.request
        node.acc_sum += float(max(1, request.num_tokens))
        node.acc_work += max(1, request.num_tokens - node.depth * unit_tokens)
        node.acc_first = min(node.acc_first, request.rank)
        terminator = terminator.next
    parent = node.parent
    if parent is not None:
        node.acc_work += uncached_symbols(node, parent, epoch) * unit_tokens
        parent.acc_sum += node.acc_sum
        parent.acc_work += node.acc_work
        parent.acc_first = min(parent.acc_first, node.acc_first)


def _sorted(pieces: list[Piece]) -> list[Piece]:
    """The same list, best first; ties by age."""
    n: i64 = len(pieces)
    if n > 1:
        pieces.sort(key=_key)  # floats compare much faster than tuples, and ties are rare
        i: i64 = 1
        while i < n:
            if pieces[i].key == pieces[i - 1].key:
                pieces.sort(key=_key_then_rank)
                break
            i += 1
    return pieces


def _key(piece: Piece) -> float:
    return piece.key


def _key_then_rank(piece: Piece) -> tuple[float, int]:
    return (piece.key, piece.rank)
