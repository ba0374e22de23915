"""The order of a frontier: requests one after another, best first, as far as they are asked for.

The best piece of the frontier goes first.  If it is a prefix that is not cached, the best request below it
pays for the prefix.  The other requests below then compete anew with the prefix paid.
"""

from __future__ import annotations

import heapq
from typing import Final, final

from mypy_extensions import i64

from peek.policy.base import RequestStream
from peek.policy.default.frontier import (
    MIN_WAIT_S,
    Frontier,
    cohort,
    edge_at_risk,
    lightness_of,
    sharing_of,
    size,
    urgency,
    vector,
)
from peek.request import PendingRequest
from peek.trie.node import Node

_FIRST_LOOK: Final[i64] = 64
"""Number of pieces that are sorted at first; once they have gone, all the others are sorted."""

_SHORT: Final[i64] = 24
"""Number of pieces up to which an insertion sort with native comparisons beats a sort by boxed keys."""


@final
class Piece:
    """What competes for the next place: a request whose path is cached or paid, or a prefix that is not.

    Attributes:
        key: the negated index, so that the smallest key goes first.
        since, first: arrival in seconds and sequence number of the piece's oldest request.
        node: the top node of the prefix, or the node where the request ends.
        request: the request; None for a prefix of several requests.
    """

    __slots__ = ("first", "key", "node", "request", "since")

    def __init__(
        self, key: float, since: float, first: i64, node: Node, request: PendingRequest | None
    ) -> None:
        self.key = key
        self.since = since
        self.first = first
        self.node = node
        self.request: PendingRequest | None = request


@final
class Run:
    """Pieces that came up together, best first, and how many of them have gone.

    Args:
        at_risk: tokens at risk above the pieces, for one request.
        oldest_s: how long the oldest request of the pieces' namespace has waited, in seconds.

    Both are 0 for the frontier's own run, whose pieces each have values of their own.
    """

    __slots__ = ("at", "at_risk", "oldest_s", "pieces")

    def __init__(self, pieces: list[Piece], at_risk: float, oldest_s: float) -> None:
        self.pieces = pieces
        self.at_risk: float = at_risk
        self.oldest_s: float = oldest_s
        self.at: i64 = 0


