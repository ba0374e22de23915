"""The frontier of a pending tree: the pieces that compete for the next place, and the order that they give.

A piece is a request whose whole path is cached, or a prefix that is not cached.  Such a prefix is the highest
uncached node on a path, with all requests that wait below it.  Cached nodes are *groups*.  A piece hangs from
a group, which keeps the tokens at risk above the piece.

Most numbers behind a piece's index change only when a request below arrives or leaves, or when the cache
gains or loses a part of its path.  The tree's journal lists each of these changes.  Only the age and the
tokens at risk above change all the time.  So each piece keeps its numbers, and an order computes all indices
in one native loop.

`Below` holds what the frontier knows of a node, `Waiting` what it knows of a request, each in a list by
`uid`.  The tree reuses uids, so each entry names its node or request; an entry that names another is stale.

`BestFirst` gives the order as far as it is asked for, by the rule of `peek.policy.default.policy`.
"""

from __future__ import annotations

import heapq
import math
from typing import Final, final

from mypy_extensions import i64

from peek.policy.base import RequestStream
from peek.policy.default.expectations import NOTHING, Expectations, Expected
from peek.request import PendingRequest
from peek.trie.node import Node, Terminator
from peek.trie.pending_tree import Bookmark, PendingTree

MIN_WAIT_S: Final = 1e-3
"""Least age of a request in seconds, so that the indices of new requests are not all zero."""

_FAR_S: Final = 1e100
"""Bound of all times, up and down, in seconds: beyond any clock, yet powers of ages do not overflow."""

MOST_LEVERAGE: Final = 5.0
"""Upper bound of the leverage, reached with four fifths of a prompt cached and at risk.  The comparison of
two pieces in `peek.policy.default.policy` rests on it."""

MOST_SHARERS: Final = 2.0
"""Sharing divides a request's work by this at most; only in a burst by more, see `index`.  Without a bound
the largest cold template always goes first, and requests of small ones wait too long (`bench.ablation`)."""

GAMMA: Final = 0.4
"""Exponent of size within the power.  A size 56 times (5 ** 2.5) as small weighs as much as the best hit."""

PATIENCE: Final = 8
"""Exponent that bends the age, see `index`.  With 1 it is a straight line, and a large request waits many
times as long as a small one.  `python -m bench.ablation` tries 4 and 16."""

_LATE: Final = 1 << 62
"""A number above all sequence numbers."""


@final
class Ages:
    """Ages in seconds of a namespace's pieces; the oldest and the mean are `MIN_WAIT_S` at least."""

    def __init__(self) -> None:
        self.oldest_s: float = MIN_WAIT_S
        self.mean_s: float = MIN_WAIT_S
        self._sum_s: float = 0.0
        self._count: i64 = 0

    def note(self, age_s: float) -> None:
        """Count one more piece.  O(1)."""
        self._count += 1
        self._sum_s += age_s
        self.oldest_s = max(self.oldest_s, age_s)
        self.mean_s = max(MIN_WAIT_S, self._sum_s / float(self._count))


NO_AGES: Final = Ages()


class Contender:
    """A node or a request, and the numbers of its index while it is a piece.

    Attributes:
        start: the frontier's generation for which `place` and `hangs_from` hold.
        place: its place in the frontier's list of pieces; -1 while it is no piece.
        hangs_from: the group above it; None while it is no piece.
        since, first: arrival in seconds and sequence number of its oldest request.
        lightness: size ** -0.4; -1 until it is computed.
        per_work: requests / tokens of work.
        at_risk: tokens at risk on the piece's own edge, for one of its requests.
        sharing: factor on the lightness if all sharers count, see `index`.
        key: the negated index as of the last `Frontier.look`, so that the smallest key goes first.
    """

    def __init__(self, start: i64, since: float, first: i64) -> None:
        self.start: i64 = start
        self.place: i64 = -1
        self.hangs_from: Below | None = None
        self.since: float = since
        self.first: i64 = first
        self.lightness: float = -1.0
        self.per_work: float = 1.0
        self.at_risk: float = 0.0
        self.sharing: float = 1.0
        self.key: float = 0.0

    def is_renewed(self, start: i64) -> bool:
        """Move it to the generation `start`, as no piece; False if it is of that one already.  O(1)."""
        if self.start == start:
            return False
        self.start = start
        self.place = -1
        self.hangs_from = None
        return True


