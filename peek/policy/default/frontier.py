"""The frontier of a pending tree: the pieces of work that compete for the next place, kept current.

A piece is a request whose whole path is cached, or a prefix that is not: the highest uncached node on a path,
with all that waits below it.  What a piece's index is made of changes only when something below it arrives,
leaves, or comes into or falls out of the cache, all of which the tree's journal tells; only age and what is
at risk above it move by themselves.  So pieces stand in columns, and an order looks at all of them with a
few vector operations.

Cached nodes are groups: what is at risk above a piece is a number of the group that it hangs from.

What the frontier knows of a node stands in `Below`, what it knows of a request in `Waiting`, each in a list
by `uid`.  A `uid` is used again, so an entry names what it is of; one of another node or request is stale.

A row of the columns is written natively into a buffer and enters them with the next question, all new rows at
once.  Two sources of the buffer live side by side, as in `peek.trie.keys`: native on the compiled build,
`array` on the interpreted one.
"""

from __future__ import annotations

import math
from array import array
from typing import Any, Final, final

import numpy as np
from mypy_extensions import i64

from peek.policy.default.answers import LEAST, MOST, AnswerLengths, Expected
from peek.policy.default.sessions import Sessions
from peek.trie.keys import COMPILED
from peek.trie.node import Node, Terminator, next_branch, next_preorder, uncached_symbols
from peek.trie.pending_tree import PendingTree
from peek.trie.structure import Bookmark

try:  # noqa: SIM105
    from librt.strings import BytesWriter, write_f64_le
except ImportError:  # pragma: no cover - an interpreted install on a platform without librt
    pass

MIN_WAIT_S: Final = 1e-3
"""Requests that have just come wait this long, so that indices do not all become zero."""

MOST_LEVERAGE: Final = 5.0
"""Beyond that, four fifths cached, a hit is no reason more to hurry: see the bound in
`peek.policy.default.policy`."""

MOST_SHARERS: Final = 2.0
"""Sharing makes a request that many times smaller at most, whoever waits, and more only by `cohort`: else the
largest cold template always goes first, and who waits for a small one waits too long (`bench.ablation`)."""

GAMMA: Final = 0.4
"""The exponent of size within the power.  56 times as small gives as much right of way as the best hit."""

_WIDTH: Final = 10
_SINCE, _FIRST, _LIGHTNESS, _PER_WORK, _AT_RISK, _GROUP = range(6)
_FORETOLD_LIGHTNESS, _FORETOLD_PER_WORK, _SHARING = range(6, 9)

_LATE: Final = 1 << 62
_LEAST: Final = math.ulp(0.0)


def vector(values: list[float]) -> Any:
    """A vector of numbers.  O(n)."""
    if COMPILED:
        writer = BytesWriter()
        for value in values:
            write_f64_le(writer, value)
        return np.frombuffer(writer.getvalue())
    return np.array(values)


