"""A lane for requests that arrival order would have served by now.

A *virtual engine*, which is only calculated, serves the same requests in arrival order.  Both engines are
measured on one clock that shows the *work* admitted so far: tokens to compute, and `DECODE_WEIGHT` for each
token of the mean answer.  A request is *due* when the virtual engine comes to it, after all earlier requests,
but never before `grace_tokens` of work have been admitted since it came.  It is priced with the hits that it
had when it came, because arrival order would have found these.  A request is *overdue* when the clock has
passed its due moment.  (Virtual finish times, as in fair queueing: Demers, Keshav and Shenker, 1989.)

Overdue requests, oldest first, get `fair_share` of the work by stride scheduling.  While none is overdue, the
policy's order stands.  docs/lanes.md derives the bound on waiting that follows.  If several namespaces wait,
prices ignore hits, so that an overdue request does not reveal what another namespace has cached.  All
namespaces share the lane's turns, so the moment of a turn depends on the others' requests, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, final

from peek.policy.base import RequestStream
from peek.policy.default.expectations import Mean
from peek.policy.default.tenants import DECODE_WEIGHT
from peek.policy.lanes import CACHE_LANE, FAIR_LANE
from peek.request import NO_LANE, PendingRequest
from peek.trie.node import Terminator
from peek.trie.pending_tree import PendingTree

MEMORY: Final = 256.0
"""Number of latest answers in the mean answer length."""

MOST_RUNNING: Final = 4096
"""Maximum number of admitted requests whose turns are kept in case of preemption; engines run fewer."""

_NOT_YET: Final = -1.0
"""`due` of a request that has no price yet."""


@final
class Turn:
    """When arrival order would serve a request, in work on the lane's clock.

    Attributes:
        arrival_time: arrival of the request, seconds.
        came: the moment it came; `due` is at least the grace later.
        start: the moment the virtual engine comes to it; until it is priced, the moment it came.
        price: work that the virtual engine does for it.
        due: the moment from which it is overdue.
        resumed: whether it was held before it came; it keeps the due moment that it had.
    """

    def __init__(self, arrival_time: float, start: float) -> None:
        self.arrival_time: float = arrival_time
        self.came: float = start
        self.start: float = start
        self.price: float = 0.0
        self.due: float = _NOT_YET
        self.resumed = False


@final
class OverdueLane:
    """The virtual engine in arrival order, and the account of which lane is behind.

    The arguments are options of the policy.
    """

    def __init__(self, fair_share: float, grace_tokens: float) -> None:
        self.fair_share: float = fair_share
        self.grace_tokens: float = grace_tokens
        self.clock: float = 0.0
        """Work admitted so far."""
        self.virtual: float = 0.0
        """Moment at which the virtual engine has served all requests that have come."""
        self.lead: float = 0.0
        """How far the overdue lane is ahead of the policy's lane, in work / share."""
        self.answers = Mean(MEMORY)
        """The length of the latest answers, tokens."""
        self._turns: dict[str, Turn] = {}
        """The turns of waiting requests, by id."""
        self._new: dict[str, PendingRequest] = {}
        """Waiting requests that have no price yet, by id."""
        self._back: dict[str, Turn] = {}
        """The turns of waiting requests that were preempted or held and are due when they were, by id."""
        self._soonest: float = inf
        """No turn of `_back` is due before this moment."""
        self._running: dict[str, Turn] = {}
        """The turns of admitted requests, by id, oldest admission first."""
        self._held: dict[str, Turn] = {}
        self._picked: list[PendingRequest] = []
        self._in_use = False
        self._several = False

    # -- arrivals and departures -------------------------------------------------------------------

    def arrived(self, request: PendingRequest) -> None:
        """Give a turn to a request that waits from now on; the next `price` fixes its start.  O(1).

        A request that comes back after a preemption takes up the turn that it had.  One that was held and can
        run again starts now, as it would in arrival order, but keeps its due moment.
        """
        name = request.request_id
        turn = self._held.pop(name, None)
        if turn is None:
            turn = self._running.pop(name, None)
            if turn is not None and request.arrival_time <= turn.arrival_time:
                turn.resumed = False
                self._turns[name] = turn
                self._come_back(name, turn)
                return
            turn = Turn(request.arrival_time, self.clock)
        else:
            turn.resumed = True
            self._come_back(name, turn)
        turn.start = self.clock
        self._turns[name] = turn
        self._new[name] = request

    def _come_back(self, name: str, turn: Turn) -> None:
        self._back[name] = turn
        self._soonest = min(self._soonest, turn.due)

    def price(self, several: bool) -> None:
        """Price the requests that arrived since the last call, one after the other.  O(these requests).

        Their cached lengths must be known.  `several`: requests of more than one namespace wait.
        """
        self._several = several
        answer = DECODE_WEIGHT * self.answers.mean
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
        if self._new:
            self._close_ranks()
        self._new.clear()

    def _close_ranks(self) -> None:
        """After withdrawals, let no request be due later than one that came after it.

        O(new requests + older ones that this changes).
        """
        new: int = len(self._new)
        least = inf
        for name, turn in reversed(self._turns.items()):
            if name in self._back and not turn.resumed:
                continue
            if new <= 0 and turn.due <= least and not turn.resumed:
                return
            new -= 1
            turn.due = min(turn.due, least)
            if turn.resumed:
                self._soonest = min(self._soonest, turn.due)
            else:
                least = turn.due

    def turn_of(self, request_id: str) -> Turn | None:
        """Return the turn of a request that waits or is held; None for any other request.  O(1)."""
        return self._turns.get(request_id) or self._held.get(request_id)

    def withdrawn(self, request_id: str) -> Turn:
        """Remove a request that left without being admitted, and return its turn.  O(1).

        The virtual engine saves the rest of its price.  Requests behind it keep their due moments until a
        request arrives that is due sooner than they are: see `price`.
        """
        self._new.pop(request_id, None)
        self._back.pop(request_id, None)
        turn = self._turns.pop(request_id)
        rest = min(turn.price, turn.start + turn.price - self.clock)
        self.virtual -= max(0.0, rest)
        return turn

    def held(self, request_id: str) -> None:
        """Remove a request that cannot run for now from the virtual engine; keep its due moment.  O(1)."""
        turn = self.withdrawn(request_id)
        if turn.due == _NOT_YET:
            turn.due = turn.start + self.grace_tokens
        turn.price = 0.0
        self._held[request_id] = turn

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        """Charge an admitted request to the clock and to its lane.  O(1)."""
        name = request.request_id
        turn = self._turns.pop(name)
        self._back.pop(name, None)
        if self._new.pop(name, None) is None:
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
        """Learn the length of a complete answer.  O(1)."""
        self._running.pop(request_id, None)
        self.answers.add(float(tokens))

    def work_of(self, request: PendingRequest, uncached_tokens: int) -> float:
        """The work that a request costs if `uncached_tokens` of its prompt are not cached."""
        prompt = float(request.num_tokens if self._several else max(1, uncached_tokens))
        return prompt + DECODE_WEIGHT * self.answers.mean

    # -- orders ------------------------------------------------------------------------------------

    def merge(self, order: RequestStream, tree: PendingTree) -> RequestStream:
        """Return `order` with turns for overdue requests of `tree`; `order` itself if there are none.

        O(m log m) with m requests that came back after a preemption or were held, if one may be overdue.
        """
        self.stand_aside()
        back: list[PendingRequest] = []
        if self._soonest < self.clock:
            back = [tree.request(name) for name, turn in self._back.items() if turn.due < self.clock]
            back.sort(key=self.rank_of, reverse=True)
            self._soonest = min([turn.due for turn in self._back.values()], default=inf)
        turns = OverdueTurns(order, self, tree.handles(), self._back, back)
        self._in_use = turns.head is not None
        return turns if self._in_use else order

    def stand_aside(self) -> None:
        """Charge no lane for the next order, and forget what the lane placed before.  O(requests placed)."""
        for request in self._picked:
            request.lane = NO_LANE
        self._picked.clear()
        self._in_use = False

    def rank_of(self, request: PendingRequest) -> tuple[float, int]:
        """The due moment of a waiting request, infinity if it is not known, and its sequence.  O(1)."""
        turn = self._turns.get(request.request_id)
        return (inf if turn is None else turn.due, request.sequence)

    def pick(self, request: PendingRequest) -> None:
        """Note that the overdue lane has placed a request."""
        request.lane = FAIR_LANE
        self._picked.append(request)