@final
class Below(Contender):
    """What the frontier knows of a node: its group or piece, and sums over the requests at or below it.

    Attributes:
        node: the node.
        group: its place in the frontier's list of groups; -1 while it is no group.
        above: if it is a group: tokens at risk above its pieces, for one request.
        ages: if it is a group: the ages of the pieces in its namespace.
        seen: number of the call of `Frontier.look` that last wrote `above` and `ages`.
        round: number of the call of `Frontier.follow` that last computed the node's piece.
        tokens: sum of prompt lengths; `lasting`: with each times its `Expected.ratio`; both in tokens.
        work: tokens to compute, every uncached edge once; a float, as sums of huge prompts exceed 64 bits.
    """

    def __init__(self, node: Node, start: i64) -> None:
        super().__init__(start, math.inf, _LATE)
        self.node = node
        self.group: i64 = -1
        self.above: float = 0.0
        self.ages: Ages = NO_AGES
        self.seen: i64 = 0
        self.round: i64 = 0
        self.tokens: float = 0.0
        self.lasting: float = 0.0
        self.work: float = 0.0

    def weigh(self, cached: float) -> None:
        """Compute `lightness` and `sharing`; `cached` tokens of each prompt are cached or paid for.  O(1)."""
        count = float(self.node.count)
        length = self.tokens / count
        work = self.work / count
        mean_size = size(length, cached, work)
        self.lightness = math.pow(mean_size * self.lasting / self.tokens, -GAMMA)
        self.sharing = sharing_of(length, mean_size, work) if count > 1.0 else 1.0


@final
class Waiting(Contender):
    """What the frontier knows of a request, and what is expected of it.

    `length` is its prompt in tokens, `work` the tokens of it after its key of `depth` symbols.  `lightness`
    is that of the request alone, once the key is cached or paid.
    """

    def __init__(self, terminator: Terminator, expected: Expected, since: float, start: i64) -> None:
        super().__init__(start, since, terminator.request.sequence)
        self.terminator = terminator
        self.expected = expected
        self.depth: i64 = -1
        self.length: float = 1.0
        self.work: float = 1.0

    def lightened(self) -> float:
        """Return `lightness`, computed if need be.  O(1)."""
        if self.lightness < 0.0:
            own_size = size(self.length, self.length - self.work, self.work) * self.expected.ratio
            self.lightness = math.pow(own_size, -GAMMA)
        return self.lightness


def bounded(time_s: float) -> float:
    """A time in seconds, within `_FAR_S` of 0."""
    return max(-_FAR_S, min(_FAR_S, time_s))


def index(risk: float, lightness: float, sharing: float, age_s: float, ages: Ages, power: i64) -> float:
    """The index of a piece: its bent age times the power of its leverage and lightness.  O(log power).

    Sharing beyond `MOST_SHARERS` makes a piece lighter, too.  A piece as old as the oldest of its namespace,
    as in a burst, gets the whole factor `sharing`; the younger it is, the less it gets.

    Args:
        risk: tokens at risk over tokens of work.
        lightness, sharing: as in `Contender`.
        age_s: its age in seconds; a smaller one counts as `MIN_WAIT_S`.
        ages: those of the pieces of its namespace.
        power: a whole exponent.
    """
    age_s = max(MIN_WAIT_S, age_s)
    if sharing > 1.0:
        lightness *= max(1.0, sharing * (age_s / ages.oldest_s))
    aged = ages.mean_s * _raised(1.0 + age_s / (float(PATIENCE) * ages.mean_s), PATIENCE)
    return aged * _raised(min(1.0 + risk, MOST_LEVERAGE) * lightness, power)