@final
class Columns:
    """What the index of each piece is made of, by slot.

    since, first    since when its oldest request has waited, in seconds, and its number of arrival
    lightness       size ** -0.4; 0 where the slot is free
    per_work        count / work, in 1 / tokens
    at_risk         tokens at risk for one of its requests, on its own edge
    group           number of the group that it hangs from
    sharing         how many times as light it is if all that share it count, see `cohort`

    and lightness and per_work once more with what is expected of answers.

    Attributes:
        oldest_s: how long the oldest of each namespace waited at the last `indices`: at its root's group, or
            one for all.
    """

    __slots__ = ("_array", "_foretold", "_new", "_table", "_writer", "oldest_s")

    def __init__(self) -> None:
        self.oldest_s: Any = ()
        self._table: Any = np.empty((9, 0))
        self._foretold = False
        self._empty()

    def _empty(self) -> None:
        """No new rows."""
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
        foretold_lightness: float,
        foretold_per_work: float,
        sharing: float,
    ) -> None:
        """A new piece, or a changed one.  O(1)."""
        if foretold_lightness != lightness or foretold_per_work != per_work:
            self._foretold = True
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
            write_f64_le(writer, foretold_lightness)
            write_f64_le(writer, foretold_per_work)
            write_f64_le(writer, sharing)
        else:
            known = (since, first, lightness, per_work, at_risk, group)
            self._array.extend((slot, *known, foretold_lightness, foretold_per_work, sharing))

    def drop(self, slot: i64) -> None:
        """The piece is gone.  O(1)."""
        self.put(slot, math.inf, 0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 1.0)

    def indices(self, now: float, above: Any, tops: list[int], power: i64) -> Any:
        """The index of every piece, zero where a slot is free.

        Args:
            now: seconds, same clock as `since`.
            above: tokens at risk above each group, for one request.
            tops: of each group, the group of its namespace's root; empty: of all the same.
            power: of all but the age.
        """
        self._let_in()
        table = self._table
        age_s = np.maximum(now - table[_SINCE], MIN_WAIT_S)
        group = table[_GROUP].astype(np.intp)
        at_risk = above[group] + table[_AT_RISK]
        if tops:
            top = np.array(tops, dtype=np.intp)[group]
            self.oldest_s = np.full(len(tops), MIN_WAIT_S)
            np.maximum.at(self.oldest_s, top, age_s)
            oldest_s = self.oldest_s[top]
        elif age_s.size:
            oldest_s = age_s[age_s.argmax()]
            self.oldest_s = (oldest_s,)
        else:
            oldest_s = MIN_WAIT_S
        sharing = np.maximum(1.0, table[_SHARING] * (age_s / oldest_s))  # `cohort`
        plain = age_s * _urgencies(at_risk * table[_PER_WORK], table[_LIGHTNESS] * sharing, power)
        if not self._foretold:
            return plain
        lightness = table[_FORETOLD_LIGHTNESS] * sharing
        learned = age_s * _urgencies(at_risk * table[_FORETOLD_PER_WORK], lightness, power)
        return np.minimum(
            np.maximum(learned, LEAST * plain), MOST * plain
        )  # `peek.policy.default.answers.bounded`

    def _let_in(self) -> None:
        """The rows written since the last question enter the columns; of two for a slot the later."""
        if self._new == 0:
            return
        packed = self._writer.getvalue() if COMPILED else self._array.tobytes()
        self._empty()
        new = np.frombuffer(packed).reshape(-1, _WIDTH)
        slots = new[:, 0].astype(np.intp)
        size = int(slots.max()) + 1
        if size > self._table.shape[1]:
            grown = np.zeros((9, max(size, 2 * self._table.shape[1])))
            grown[_SINCE] = math.inf
            grown[:, : self._table.shape[1]] = self._table
            self._table = grown
        self._table[:, slots] = new[:, 1:].T

    def best(self, indices: Any, most: i64, live: i64) -> tuple[list[int], list[float]]:
        """The best `most` pieces, best first, ties by age, all of the `live` ones if there are no more.

        Their slots, and their negated indices.  O(slots + m log m) with m of them and of those as good as
        the last.
        """
        least = _LEAST
        if most < live:
            least = indices[np.argpartition(indices, indices.size - most)[-most:]].min()
        slots = np.flatnonzero(indices >= least)
        keys = -indices[slots]
        order = keys.argsort()
        ranked = keys[order]
        if (ranked[1:] == ranked[:-1]).any():
            table = self._table
            order = np.lexsort((table[_FIRST][slots], table[_SINCE][slots], keys))
        order = order[:most]
        found: list[int] = slots[order].tolist()
        numbers: list[float] = keys[order].tolist()
        return found, numbers


