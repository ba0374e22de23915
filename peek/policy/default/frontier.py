"""The frontier of a pending tree: the pieces that compete for the next place, and the order that they give.

A piece is a request whose whole path is cached, or a prefix that is not cached.  Such a prefix is the highest
uncached node on a path, with all requests that wait below it.  Cached nodes are *groups*: the tokens at risk
above a piece are a number of the group that it hangs from.

Most numbers behind a piece's index change only when a request below arrives or leaves, or when the cache
gains or loses a part of its path.  The tree's journal tells of each of these changes.  Only the age and the
tokens at risk above change all the time.  So pieces are rows of columns, and an order computes all indices in
a few vector operations.

`Below` holds what the frontier knows of a node, `Waiting` what it knows of a request, each in a list by
`uid`.  A `uid` is used again, so each entry names its node or request; an entry of another one is stale.

A new row of the columns is written natively into a buffer.  All new rows enter the columns together, with the
next question.  Two versions of the buffer stand side by side, as in `peek.trie.keys`: a native one for the
compiled build and an `array` for the interpreted one.

`BestFirst` gives the order as far as it is asked for, by the rule of `peek.policy.default.policy`.
"""

from __future__ import annotations

import heapq
import math
from array import array
from typing import Any, Final, final

import numpy as np
from mypy_extensions import i64

from peek.policy.base import RequestStream
from peek.policy.default.expectations import NOTHING, Expectations, Expected
from peek.request import PendingRequest
from peek.trie.keys import COMPILED
from peek.trie.node import Node, Terminator
from peek.trie.pending_tree import Bookmark, PendingTree

try:  # noqa: SIM105
    from librt.strings import BytesWriter, write_f64_le
except ImportError:  # pragma: no cover - an interpreted install on a platform without librt
    pass

MIN_WAIT_S: Final = 1e-3
"""Least age of a request in seconds, so that the indices of new requests are not all zero."""

_FAR_S: Final = 1e100
"""Bound of all times, up and down, in seconds: beyond any clock, and powers of ages do not overflow."""

MOST_LEVERAGE: Final = 5.0
"""Upper bound of the leverage, reached with four fifths of a prompt cached and at risk.  The bound on waiting
in `peek.policy.default.policy` rests on it."""

MOST_SHARERS: Final = 2.0
"""Sharing divides a request's work by this at most, and by more only through `cohort`.  Without a bound the
largest cold template always goes first, and requests of small templates wait too long (`bench.ablation`)."""

GAMMA: Final = 0.4
"""Exponent of size within the power.  56 times (5 ** 2.5) as small weighs as much as the best hit."""

PATIENCE: Final = 8
"""How the factor of age bends, see `aged`.  With 1 it is a straight line, and a large request waits many
times as long as a small one.  `python -m bench.ablation` tries 4 and 16."""

_WIDTH: Final = 8
"""Numbers of a new row: its slot, then those of the columns."""
_SINCE, _FIRST, _LIGHTNESS, _PER_WORK, _AT_RISK, _GROUP, _SHARING = range(_WIDTH - 1)

_LATE: Final = 1 << 62
"""A number above all sequence numbers."""
_LEAST: Final = math.ulp(0.0)
"""The least index of a piece; it tells pieces from free slots."""