def _raised(base: float, power: i64) -> float:
    """Compute `base ** power`.  O(log power)."""
    raised = 1.0
    while power > 0:
        if power & 1:
            raised *= base
        base *= base
        power >>= 1
    return raised


def size(length: float, cached: float, work: float) -> float:
    """The size of a request in tokens: the geometric mean of its prompt and of what it has to compute.

    A request holds memory for its whole prompt, and takes time and new memory for what it has to compute.

    Args:
        length: tokens of the prompt.
        cached: tokens of it that are cached, or paid for by another request.
        work: tokens to compute for one request, where shared ones are divided among the sharers.  It counts
            as no less than what a request alone has to compute divided by `MOST_SHARERS`.
    """
    return math.sqrt(length * max(max(1.0, work), (length - cached) / MOST_SHARERS))  # max of two is native


def sharing_of(length: float, bounded: float, work: float) -> float:
    """Factor on a piece's lightness if all its sharers count; `bounded` is its size in tokens.  O(1)."""
    whole = math.sqrt(length * max(1.0, work))
    return 1.0 if whole >= bounded else math.pow(bounded / whole, GAMMA)


def uncached_symbols(node: Node, parent: Node, epoch: i64) -> i64:
    """Symbols of the edge from `parent` to `node` that the cache did not hold in dual-walk `epoch`.  O(1).

    If that walk left the branch above the edge, its marks are old and the cache holds nothing of it.
    """
    known = node.walk_matched if node.walk_epoch == epoch else parent.depth
    return node.depth - max(known, parent.depth)


def edge_at_risk(node: Node, parent: Node, unit_tokens: i64) -> float:
    """Tokens at risk on a whole edge, cached or paid, for one of the requests below: they share it evenly."""
    return float((node.depth - parent.depth) * unit_tokens) / float(node.count)