@final
class OverdueTurns(RequestStream):
    """An order in which the oldest overdue request goes whenever the overdue lane is behind.

    Args:
        order: the policy's order of all waiting requests.
        lane: the lane as it stands; this order is not charged to it.
        waiting: all waiting requests as they entered the queue.
        returned: the turns of those that came back after a preemption or were held; the others are due in
            the order in which they came.
        back: the overdue requests of `returned`; the one due first is at the end.

    Attributes:
        head: the oldest overdue request that has not been placed; None if there is none.
    """

    def __init__(
        self,
        order: RequestStream,
        lane: OverdueLane,
        waiting: Iterator[Terminator],
        returned: dict[str, Turn],
        back: list[PendingRequest],
    ) -> None:
        self._order = order
        self._lane = lane
        self._lead: float = lane.lead
        self._waiting = waiting
        self._oldest: Terminator | None = next(waiting, None)
        self._returned = returned
        self._back = back
        self._placed: set[str] = set()
        self.head: PendingRequest | None = None
        self._advance()

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end.  O(1) plus the order's own cost."""
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
        """Find the next overdue request; a request behind one that is not overdue is not overdue either."""
        self.head = None
        placed, returned, back = self._placed, self._returned, self._back
        while back and back[-1].request_id in placed:
            back.pop()
        lane = self._lane
        while (placed or returned) and self._oldest is not None:
            name = self._oldest.request.request_id
            turn = returned.get(name)
            if name not in placed and (turn is None or turn.came + lane.grace_tokens >= lane.clock):
                break  # no request that came later is overdue, either
            self._oldest = next(self._waiting, None)
        head: PendingRequest | None = None if self._oldest is None else self._oldest.request
        if back and (head is None or lane.rank_of(back[-1]) < lane.rank_of(head)):
            head = back[-1]
        if head is not None and lane.rank_of(head)[0] < lane.clock:
            self.head = head