@final
class Columns:
    """The numbers that the index of each piece is made of, by slot.

        since, first    arrival in seconds and sequence number of its oldest request
        lightness       size ** -0.4; 0 where the slot is free
        per_work        count / work, in 1 / tokens
        at_risk         tokens at risk on the piece's own edge, for one of its requests
        group           number of the group that the piece hangs from
        sharing         factor of the lightness if all sharers count, see `cohort`

    Attributes:
        oldest_s, mean_s: age of the oldest piece and mean age of the pieces of each namespace at the last
            `indices`, in seconds; at the place of its root's group, one number where there is one namespace.
    """

    def __init__(self) -> None:
        self.oldest_s: Any = ()
        self.mean_s: Any = ()
        self._table: Any = np.empty((_WIDTH - 1, 0))
        self._empty()

    def _empty(self) -> None:
        """Start an empty buffer of new rows."""
        self._new: i64 = 0
        if COMPILED:
            self._writer = BytesWriter()
        else:
            self._array: Any = array("d")

    def put(
        self,
        slot: i64,
        since: float,
        first: i64,
        lightness: float,
        per_work: float,
        at_risk: float,
        group: i64,
        sharing: float,
    ) -> None:
        """Write the row of a new or changed piece.  O(1)."""
        self._new += 1
        if COMPILED:
            writer = self._writer
            write_f64_le(writer, float(slot))
            write_f64_le(writer, since)
            write_f64_le(writer, float(first))
            write_f64_le(writer, lightness)
            write_f64_le(writer, per_work)
            write_f64_le(writer, at_risk)
            write_f64_le(writer, float(group))
            write_f64_le(writer, sharing)
        else:
            self._array.extend((slot, since, first, lightness, per_work, at_risk, group, sharing))

    def drop(self, slot: i64) -> None:
        """Free the slot of a piece that is gone.  O(1)."""
        self.put(slot, math.inf, 0, 0.0, 0.0, 0.0, 0, 1.0)

    def indices(self, now: float, above: Any, tops: list[int], power: i64) -> Any:
        """Compute the index of every piece; it is zero where a slot is free.

        Args:
            now: seconds, same clock as `since`.
            above: tokens at risk above each group, for one request.
            tops: of each group, the group of its namespace's root; empty if there is one namespace.
            power: exponent of all factors but the age.
        """
        if self._new > 0:  # the rows written since the last question; the later row of a slot wins
            packed = self._writer.getvalue() if COMPILED else self._array.tobytes()
            self._empty()
            new = np.frombuffer(packed).reshape(-1, _WIDTH)
            slots = new[:, 0].astype(np.intp)
            wide = int(slots.max()) + 1
            if wide > self._table.shape[1]:
                grown = np.zeros((_WIDTH - 1, max(wide, 2 * self._table.shape[1])))
                grown[_SINCE] = math.inf
                grown[:, : self._table.shape[1]] = self._table
                self._table = grown
            self._table[:, slots] = new[:, 1:].T
        table = self._table
        age_s = np.maximum(now - table[_SINCE], MIN_WAIT_S)
        group = table[_GROUP].astype(np.intp)
        at_risk = above[group] + table[_AT_RISK]
        live = table[_LIGHTNESS] > 0.0
        if tops:
            top = np.array(tops, dtype=np.intp)[group]
            self.oldest_s = np.full(len(tops), MIN_WAIT_S)
            np.maximum.at(self.oldest_s, top, age_s)
            sums_s = np.bincount(top, live * age_s, len(tops))
            self.mean_s = np.maximum(MIN_WAIT_S, sums_s / np.maximum(1.0, np.bincount(top, live, len(tops))))
            oldest_s, mean_s = self.oldest_s[top], self.mean_s[top]
        else:
            oldest_s = age_s.max(initial=MIN_WAIT_S)
            # not `live @ age_s`: BLAS would start threads, and its sums would hang on their number
            mean_s = max(MIN_WAIT_S, np.add.reduce(age_s, where=live) / max(1, np.count_nonzero(live)))
            self.oldest_s, self.mean_s = (oldest_s,), (mean_s,)
        sharing = np.maximum(1.0, table[_SHARING] * (age_s / oldest_s))  # `cohort`
        leverage = np.minimum(1.0 + at_risk * table[_PER_WORK], MOST_LEVERAGE)
        factors = _raised(leverage * (table[_LIGHTNESS] * sharing), power)
        return mean_s * _raised(1.0 + age_s / (PATIENCE * mean_s), PATIENCE) * factors

    def best(self, indices: Any, most: i64, live: i64) -> tuple[list[int], list[float]]:
        """Find the best `most` pieces, best first, ties by age; all `live` pieces if there are no more.

        Returns their slots and their negated indices.  O(slots + m log m), where m counts these pieces and
        those that tie with the last of them.
        """
        least = _LEAST
        if most < live:
            ranked = indices.copy()
            ranked.partition(indices.size - most)
            least = ranked[indices.size - most]
        slots = (indices >= least).nonzero()[0]
        keys = -indices[slots]
        order = keys.argsort()
        numbers: list[float] = keys[order].tolist()
        if len(set(numbers)) < len(numbers):
            table = self._table
            order = np.lexsort((table[_FIRST][slots], table[_SINCE][slots], keys))
        found: list[int] = slots[order].tolist()
        return found[:most], numbers[:most]