@final
class Frontier:
    """The pieces of one tree.

    Attributes:
        pieces, groups: the pieces, and the cached nodes, in no order.
        known: what is known of each node, by `uid`; see `below`.
    """

    def __init__(self, tree: PendingTree, expectations: Expectations) -> None:
        self.tree = tree
        self._expectations = expectations
        self._bookmark = Bookmark()
        self._epoch: i64 = -1
        self._round: i64 = 0
        self._start: i64 = 0
        self._looks: i64 = 0
        self.known: list[Below | None] = []
        self._waiting: list[Waiting | None] = []
        self.unit: i64 = 1

    # -- knowledge of nodes and requests -----------------------------------------------------------

    def below(self, node: Node) -> Below:
        """Return what is known of a node of the tree.  O(1)."""
        known = self.known
        uid = node.uid
        while len(known) <= uid:
            known.append(None)
        below = known[uid]
        if below is not None:
            if below.is_renewed(self._start):
                below.group = -1
            if below.node is node:
                return below
            self._forget(below)  # its node is gone
        below = Below(node, self._start)
        known[uid] = below
        return below

    def waiting(self, terminator: Terminator) -> Waiting:
        """Return what is known of a request of the tree.  O(1)."""
        known = self._waiting
        uid = terminator.uid
        depth = terminator.node.depth
        while len(known) <= uid:
            known.append(None)
        waiting = known[uid]
        if waiting is not None:
            if waiting.is_renewed(self._start):
                waiting.depth = -1
            if waiting.terminator is not terminator:
                if waiting.place >= 0:
                    self._release(waiting)
                waiting = None
        request = terminator.request
        if waiting is None:
            expected = self._expectations.waiting.get(request.request_id, NOTHING)
            waiting = Waiting(terminator, expected, bounded(request.arrival_time), self._start)
            known[uid] = waiting
        if waiting.depth != depth:  # it is new, of another generation, or its key was extended
            waiting.depth = depth
            waiting.length = float(max(1, request.num_tokens))
            waiting.work = float(max(1, request.num_tokens - depth * self.unit))
            waiting.lightness = -1.0
        return waiting

    def _forget(self, below: Below) -> None:
        """Make a node neither piece nor group."""
        if below.place >= 0:
            self._release(below)
        if below.group >= 0:
            self._leave_group(below)

    def _leave_group(self, below: Below) -> None:
        last = self.groups.pop()
        if last is not below:
            last.group = below.group
            self.groups[last.group] = last
        below.group = -1

    def _release(self, piece: Contender) -> None:
        last = self.pieces.pop()
        if last is not piece:
            last.place = piece.place
            self.pieces[last.place] = last
        piece.place = -1
        piece.hangs_from = None

    def _take(self, piece: Contender, group: Below) -> None:
        """Make a node or request a piece that hangs from `group`.  O(1)."""
        piece.hangs_from = group
        if piece.place < 0:
            piece.place = len(self.pieces)
            self.pieces.append(piece)

    # -- following the tree ------------------------------------------------------------------------

    def follow(self, unit_tokens: i64) -> None:
        """Bring the pieces up to date with the tree and its marks.

        O(journal entries x depth + nodes and requests below the changed prefixes).  O(n + nodes) the first
        time, after a dual-walk that began anew, and if the journal has become too long.
        """
        tree = self.tree
        journal = tree.journal()
        self._round += 1
        start = self._bookmark.at
        left_from = self._bookmark.left_at
        if not self._bookmark.catch_up(journal) or self._epoch != tree.epoch or self.unit != unit_tokens:
            self._epoch = tree.epoch
            self.unit = unit_tokens
            self._start += 1
            self.pieces: list[Contender] = []
            self.groups: list[Below] = []
            for _, root in tree.roots():
                self._enter(root)
            return
        for uid in journal.left[left_from:]:
            self._left(uid)
        for node in journal.nodes[start:]:
            self._settle(node)

    def _left(self, uid: i64) -> None:
        """Remove the piece of a request that has left its place in the tree.

        If the entry of this `uid` is of a newer request, the journal also lists that request's node.
        """
        waiting = self._waiting[uid] if uid < len(self._waiting) else None
        if waiting is not None:
            if waiting.start == self._start and waiting.place >= 0:
                self._release(waiting)
            self._waiting[uid] = None

    def _settle(self, node: Node) -> None:
        """Update groups and pieces after a change at or below a node."""
        if node.count == 0:
            if node.uid < len(self.known):
                below = self.known[node.uid]
                if below is not None and below.node is node:
                    if below.start == self._start:
                        self._forget(below)
                    self.known[node.uid] = None
            return
        path: list[Node] = [node]
        parent = node.parent
        while parent is not None:
            path.append(parent)
            parent = parent.parent
        group: Below | None = None
        while path:
            current = path.pop()
            if group is not None and uncached_symbols(current, group.node, self._epoch) > 0:
                self._refresh(current, group)
                return
            below = self.below(current)
            if below.group < 0:
                self._enter(current)
            elif current is node:
                self._add_own(below)
            group = below

    def _enter(self, top: Node) -> None:
        """Make groups of a cached node and of the cached nodes below; uncached nodes become pieces."""
        entering: list[Below] = [self.below(top)]
        while entering:
            below = entering.pop()
            if below.place >= 0:
                self._release(below)
            below.group = len(self.groups)
            self.groups.append(below)
            if below.node.terminator is not None:
                self._add_own(below)
            kid = below.node.kid
            while kid is not None:
                if uncached_symbols(kid, below.node, self._epoch) > 0:
                    self._refresh(kid, below)
                else:
                    known = self.below(kid)
                    if known.group < 0:
                        entering.append(known)
                kid = kid.next

    # -- pieces ------------------------------------------------------------------------------------

    def _add_own(self, below: Below) -> None:
        """Make pieces of the requests that end in a cached node.

        The newest requests come first, so the search ends at the first that is a piece already.
        """
        terminator = below.node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            if waiting.place >= 0:
                return
            waiting.lightened()
            waiting.per_work = 1.0 / waiting.work
            self._take(waiting, below)
            terminator = terminator.next

    def renew(self, terminator: Terminator) -> None:
        """Update the piece of a request whose expectation has changed; called after `follow`."""
        waiting = self.waiting(terminator)
        waiting.lightness = -1.0
        node: Node | None = terminator.node
        if waiting.place >= 0:
            waiting.lightened()
            return
        while node is not None and self.below(node).place < 0:
            node = node.parent
        assert node is not None and node.parent is not None
        self._refresh(node, self.below(node.parent))

    def _refresh(self, top: Node, group: Below) -> None:
        """Compute the piece of an uncached prefix below a group anew.  O(nodes and requests below)."""
        piece = self.below(top)
        if piece.round == self._round:
            return
        piece.round = self._round
        if top.kid is None and piece.group < 0:
            self._sum_own(piece)
        else:
            self._sum_up(piece)
        count = float(top.count)
        cached = top.depth - uncached_symbols(top, group.node, self._epoch)
        piece.weigh(float(cached * self.unit))
        piece.per_work = count / max(1.0, piece.work)
        piece.at_risk = float((cached - group.node.depth) * self.unit) / count
        self._take(piece, group)

    def _sum_up(self, piece: Below) -> None:
        """Compute the sums of each node from a prefix down; only the prefix itself is a piece.

        O(nodes and requests below).
        """
        found: list[Below] = [piece]
        above: list[Below] = [piece]
        i: i64 = 0
        while i < len(found):
            below = found[i]
            if i > 0 and below.place >= 0:
                self._release(below)
            if below.group >= 0:
                self._leave_group(below)
            self._sum_own(below)
            kid = below.node.kid
            while kid is not None:
                found.append(self.below(kid))
                above.append(below)
                kid = kid.next
            i += 1
        while i > 1:
            i -= 1
            below = above[i]
            child = found[i]
            below.tokens += child.tokens
            below.lasting += child.lasting
            below.work += child.work
            if child.since < below.since or (child.since == below.since and child.first < below.first):
                below.since = child.since
                below.first = child.first

    def _sum_own(self, below: Below) -> None:
        """Start a node's sums with its own requests and the uncached part of its edge.  O(requests).

        These requests are no longer pieces themselves.
        """
        node = below.node
        parent = node.parent
        assert parent is not None
        work = float(uncached_symbols(node, parent, self._epoch) * self.unit)
        tokens = lasting = 0.0
        since = math.inf
        first: i64 = _LATE
        terminator = node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            if waiting.place >= 0:
                self._release(waiting)
            sequence = terminator.request.sequence
            tokens += waiting.length
            lasting += waiting.length * waiting.expected.ratio
            work += waiting.work
            if waiting.since < since or (waiting.since == since and sequence < first):
                since = waiting.since
                first = sequence
            terminator = terminator.next
        below.tokens = tokens
        below.lasting = lasting
        below.work = work
        below.since = since
        below.first = first
        below.lightness = -1.0

    # -- indices -----------------------------------------------------------------------------------

    def look(self, now: float, power: i64, several: bool) -> None:
        """Compute the index of each piece.  O(groups + pieces).

        Args:
            now: seconds, on the clock of the arrivals.
            power: exponent of all factors but the age.
            several: whether requests of more than one namespace wait.
        """
        self._look_above(several)
        pieces = self.pieces
        for piece in pieces:
            assert piece.hangs_from is not None
            piece.hangs_from.ages.note(max(MIN_WAIT_S, now - piece.since))
        for piece in pieces:
            group = piece.hangs_from
            assert group is not None
            risk = (group.above + piece.at_risk) * piece.per_work
            piece.key = -index(risk, piece.lightness, piece.sharing, now - piece.since, group.ages, power)

    def best(self, most: i64) -> list[Contender]:
        """Return the best `most` pieces as of the last `look`, best first, ties by age.

        O(pieces + m log m) for m = `most`, if older pieces tend to be better.
        """
        found: list[Contender] = []
        for piece in self.pieces:
            if len(found) == most:
                if not goes_before(piece, found[most - 1]):
                    continue
                found.pop()
            low: i64 = 0
            high: i64 = len(found)
            while low < high:
                middle = (low + high) >> 1
                if goes_before(piece, found[middle]):
                    high = middle
                else:
                    low = middle + 1
            found.insert(low, piece)
        return found

    def _look_above(self, several: bool) -> None:
        """Write `above` and empty `ages` of each group; the groups of one namespace have theirs in common."""
        known = self.known
        self._looks += 1
        common = Ages()
        path: list[Below] = []
        for group in self.groups:
            below: Below | None = group
            while below is not None and below.seen != self._looks:
                path.append(below)
                parent = below.node.parent
                below = None if parent is None else known[parent.uid]
            while path:
                lower = path.pop()
                lower.seen = self._looks
                if below is None:
                    lower.above, lower.ages = 0.0, Ages() if several else common
                else:
                    lower.above = below.above + edge_at_risk(lower.node, below.node, self.unit)
                    lower.ages = below.ages
                below = lower


