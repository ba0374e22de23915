"""A lane for requests that arrival order would have served by now.

Beside the engine stands a virtual one that serves the same requests in the order of their arrival.  Both
are measured in *work*, on one clock: tokens to compute, and `DECODE_WEIGHT` for each token of the mean
answer.  The clock stands at the work that has been admitted.  A request that arrives is *due* when the
virtual engine comes to it: behind all that came before, each priced with what the cache held when it came,
because that is what arrival order would have found (virtual finish times, as in fair queueing: Demers, Keshav
and Shenker, 1989), but not before `grace_tokens` of work since it came.  It is *overdue* when the clock has
passed that.

Overdue requests, oldest first, get `fair_share` of the work by stride scheduling; before that no request
is treated differently.  The bound that follows is in docs/lanes.md.  Where several namespaces wait, hits do
not count, so that who is overdue does not tell what another one has cached.  The lane has one turn for all of
them: when it comes depends on who of the others has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, final

from peek.policy.base import RequestStream
from peek.policy.default.tenants import DECODE_WEIGHT
from peek.policy.lanes import CACHE_LANE, FAIR_LANE
from peek.request import NO_LANE, PendingRequest
from peek.trie.node import Terminator
from peek.trie.pending_tree import PendingTree

MEMORY: Final = 256.0
"""Answers that the mean length looks back on."""

MOST_RUNNING: Final = 4096
"""Admitted requests whose place is kept, should they be preempted; more than an engine has seats."""

_NOT_YET: Final = -1.0
"""`due` of a request that has no price yet."""


@final
class Turn:
    """When arrival order would serve a request, in work on the lane's clock.

    Attributes:
        arrival_time: of the request, in seconds.
        start: when the virtual engine comes to it; until it is priced, when it came.
        price: what it costs there.
        due: when it is overdue.
    """

    __slots__ = ("arrival_time", "due", "price", "start")

    def __init__(self, arrival_time: float, start: float) -> None:
        self.arrival_time: float = arrival_time
        self.start: float = start
        self.price: float = 0.0
        self.due: float = _NOT_YET


@final
class OverdueLane:
    """The virtual engine in arrival order, and which lane is behind.

    Args:
        fair_share: part of the work that goes to overdue requests while there are any, in (0, 1).
        grace_tokens: work that is admitted after a request has come before it can be overdue.
    """

    def __init__(self, fair_share: float = 0.15, grace_tokens: float = 500_000.0) -> None:
        self.fair_share: float = fair_share
        self.grace_tokens: float = grace_tokens
        self.clock: float = 0.0
        """Work admitted so far."""
        self.virtual: float = 0.0
        """When the virtual engine has served all who have come, on that clock."""
        self.lead: float = 0.0
        """How far the overdue lane is ahead of the policy's, in work / share."""
        self.answer_tokens: float = 0.0
        """Of the mean answer."""
        self._answers: float = 0.0
        self._turns: dict[str, Turn] = {}
        """Of the requests that wait."""
        self._new: dict[str, PendingRequest] = {}
        """Those of them that have no price yet."""
        self._back: dict[str, PendingRequest] = {}
        """Those that wait again after a preemption, at their old places."""
        self._running: dict[str, Turn] = {}
        """Of admitted requests, oldest admission first."""
        self._held: dict[str, Turn] = {}
        self._picked: list[PendingRequest] = []
        self._in_use = False
        self._several = False

    # -- who comes and goes ------------------------------------------------------------------------

    def arrived(self, request: PendingRequest) -> None:
        """A request began to wait; what stands before it is known with the next `price`.  O(1).

        One that was admitted and comes back, preempted, has the place that it had: it came when it came.  One
        that was held and can run again would go now in arrival order, and is due when it was.
        """
        name = request.request_id
        turn = self._held.pop(name, None)
        if turn is None:
            turn = self._running.pop(name, None)
            if turn is not None and request.arrival_time <= turn.arrival_time:
                self._turns[name] = turn
                self._back[name] = request
                return
            turn = Turn(request.arrival_time, self.clock)
        turn.start = self.clock
        self._turns[name] = turn
        self._new[name] = request

    def price(self, several: bool) -> None:
        """Price the requests that arrived since the last call, one behind the other.  O(those).

        Their cached lengths are known.  `several`: requests of more than one namespace wait.
        """
        self._several = several
        answer = DECODE_WEIGHT * self.answer_tokens
        for name, request in self._new.items():
            turn = self._turns[name]
            prompt = request.num_tokens
            if not several:
                prompt = max(1, prompt - max(request.cached_len, request.coming_len))
            turn.price = float(prompt) + answer
            came = turn.start
            start = max(self.virtual, came)
            if turn.due == _NOT_YET:
                turn.start = start
                turn.due = max(start, came + self.grace_tokens)
            self.virtual = start + turn.price
        self._new.clear()

    def turn_of(self, request_id: str) -> Turn | None:
        """The turn of a request that waits or is held, None of any other.  O(1)."""
        return self._turns.get(request_id) or self._held.get(request_id)

    def withdrawn(self, request_id: str) -> Turn:
        """A request left without being served, and the virtual engine has the rest of its price less to do.

        Those behind it there keep their turns.  O(1).
        """
        self._new.pop(request_id, None)
        self._back.pop(request_id, None)
        turn = self._turns.pop(request_id)
        rest = min(turn.price, turn.start + turn.price - self.clock)
        self.virtual -= max(0.0, rest)
        return turn

    def held(self, request_id: str) -> None:
        """A request cannot run for now: as far as the virtual engine goes, it has left.  O(1)."""
        turn = self.withdrawn(request_id)
        if turn.due == _NOT_YET:
            turn.due = turn.start + self.grace_tokens
        turn.price = 0.0
        self._held[request_id] = turn

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        """A request was admitted, and cost so much.  O(1)."""
        name = request.request_id
        turn = self._turns.pop(name)
        if self._new.pop(name, None) is None:
            self._back.pop(name, None)
            self._running[name] = turn
            if len(self._running) > MOST_RUNNING:
                del self._running[next(iter(self._running))]
        work = self.work_of(request, uncached_tokens)
        self.clock += work
        if not self._in_use:
            return
        if request.lane == FAIR_LANE:
            self.lead += work / self.fair_share
        else:
            self.lead -= work / (1.0 - self.fair_share)

    def answered(self, tokens: int, request_id: str = "") -> None:
        """An answer is complete, of so many tokens.  O(1)."""
        self._running.pop(request_id, None)
        self._answers = min(MEMORY, self._answers + 1.0)
        self.answer_tokens += (float(tokens) - self.answer_tokens) / self._answers

    def work_of(self, request: PendingRequest, uncached_tokens: int) -> float:
        """What a request costs, if so much of it is not cached."""
        prompt = float(request.num_tokens if self._several else max(1, uncached_tokens))
        return prompt + DECODE_WEIGHT * self.answer_tokens

    # -- one order ---------------------------------------------------------------------------------

    def merge(self, order: RequestStream, tree: PendingTree) -> RequestStream:
        """`order` with turns for the overdue requests of `tree`; `order` itself if none is.  O(1)."""
        for request in self._picked:
            request.lane = NO_LANE
        self._picked.clear()
        turns = OverdueTurns(order, self, tree.handles(), self.returned())
        self._in_use = turns.head is not None
        return turns if self._in_use else order

    def returned(self) -> list[PendingRequest]:
        """Requests that came back after a preemption, the first to be due last.  O(n log n) of them."""
        return sorted(self._back.values(), key=self.due_of, reverse=True)

    def due_of(self, request: PendingRequest) -> float:
        """When a request is overdue; never, if it is not known.  O(1)."""
        turn = self._turns.get(request.request_id)
        return inf if turn is None else turn.due

    def pick(self, request: PendingRequest) -> None:
        """Note that the overdue lane has placed a request."""
        request.lane = FAIR_LANE
        self._picked.append(request)