@final
class Below:
    """What the frontier knows of a node: its group or piece, and sums over the requests at or below it.

    Attributes:
        node: the node.
        slot, group: the slot of the piece or the number of the group that the node is; -1 for none.
        start: the frontier's generation that slot and group belong to; in another one they mean nothing.
        round: the call of `Frontier.follow` that last made the node's piece.
        tokens: sum of prompt lengths, tokens.
        lasting: the same sum, each prompt times its `Expected.ratio`, tokens.
        work: tokens to compute, every uncached edge once; a float, as sums of huge prompts exceed 64 bits.
        since, first: arrival in seconds and sequence number of the oldest request.
        lightness, sharing: of the piece that the node is, see `weigh`; a lightness of -1 says that they are
            not computed yet.
    """

    def __init__(self, node: Node, start: i64) -> None:
        self.node = node
        self.start: i64 = start
        self.slot: i64 = -1
        self.group: i64 = -1
        self.round: i64 = 0
        self.tokens: float = 0.0
        self.lasting: float = 0.0
        self.work: float = 0.0
        self.since: float = math.inf
        self.first: i64 = _LATE
        self.lightness: float = -1.0
        self.sharing: float = 1.0

    def weigh(self, cached: float) -> None:
        """Compute `lightness` and `sharing`; `cached` tokens of each prompt are cached or paid for.  O(1)."""
        count = float(self.node.count)
        length = self.tokens / count
        work = self.work / count
        mean_size = size(length, cached, work)
        self.lightness = math.pow(mean_size * self.lasting / self.tokens, -GAMMA)
        self.sharing = sharing_of(length, mean_size, work) if count > 1.0 else 1.0


@final
class Waiting:
    """What the frontier knows of a request: the slot of its piece, -1 for none, and what is expected of it.

    `start` is as in `Below`.  `since` is its arrival in seconds.
    `length` is its prompt in tokens, `work` the tokens behind a key of `depth` symbols.  `lightness`
    is the request's own once that key is paid; -1 until it is computed.
    """

    def __init__(self, terminator: Terminator, expected: Expected, since: float, start: i64) -> None:
        self.terminator = terminator
        self.start: i64 = start
        self.expected = expected
        self.since: float = since
        self.slot: i64 = -1
        self.depth: i64 = -1
        self.length: float = 1.0
        self.work: float = 1.0
        self.lightness: float = -1.0

    def lightened(self) -> float:
        """Return `lightness`, computed if need be.  O(1)."""
        if self.lightness < 0.0:
            own_size = size(self.length, self.length - self.work, self.work) * self.expected.ratio
            self.lightness = math.pow(own_size, -GAMMA)
        return self.lightness


def bounded(time_s: float) -> float:
    """A time in seconds, within `_FAR_S` of 0."""
    return max(-_FAR_S, min(_FAR_S, time_s))


def aged(age_s: float, mean_s: float) -> float:
    """The factor of age in the index, in seconds, where a namespace's pieces are `mean_s` old.  O(1)."""
    return mean_s * _raised_one(1.0 + age_s / (float(PATIENCE) * mean_s), PATIENCE)


def urgency(risk: float, lightness: float, power: i64) -> float:
    """The index without its age: the leverage times the lightness, to a whole power.  O(log power).

    `risk` is tokens at risk over tokens of work.
    """
    return _raised_one(min(1.0 + risk, MOST_LEVERAGE) * lightness, power)


def _raised_one(base: float, power: i64) -> float:
    """Compute `base ** power`.  O(log power)."""
    raised = 1.0
    while power > 0:
        if power & 1:
            raised *= base
        base *= base
        power >>= 1
    return raised


def _raised(base: Any, power: i64) -> Any:
    """Compute `_raised_one` for vectors, equal to the last bit."""
    raised: Any = None
    while power > 0:
        if power & 1:
            raised = base if raised is None else raised * base
        power >>= 1
        if power:
            base = base * base
    return raised


def size(length: float, cached: float, work: float) -> float:
    """The size of a request in tokens: the geometric mean of its prompt and of what it has to compute.

    Memory is held for the whole prompt; time, and new memory, go by the rest.

    Args:
        length: tokens of the prompt.
        cached: tokens of it that are cached, or paid for by another request.
        work: tokens to compute for each waiting request, with what they share divided among them.  It counts
            as no less than what a request alone has to compute divided by `MOST_SHARERS`.
    """
    return math.sqrt(length * max(max(1.0, work), (length - cached) / MOST_SHARERS))  # max of two is native