@final
class BestFirst(RequestStream):
    """The order of an up-to-date frontier; valid as long as tree and cache do not change.

    Args:
        frontier: the pieces.
        now: seconds, on the clock of `arrival_time`.
        power: exponent of all factors but the age, see `peek.policy.default.policy`.
        most: number of requests that will be asked for, as far as is known.
    """

    __slots__ = ("_above", "_frontier", "_indices", "_now", "_others", "_power", "_run", "_surface", "_tops")

    def __init__(self, frontier: Frontier, now: float, power: i64, most: int) -> None:
        self._frontier = frontier
        self._now: float = now
        self._power: i64 = power
        self._above = frontier.above()
        self._tops = frontier.tops()
        self._indices: object = frontier.columns.indices(now, vector(self._above), self._tops, power)
        self._surface = Run([], 0.0, 0.0)
        self._look(max(_FIRST_LOOK, most))
        self._run = self._surface
        self._others: list[tuple[float, float, int, Run]] = []  # a heap by each run's next piece

    def _look(self, most: i64) -> None:
        """Sort the frontier's best `most` pieces, and append those that the run does not have yet."""
        run = self._surface
        frontier = self._frontier
        slots, keys = frontier.columns.best(self._indices, most, frontier.live)
        i: i64 = len(run.pieces)
        while i < len(slots):
            run.pieces.append(self._piece(slots[i], keys[i]))
            i += 1

    def _piece(self, slot: i64, key: float) -> Piece:
        owner = self._frontier.owners[slot]
        if isinstance(owner, Node):
            below = self._frontier.below(owner)
            return Piece(key, below.since, below.first, owner, only_request(owner))
        assert owner is not None
        request = owner.request
        return Piece(key, self._frontier.waiting(owner).since, request.sequence, owner.node, request)

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.

        O(log) amortised, plus what is below a prefix when that prefix goes.
        """
        run = self._run
        while not self._has_more(run):
            if not self._others:
                return None
            run = heapq.heappop(self._others)[3]
        piece = run.pieces[run.at]
        if self._others and self._others[0][0] <= piece.key:
            run = heapq.heappushpop(self._others, entry(run))[3]
            piece = run.pieces[run.at]
        run.at += 1
        while piece.request is None:
            if self._has_more(run):
                heapq.heappush(self._others, entry(run))
            run = self._below(piece.node, run)
            piece = run.pieces[0]
            run.at = 1
        self._run = run
        return piece.request

    def _has_more(self, run: Run) -> bool:
        if run.at == len(run.pieces) and run is self._surface and run.at < self._frontier.live:
            self._look(self._frontier.live)
        return run.at < len(run.pieces)

    def _below(self, node: Node, run: Run) -> Run:
        """Make the pieces below a prefix of `run` once the prefix is paid.

        O(m log m) with m children and requests of its node.
        """
        parent = node.parent
        assert parent is not None
        frontier = self._frontier
        at_risk, oldest_s = run.at_risk, run.oldest_s
        if run is self._surface:
            group = frontier.below(parent).group
            at_risk = self._above[group]
            oldest_s = float(frontier.columns.oldest_s[self._tops[group] if self._tops else 0])
        at_risk += edge_at_risk(node, parent, frontier.unit)
        below: list[Piece] = []
        terminator = node.terminator
        while terminator is not None:
            request = terminator.request
            waiting = frontier.waiting(terminator)
            since = waiting.since
            key = self._key(since, at_risk / float(waiting.work), waiting.lightness)
            below.append(Piece(key, since, request.sequence, node, request))
            terminator = terminator.next
        kid = node.kid
        while kid is not None:
            below.append(self._piece_of(kid, at_risk * float(kid.count), oldest_s))
            kid = kid.next
        put_in_order(below)
        return Run(below, at_risk, oldest_s)

    def _piece_of(self, kid: Node, at_risk: float, oldest_s: float) -> Piece:
        """Make the piece of a prefix; `at_risk` is for all requests below it, see `cohort` for `oldest_s`."""
        frontier = self._frontier
        below = frontier.below(kid)
        count = float(kid.count)
        work = float(below.work)
        parent = kid.parent
        assert parent is not None
        if below.lightness < 0.0:
            mean_length = below.tokens / count
            mean_size = size(mean_length, float(parent.depth * frontier.unit), work / count)
            below.lightness = lightness_of(mean_size * below.lasting / below.tokens)
            below.sharing = sharing_of(mean_length, mean_size, work / count)
        sharing = below.sharing
        if sharing > 1.0:
            age_s = max(MIN_WAIT_S, self._now - below.since)
            sharing = cohort(sharing, age_s, oldest_s)
        lightness = below.lightness * sharing
        key = self._key(below.since, at_risk / max(1.0, work), lightness)
        return Piece(key, below.since, below.first, kid, only_request(kid))

    def _key(self, since: float, risk: float, lightness: float) -> float:
        return -(max(MIN_WAIT_S, self._now - since) * urgency(risk, lightness, self._power))


def entry(run: Run) -> tuple[float, float, int, Run]:
    """A heap entry that sorts runs by their next pieces, ties by age."""
    piece = run.pieces[run.at]
    return (*_key_then_age(piece), run)


def only_request(node: Node) -> PendingRequest | None:
    """The request of a prefix that belongs to one request alone and goes with it; else None.  O(1)."""
    terminator = node.terminator
    return terminator.request if node.count == 1 and terminator is not None else None


def put_in_order(pieces: list[Piece]) -> None:
    """Sort pieces in place, best first, ties by age."""
    n: i64 = len(pieces)
    i: i64 = 1
    if n > _SHORT:
        pieces.sort(key=_key)  # floats compare much faster than tuples, and ties are rare
        while i < n and pieces[i].key != pieces[i - 1].key:
            i += 1
        if i < n:
            pieces.sort(key=_key_then_age)
        return
    while i < n:
        piece = pieces[i]
        at = i
        while at > 0 and goes_before(piece, pieces[at - 1]):
            pieces[at] = pieces[at - 1]
            at -= 1
        pieces[at] = piece
        i += 1


def goes_before(one: Piece, other: Piece) -> bool:
    if one.key != other.key:
        return one.key < other.key
    return _key_then_age(one) < _key_then_age(other)


def _key(piece: Piece) -> float:
    return piece.key


def _key_then_age(piece: Piece) -> tuple[float, float, int]:
    return (piece.key, piece.since, piece.first)