@final
class Below:
    """What waits at or below a node: its group, its piece, and sums.

    Attributes:
        node: whose this is.
        slot, group: of the piece that it is, and of the group; -1 for none.
        start: of slot and group, which mean nothing after the frontier has started anew.
        round: the call of `Frontier.follow` that made its piece last.
        tokens: lengths of prompts.
        lasting: the same, each times how many mean answers its own is expected to last.
        work: tokens to compute, every uncached edge once.
        excess: tokens that answers are expected to take beyond that.
        since, first: arrival in seconds and number of the oldest.
        size, lightness, sharing: of the piece that it is once the path above is paid; lightness is -1 until
            somebody asks.
    """

    __slots__ = (
        "excess",
        "first",
        "group",
        "lasting",
        "lightness",
        "node",
        "round",
        "sharing",
        "since",
        "size",
        "slot",
        "start",
        "tokens",
        "work",
    )

    def __init__(self, node: Node, start: i64) -> None:
        self.node = node
        self.start: i64 = start
        self.slot: i64 = -1
        self.group: i64 = -1
        self.round: i64 = 0
        self.tokens: float = 0.0
        self.lasting: float = 0.0
        self.work: i64 = 0
        self.excess: float = 0.0
        self.since: float = math.inf
        self.first: i64 = _LATE
        self.size: float = -1.0
        self.lightness: float = -1.0
        self.sharing: float = 1.0

    @property
    def foretells(self) -> bool:
        """Whether answers are expected to be others than the mean one."""
        return self.excess != 0.0 or self.lasting != self.tokens

    def add(self, child: Below) -> None:
        """Add what waits at or below a child."""
        self.tokens += child.tokens
        self.lasting += child.lasting
        self.work += child.work
        self.excess += child.excess
        if child.since < self.since or (child.since == self.since and child.first < self.first):
            self.since = child.since
            self.first = child.first


@final
class Waiting:
    """One request: the slot of its piece, -1 where it is none, and what is expected of its answer.

    `start` is as of `Below`; `since` its arrival, or earlier for a later turn of a session, in seconds.
    `length`: tokens of its prompt; `work`: those behind a key of `depth` symbols; `size` and
    `lightness` are its own once that key is paid.
    """

    __slots__ = (
        "depth",
        "expected",
        "length",
        "lightness",
        "since",
        "size",
        "slot",
        "start",
        "terminator",
        "work",
    )

    def __init__(self, terminator: Terminator, expected: Expected, since: float, start: i64) -> None:
        self.terminator = terminator
        self.start: i64 = start
        self.expected = expected
        self.since: float = since
        self.slot: i64 = -1
        self.depth: i64 = -1
        self.length: float = 1.0
        self.work: i64 = 1
        self.size: float = 1.0
        self.lightness: float = 1.0

    def measure(self, depth: i64, unit: i64) -> None:
        """Its key has so many symbols, or has them now.  O(1)."""
        num_tokens: i64 = self.terminator.request.num_tokens
        self.depth = depth
        self.length = float(max(1, num_tokens))
        self.work = max(1, num_tokens - depth * unit)
        work = float(self.work)
        self.size = size(self.length, self.length - work, work)
        self.lightness = lightness_of(self.size)


def urgency(risk: float, lightness: float, power: i64) -> float:
    """An index but for its age: the leverage of `risk`, tokens at risk to tokens of work, and the lightness,
    to a whole power.  O(log power)."""
    base = min(1.0 + risk, MOST_LEVERAGE) * lightness
    raised = 1.0
    while power > 0:
        if power & 1:
            raised *= base
        base *= base
        power >>= 1
    return raised


def _urgencies(risk: Any, lightness: Any, power: i64) -> Any:
    """`urgency` of vectors, to the last bit."""
    base = np.minimum(1.0 + risk, MOST_LEVERAGE) * lightness
    raised: Any = 1.0
    while power > 0:
        if power & 1:
            raised = raised * base
        power >>= 1
        if power:
            base = base * base
    return raised


def size(length: float, cached: float, work: float) -> float:
    """What a request takes, in tokens: the geometric mean of its prompt and of what it has to compute.

    Memory is held for the whole prompt; time, and new memory, go by the rest.

    Args:
        length: of the prompt.
        cached: of that, cached, or paid for by another.
        work: to compute for each that waits, what they share divided among them.  It counts as no less than
            what one alone has to compute divided by `MOST_SHARERS`.
    """
    return math.sqrt(length * max(max(1.0, work), (length - cached) / MOST_SHARERS))  # max of two is native