def sharing_of(length: float, bounded: float, work: float) -> float:
    """Factor of a piece's lightness if all its sharers count; `bounded` is its size in tokens.  O(1)."""
    whole = math.sqrt(length * max(1.0, work))
    return 1.0 if whole >= bounded else math.pow(bounded / whole, GAMMA)


def cohort(sharing: float, age_s: float, oldest_s: float) -> float:
    """Factor of a piece's lightness for what it shares beyond `MOST_SHARERS`, at least 1.  O(1).

    All of `sharing` counts where the piece is as old as the oldest of its namespace, as in a burst.  It
    counts less, the younger the piece is, and not at all below 1 / sharing of that oldest age.
    """
    return max(1.0, sharing * (age_s / oldest_s))


def uncached_symbols(node: Node, parent: Node, epoch: i64) -> i64:
    """Symbols of the edge from `parent` to `node` that the cache did not hold in dual-walk `epoch`.  O(1).

    If that walk left the branch above the edge, its marks are old and the cache holds nothing of it.
    """
    known = node.walk_matched if node.walk_epoch == epoch else parent.depth
    return node.depth - max(known, parent.depth)


def edge_at_risk(node: Node, parent: Node, unit_tokens: i64) -> float:
    """Tokens of a whole edge, cached or paid, divided among the requests that wait below it."""
    return float((node.depth - parent.depth) * unit_tokens) / float(node.count)