def goes_before(one: Contender, other: Contender) -> bool:
    """Whether a piece goes before another one: by key, ties by age."""
    if one.key != other.key:
        return one.key < other.key
    return one.since < other.since or (one.since == other.since and one.first < other.first)


# -- the order --------------------------------------------------------------------------------------------


_FIRST_LOOK: Final[i64] = 64
"""Number of pieces that are sorted at first; once they have gone, all pieces are sorted."""

_SHORT: Final[i64] = 24
"""Up to this number of pieces an insertion sort with native comparisons beats a sort by boxed keys."""


@final
class Piece:
    """A request whose path is cached or paid, or a prefix that is not; it competes for the next place.

    Attributes:
        key: the negated index, so that the smallest key goes first.
        since, first: arrival in seconds and sequence number of the piece's oldest request.
        node: the top node of the prefix, or the node where the request ends.
        request: the request, also that of a prefix with only one; None for a prefix of several requests.
    """

    def __init__(
        self, key: float, since: float, first: i64, node: Node, request: PendingRequest | None
    ) -> None:
        self.key = key
        self.since = since
        self.first = first
        self.node = node
        if request is None and node.count == 1 and node.terminator is not None:
            request = node.terminator.request
        self.request: PendingRequest | None = request


@final
class Run:
    """Pieces that became available together, best first, and how many of them have gone.

    Args:
        at_risk: tokens at risk above the pieces, for one request.
        ages: those of the pieces' namespace.

    Neither is used in the run of the frontier's own pieces, which have different values.
    """

    def __init__(self, pieces: list[Piece], at_risk: float, ages: Ages) -> None:
        self.pieces = pieces
        self.at_risk: float = at_risk
        self.ages = ages
        self.at: i64 = 0