@final
class OverdueTurns(RequestStream):
    """An order in which the oldest overdue request goes whenever its lane is behind.

    Args:
        order: the policy's, of all who wait.
        lane: as it stands; the order to come is not charged to it.
        waiting: those who wait, as they entered the queue; of those in `back` their second time.
        back: those who were preempted, the one that is due first last.

    Attributes:
        head: the oldest who is overdue and has not been placed; None if nobody is.
    """

    __slots__ = ("_back", "_lane", "_lead", "_oldest", "_order", "_placed", "_waiting", "head")

    def __init__(
        self,
        order: RequestStream,
        lane: OverdueLane,
        waiting: Iterator[Terminator],
        back: list[PendingRequest],
    ) -> None:
        self._order = order
        self._lane = lane
        self._lead: float = lane.lead
        self._waiting = waiting
        self._oldest: Terminator | None = next(waiting, None)
        self._back = back
        self._placed: set[str] = set()
        self.head: PendingRequest | None = None
        self._advance()

    def next(self) -> PendingRequest | None:
        """The next request; None at the end.  O(1) and the order's own cost."""
        head = self.head
        lane = self._lane
        if head is not None and self._lead <= 0.0:
            lane.pick(head)
            self._lead += self._expected(head) / lane.fair_share
            self._placed.add(head.request_id)
            self._advance()
            return head
        request = self._order.next()
        while request is not None and request.request_id in self._placed:
            request = self._order.next()
        if request is not None and head is not None:
            request.lane = CACHE_LANE
            self._lead -= self._expected(request) / (1.0 - lane.fair_share)
            self._placed.add(request.request_id)
            if request is head:
                self._advance()
        return request

    def _expected(self, request: PendingRequest) -> float:
        return self._lane.work_of(request, request.num_tokens - request.cached_len)

    def _advance(self) -> None:
        """Find the next overdue request; none stands behind one that is not."""
        self.head = None
        placed, back = self._placed, self._back
        while back and back[-1].request_id in placed:
            back.pop()
        while self._oldest is not None and self._oldest.request.request_id in placed:
            self._oldest = next(self._waiting, None)
        first: PendingRequest | None = None if self._oldest is None else self._oldest.request
        lane = self._lane
        due = inf if first is None else lane.due_of(first)
        if back and (first is None or lane.due_of(back[-1]) < due):
            first = back[-1]
            due = lane.due_of(first)
        if due < lane.clock:
            self.head = first