@final
class Frontier:
    """The pieces of one tree.

    Attributes:
        columns: the numbers of the pieces.
        known: what is known of each node, by `uid`; see `below`.
        owners: by slot, the prefix or request that a piece is; None where a slot is free.
        live: number of pieces.
    """

    def __init__(self, tree: PendingTree, expectations: Expectations) -> None:
        self.tree = tree
        self._expectations = expectations
        self._bookmark = Bookmark()
        self._epoch: i64 = -1
        self._round: i64 = 0
        self._start: i64 = 0
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
            if below.start != self._start:
                below.start = self._start
                below.slot = below.group = -1
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
            if waiting.start != self._start:
                waiting.start = self._start
                waiting.slot = waiting.depth = -1
            if waiting.terminator is not terminator:
                if waiting.slot >= 0:
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
        """Free the slot and the group of a node."""
        if below.slot >= 0:
            self._release(below)
        if below.group >= 0:
            self._leave_group(below)

    def _leave_group(self, below: Below) -> None:
        self._groups[below.group] = None
        self._free_groups.append(below.group)
        below.group = -1

    def _release(self, owner: Below | Waiting) -> None:
        slot = owner.slot
        owner.slot = -1
        self.columns.drop(slot)
        self.owners[slot] = None
        self._free.append(slot)
        self.live -= 1

    def _take(self, owner: Below | Waiting) -> i64:
        self.live += 1
        if self._free:
            slot: i64 = self._free.pop()
            self.owners[slot] = owner
            return slot
        self.owners.append(owner)
        return len(self.owners) - 1

    # -- following the tree ------------------------------------------------------------------------

    def follow(self, unit_tokens: i64) -> None:
        """Bring the pieces up to date with the tree and its marks.

        O(journal entries x depth + what is below the changed prefixes).  O(n + nodes) the first time, after a
        walk that began anew, and where the journal has become too long.
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
            self.columns = Columns()
            self.owners: list[Below | Waiting | None] = []
            self.live: i64 = 0
            self._free: list[int] = []
            self._groups: list[Below | None] = []
            self._free_groups: list[int] = []
            for _, root in tree.roots():
                self._enter(root)
            return
        for terminator in journal.left[left_from:]:
            self._left(terminator)
        for node in journal.nodes[start:]:
            self._settle(node)

    def _left(self, terminator: Terminator) -> None:
        """Free the piece of a request that has left its place."""
        if terminator.uid < len(self._waiting):
            waiting = self._waiting[terminator.uid]
            if waiting is not None and waiting.terminator is terminator:
                if waiting.start == self._start and waiting.slot >= 0:
                    self._release(waiting)
                self._waiting[terminator.uid] = None

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
        group: i64 = -1
        while path:
            current = path.pop()
            above = current.parent
            if above is not None and uncached_symbols(current, above, self._epoch) > 0:
                self._refresh(current, group)
                return
            below = self.below(current)
            if below.group < 0:
                self._enter(current)
            elif current is node:
                self._add_own(below)
            group = below.group

    def _enter(self, top: Node) -> None:
        """Make groups of a node on a cached path and of cached nodes below; the others become pieces."""
        entering: list[Below] = [self.below(top)]
        while entering:
            below = entering.pop()
            if below.slot >= 0:
                self._release(below)
            if self._free_groups:
                below.group = self._free_groups.pop()
                self._groups[below.group] = below
            else:
                below.group = len(self._groups)
                self._groups.append(below)
            if below.node.terminator is not None:
                self._add_own(below)
            kid = below.node.kid
            while kid is not None:
                if uncached_symbols(kid, below.node, self._epoch) > 0:
                    self._refresh(kid, below.group)
                else:
                    known = self.below(kid)
                    if known.group < 0:
                        entering.append(known)
                kid = kid.next

    # -- pieces ------------------------------------------------------------------------------------

    def _add_own(self, below: Below) -> None:
        """Make pieces of the requests that end in a cached node.

        The newest requests come first, so the first that has a piece ends the search.
        """
        terminator = below.node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            if waiting.slot >= 0:
                return
            waiting.slot = self._take(waiting)
            self._put_own(waiting, below.group)
            terminator = terminator.next

    def _put_own(self, waiting: Waiting, group: i64) -> None:
        first = waiting.terminator.request.sequence
        per_work = 1.0 / waiting.work
        self.columns.put(waiting.slot, waiting.since, first, waiting.lightened(), per_work, 0.0, group, 1.0)

    def renew(self, terminator: Terminator) -> None:
        """Update the piece of a request whose expected answer has changed; called after `follow`."""
        waiting = self.waiting(terminator)
        waiting.lightness = -1.0
        node: Node | None = terminator.node
        if waiting.slot >= 0 and node is not None:
            self._put_own(waiting, self.below(node).group)
            return
        while node is not None and self.below(node).slot < 0:
            node = node.parent
        assert node is not None and node.parent is not None
        self._refresh(node, self.below(node.parent).group)

    def _refresh(self, top: Node, group: i64) -> None:
        """Make the piece of an uncached prefix below a group anew.  O(nodes and requests below)."""
        piece = self.below(top)
        if piece.round == self._round:
            return
        piece.round = self._round
        if piece.slot < 0:
            piece.slot = self._take(piece)
        if top.kid is None and piece.group < 0:
            self._sum_own(piece)
        else:
            self._sum_up(piece)
        parent = top.parent
        assert parent is not None
        count = float(top.count)
        cached = top.depth - uncached_symbols(top, parent, self._epoch)
        piece.weigh(float(cached * self.unit))
        self.columns.put(
            piece.slot,
            piece.since,
            piece.first,
            piece.lightness,
            count / max(1.0, piece.work),
            float((cached - parent.depth) * self.unit) / count,
            group,
            piece.sharing,
        )

    def _sum_up(self, piece: Below) -> None:
        """Compute the sums of each node from a prefix down; only the prefix itself is a piece.

        O(nodes and requests below).
        """
        found: list[Below] = [piece]
        above: list[Below] = [piece]
        i: i64 = 0
        while i < len(found):
            below = found[i]
            if i > 0 and below.slot >= 0:
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

        The requests are no pieces of their own.
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
            if waiting.slot >= 0:
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

    def above(self) -> tuple[list[float], list[int]]:
        """Tokens at risk for one request that hangs from a group, and the group of its root.  O(groups)."""
        known = self.known
        at_risk = [-1.0] * len(self._groups)
        tops = [0] * len(self._groups)
        for below in self._groups:
            path: list[Below] = []
            while below is not None and at_risk[below.group] < 0.0:
                path.append(below)
                parent = below.node.parent
                below = None if parent is None else known[parent.uid]
            if not path:
                continue
            risk = 0.0 if below is None else at_risk[below.group]
            top = path[-1].group if below is None else tops[below.group]
            while path:
                below = path.pop()
                parent = below.node.parent
                if parent is not None:
                    risk += edge_at_risk(below.node, parent, self.unit)
                at_risk[below.group] = risk
                tops[below.group] = top
        return at_risk, tops


# -- the order --------------------------------------------------------------------------------------------


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
        request: the request; None for a prefix of several.  A prefix of one request goes with it.
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
    """Pieces that came up together, best first, and how many of them have gone.

    Args:
        at_risk: tokens at risk above the pieces, for one request.
        oldest_s, mean_s: of the pieces' namespace, as in `Columns`.

    All are 0 for the frontier's own run, whose pieces each have values of their own.
    """

    def __init__(self, pieces: list[Piece], at_risk: float, oldest_s: float, mean_s: float) -> None:
        self.pieces = pieces
        self.at_risk: float = at_risk
        self.oldest_s: float = oldest_s
        self.mean_s: float = mean_s
        self.at: i64 = 0


@final
class BestFirst(RequestStream):
    """The order of an up-to-date frontier; valid as long as tree and cache do not change.

    Args:
        most: number of requests that will be asked for, as far as is known.
        several: whether requests of more than one namespace wait.
    """

    def __init__(self, frontier: Frontier, now: float, power: i64, most: int, several: bool) -> None:
        self._frontier = frontier
        self._now: float = bounded(now)
        self._power: i64 = power
        self._above, tops = frontier.above()
        self._tops = tops if several else []
        self._indices: object = frontier.columns.indices(self._now, np.array(self._above), self._tops, power)
        self._surface = Run([], 0.0, 0.0, 0.0)
        self._look(max(_FIRST_LOOK, most))
        self._run = self._surface
        self._others: list[tuple[float, float, int, Run]] = []  # a heap by each run's next piece

    def _look(self, most: i64) -> None:
        """Sort the frontier's best `most` pieces, and append those that the run does not have yet."""
        run = self._surface
        frontier = self._frontier
        slots, keys = frontier.columns.best(self._indices, most, frontier.live)
        for i in range(len(run.pieces), len(slots)):
            owner = frontier.owners[slots[i]]
            assert owner is not None
            if isinstance(owner, Below):
                piece = Piece(keys[i], owner.since, owner.first, owner.node, None)
            else:
                own = owner.terminator
                piece = Piece(keys[i], owner.since, own.request.sequence, own.node, own.request)
            run.pieces.append(piece)

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.

        O(log) amortised, plus what is below a prefix when that prefix goes.
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
        if run.at < self._frontier.live:
            self._look(self._frontier.live)
        return run.at < len(run.pieces)

    def _below(self, node: Node, run: Run) -> Run:
        """Make the pieces below a prefix of `run` once the prefix is paid.

        O(m log m) with m children and requests of its node.
        """
        parent = node.parent
        assert parent is not None
        frontier = self._frontier
        at_risk, oldest_s, mean_s = run.at_risk, run.oldest_s, run.mean_s
        if run is self._surface:
            hangs_from = frontier.known[parent.uid]
            assert hangs_from is not None
            group = hangs_from.group
            at_risk = self._above[group]
            top = self._tops[group] if self._tops else 0
            oldest_s = float(frontier.columns.oldest_s[top])
            mean_s = float(frontier.columns.mean_s[top])
        at_risk += edge_at_risk(node, parent, frontier.unit)
        below: list[Piece] = []
        terminator = node.terminator
        while terminator is not None:
            request = terminator.request
            waiting = frontier.waiting(terminator)
            since = waiting.since
            age = aged(max(MIN_WAIT_S, self._now - since), mean_s)
            key = -(age * urgency(at_risk / waiting.work, waiting.lightened(), self._power))
            below.append(Piece(key, since, request.sequence, node, request))
            terminator = terminator.next
        kid = node.kid
        while kid is not None:
            below.append(self._piece_of(kid, at_risk * float(kid.count), oldest_s, mean_s))
            kid = kid.next
        put_in_order(below)
        return Run(below, at_risk, oldest_s, mean_s)

    def _piece_of(self, kid: Node, at_risk: float, oldest_s: float, mean_s: float) -> Piece:
        """Make the piece of a prefix; `at_risk` is for all requests below it, the ages are as in `Run`."""
        frontier = self._frontier
        below = frontier.known[kid.uid]
        parent = kid.parent
        assert below is not None and parent is not None
        if below.lightness < 0.0:
            below.weigh(float(parent.depth * frontier.unit))
        lightness = below.lightness
        age_s = max(MIN_WAIT_S, self._now - below.since)
        if below.sharing > 1.0:
            lightness *= cohort(below.sharing, age_s, oldest_s)
        key = -(aged(age_s, mean_s) * urgency(at_risk / max(1.0, below.work), lightness, self._power))
        return Piece(key, below.since, below.first, kid, None)


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