def sharing_of(length: float, bounded: float, work: float) -> float:
    """How many times as light a piece is if all that share it count: its `size` is the bounded one.  O(1)."""
    whole = math.sqrt(length * max(1.0, work))
    return 1.0 if whole >= bounded else math.pow(bounded / whole, GAMMA)


def cohort(sharing: float, age_s: float, oldest_s: float) -> float:
    """What sharing counts for beyond `MOST_SHARERS`: all of it among those that have waited equally long, as
    in a burst; less, the younger a piece is than the oldest of its namespace.  O(1).

    Beyond `MOST_SHARERS` nothing of a piece counts that has waited less than 1 / sharing as long as that one.
    """
    return max(1.0, sharing * (age_s / oldest_s))


def lightness_of(size_tokens: float) -> float:
    """What an index says of a size: the larger, the less.  O(1)."""
    return math.pow(size_tokens, -GAMMA)


def edge_at_risk(node: Node, parent: Node, unit_tokens: i64) -> float:
    """A whole edge, cached or paid, divided among those that wait below it."""
    return float((node.depth - parent.depth) * unit_tokens) / float(node.count)


@final
class Frontier:
    """The pieces of one tree.

    Args:
        tree: the waiting requests, with the marks of a dual-walk.
        answers: what is expected of each.
        sessions: since when each has waited.

    Attributes:
        columns: the pieces.
        owners: by slot, the prefix or request that a piece is; None where a slot is free.
        live: how many pieces there are.
    """

    __slots__ = (
        "_answers",
        "_below",
        "_bookmark",
        "_epoch",
        "_free",
        "_free_groups",
        "_groups",
        "_round",
        "_sessions",
        "_start",
        "_tree",
        "_waiting",
        "columns",
        "live",
        "owners",
        "unit",
    )

    def __init__(self, tree: PendingTree, answers: AnswerLengths, sessions: Sessions) -> None:
        self._tree = tree
        self._answers = answers
        self._sessions = sessions
        self._bookmark = Bookmark()
        self._epoch: i64 = -1
        self._round: i64 = 0
        self._start: i64 = 0
        self._below: list[Below | None] = []
        self._waiting: list[Waiting | None] = []
        self.unit: i64 = 1
        self._clear()

    def _clear(self) -> None:
        """No pieces and no groups."""
        self._start += 1
        self.columns = Columns()
        self.owners: list[Node | Terminator | None] = []
        self.live: i64 = 0
        self._free: list[int] = []
        self._groups: list[Node | None] = []
        self._free_groups: list[int] = []

    def is_of(self, tree: PendingTree) -> bool:
        """Whether it was made for this tree."""
        return tree is self._tree

    # -- what is known of nodes and requests -------------------------------------------------------

    def below(self, node: Node) -> Below:
        """What is known of a node of the tree.  O(1)."""
        known = self._below
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
            self._forget(below)  # of a node that is gone
        below = Below(node, self._start)
        known[uid] = below
        return below

    def waiting(self, terminator: Terminator) -> Waiting:
        """What is known of a request of the tree.  O(1)."""
        known = self._waiting
        uid = terminator.uid
        depth = terminator.node.depth
        while len(known) <= uid:
            known.append(None)
        waiting = known[uid]
        if waiting is not None:
            if waiting.start != self._start:
                waiting.start = self._start
                waiting.slot = -1
            if waiting.terminator is terminator:
                if waiting.depth != depth:  # the key was extended
                    waiting.measure(depth, self.unit)
                return waiting
            self._leave_slot_of(waiting)
        request = terminator.request
        expected = self._answers.expected(request.request_id)
        waiting = Waiting(terminator, expected, self._sessions.since(request), self._start)
        waiting.measure(depth, self.unit)
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
                if waiting.start == self._start:
                    self._leave_slot_of(waiting)
                self._waiting[terminator.uid] = None

    def _settle(self, node: Node) -> None:
        """Something has changed at or below a node."""
        if node.count == 0:
            if node.uid < len(self._below):
                below = self._below[node.uid]
                if below is not None and below.node is node:
                    if below.start == self._start:
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
            below = self.below(current)
            if below.group < 0:
                self._enter(current)
            elif current is node:
                self._add_own(below)

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
            self._add_own(below)
            kid = node.kid
            while kid is not None:
                if not self._is_cached(kid):
                    self._refresh(kid)
                elif self.below(kid).group < 0:
                    entering.append(kid)
                kid = kid.next

    # -- pieces ------------------------------------------------------------------------------------

    def _add_own(self, below: Below) -> None:
        """Pieces for the requests that end in a cached node; those that have one are behind the others."""
        terminator = below.node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            if waiting.slot >= 0:
                return
            waiting.slot = self._take(terminator)
            self._put_own(waiting, below.group)
            terminator = terminator.next

    def _put_own(self, waiting: Waiting, group: i64) -> None:
        expected = waiting.expected
        work = float(waiting.work)
        foretold = waiting.lightness
        if expected.ratio != 1.0:
            foretold = lightness_of(waiting.size * expected.ratio)
        self.columns.put(
            waiting.slot,
            waiting.since,
            waiting.terminator.request.sequence,
            waiting.lightness,
            1.0 / work,
            0.0,
            group,
            foretold,
            1.0 / (work + float(expected.excess)),
            1.0,
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
        self._sum_up(piece)
        parent = top.parent
        assert parent is not None
        count = float(top.count)
        work = float(piece.work)
        cached = (top.depth - parent.depth - uncached_symbols(top, parent, self._epoch)) * self.unit
        mean_length = piece.tokens / count
        mean_size = size(mean_length, float(parent.depth * self.unit + cached), work / count)
        lightness = foretold = lightness_of(mean_size)
        if piece.lasting != piece.tokens:
            foretold = lightness_of(mean_size * piece.lasting / piece.tokens)
        self.columns.put(
            piece.slot,
            piece.since,
            piece.first,
            lightness,
            count / max(1.0, work),
            float(cached) / count,
            self.below(parent).group,
            foretold,
            count / max(1.0, work + piece.excess),
            sharing_of(mean_length, mean_size, work / count),
        )

    def _sum_up(self, piece: Below) -> None:
        """What waits at or below each node from a prefix down; none of them is a group, only it a piece."""
        found: list[Below] = []
        top = piece.node
        stop = next_branch(top)
        node: Node | None = top
        while node is not None and node is not stop:
            below = self.below(node)
            if below is not piece:
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
        tokens = lasting = excess = 0.0
        work: i64 = uncached_symbols(node, parent, self._epoch) * self.unit
        since = math.inf
        first: i64 = _LATE
        terminator = node.terminator
        while terminator is not None:
            waiting = self.waiting(terminator)
            self._leave_slot_of(waiting)
            expected, sequence = waiting.expected, terminator.request.sequence
            tokens += waiting.length
            lasting += waiting.length * expected.ratio
            work += waiting.work
            excess += float(expected.excess)
            if waiting.since < since or (waiting.since == since and sequence < first):
                since = waiting.since
                first = sequence
            terminator = terminator.next
        below.tokens = tokens
        below.lasting = lasting
        below.work = work
        below.excess = excess
        below.since = since
        below.first = first
        below.lightness = -1.0

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

    def tops(self) -> list[int]:
        """By group: the group of its namespace's root; empty where all are of one.  O(groups x depth)."""
        if self._tree.n_namespaces < 2:
            return []
        tops: list[int] = []
        for group in self._groups:
            top = group
            while top is not None and top.parent is not None:
                top = top.parent
            tops.append(0 if top is None else self.below(top).group)
        return tops