@final
class BestFirst(RequestStream):
    """The order of an up-to-date frontier; valid as long as tree and cache do not change.

    Args:
        most: number of requests that will at least be asked for.
        several: whether requests of more than one namespace wait.
    """

    def __init__(self, frontier: Frontier, now: float, power: i64, most: int, several: bool) -> None:
        self._frontier = frontier
        self._now: float = bounded(now)
        self._power: i64 = power
        self._several = several
        self._surface = Run([], 0.0, NO_AGES)
        self._look(max(_FIRST_LOOK, most))
        self._run = self._surface
        self._others: list[tuple[float, float, int, Run]] = []  # a heap by each run's next piece

    def _look(self, most: i64) -> None:
        """Fill the first run with the best `most` pieces; a longer run begins with the same pieces."""
        frontier = self._frontier
        frontier.look(self._now, self._power, self._several)
        if most < len(frontier.pieces):
            self._surface.pieces = [surfaced(each) for each in frontier.best(most)]
        else:
            self._surface.pieces = [surfaced(each) for each in frontier.pieces]
            put_in_order(self._surface.pieces)

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.

        O(log) amortised, plus the children and requests of a prefix when that prefix goes.
        """
        run = self._run
        while run.at == len(run.pieces) and (run is not self._surface or not self._looks_on()):
            if not self._others:
                return None
            run = heapq.heappop(self._others)[3]
        piece = run.pieces[run.at]
        if self._others and self._others[0][0] <= piece.key:
            run = heapq.heappushpop(self._others, entry(run))[3]
            piece = run.pieces[run.at]
        run.at += 1
        while piece.request is None:
            if run.at < len(run.pieces) or (run is self._surface and self._looks_on()):
                heapq.heappush(self._others, entry(run))
            run = self._below(piece.node, run)
            piece = run.pieces[0]
            run.at = 1
        self._run = run
        return piece.request

    def _looks_on(self) -> bool:
        """Sort all pieces once the first ones have gone; return whether there were any more."""
        run = self._surface
        if run.at < len(self._frontier.pieces):
            self._look(len(self._frontier.pieces))
        return run.at < len(run.pieces)

    def _below(self, node: Node, run: Run) -> Run:
        """Make the pieces below a prefix of `run` that has been paid.

        O(m log m) with m children and requests of its node.
        """
        parent = node.parent
        assert parent is not None
        frontier = self._frontier
        at_risk, ages = run.at_risk, run.ages
        if run is self._surface:
            group = frontier.known[parent.uid]
            assert group is not None
            at_risk, ages = group.above, group.ages
        at_risk += edge_at_risk(node, parent, frontier.unit)
        below: list[Piece] = []
        terminator = node.terminator
        while terminator is not None:
            waiting = frontier.waiting(terminator)
            risk, age_s = at_risk / waiting.work, self._now - waiting.since
            key = -index(risk, waiting.lightened(), 1.0, age_s, ages, self._power)
            below.append(Piece(key, waiting.since, waiting.first, node, terminator.request))
            terminator = terminator.next
        kid = node.kid
        while kid is not None:
            below.append(self._piece_of(kid, at_risk * float(kid.count), ages))
            kid = kid.next
        put_in_order(below)
        return Run(below, at_risk, ages)

    def _piece_of(self, kid: Node, at_risk: float, ages: Ages) -> Piece:
        """Make the piece of a prefix; `at_risk` is the sum for all requests below it."""
        frontier = self._frontier
        below = frontier.known[kid.uid]
        parent = kid.parent
        assert below is not None and parent is not None
        if below.lightness < 0.0:
            below.weigh(float(parent.depth * frontier.unit))
        risk, age_s = at_risk / max(1.0, below.work), self._now - below.since
        key = -index(risk, below.lightness, below.sharing, age_s, ages, self._power)
        return Piece(key, below.since, below.first, kid, None)


def surfaced(found: Contender) -> Piece:
    """Make the `Piece` of a node or a request that is on the frontier."""
    if isinstance(found, Below):
        return Piece(found.key, found.since, found.first, found.node, None)
    assert isinstance(found, Waiting)
    own = found.terminator
    return Piece(found.key, found.since, found.first, own.node, own.request)


def entry(run: Run) -> tuple[float, float, int, Run]:
    """A heap entry that sorts runs by their next pieces, ties by age."""
    piece = run.pieces[run.at]
    return (*_key_then_age(piece), run)


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
        while at > 0 and piece.key <= pieces[at - 1].key:
            if piece.key == pieces[at - 1].key and _key_then_age(piece) >= _key_then_age(pieces[at - 1]):
                break
            pieces[at] = pieces[at - 1]
            at -= 1
        pieces[at] = piece
        i += 1


def _key(piece: Piece) -> float:
    return piece.key


def _key_then_age(piece: Piece) -> tuple[float, float, int]:
    return (piece.key, piece.since, piece.first)
