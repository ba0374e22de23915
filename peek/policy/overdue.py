"""A lane for those whom arrival order would have served by now.

Beside the engine stands a virtual one that serves the same requests in the order of their arrival.  Both
are measured in *work*, on one clock: tokens to compute, and `DECODE_WEIGHT` for each token of the mean
answer.  The clock stands at the work that has been admitted.  A request that arrives is *due* when the
virtual engine comes to it: behind all that came before, each priced with what the cache held when it came,
because that is what arrival order would have found (virtual finish times, as in fair queueing: Demers, Keshav
and Shenker, 1989), but not before `grace_tokens` of work since it came.  It is *overdue* when the clock has
passed that.

Overdue requests, oldest first, get `fair_share` of the work by stride scheduling; before that nobody is
treated differently.  The bound that follows is in docs/lanes.md.  Where several namespaces wait, hits do not
count, so that no namespace's order tells what another one has cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from peek.policy.base import Cycle
from peek.policy.lanes import CACHE_LANE, FAIR_LANE, Lanes, check_share
from peek.policy.stream import Listed, RequestStream, everybody
from peek.policy.tenants import DECODE_WEIGHT
from peek.request import NO_LANE, PendingRequest
from peek.settings import require_lead
from peek.trie.node import Terminator
from peek.trie.pending_tree import PendingTree

MEMORY: Final = 256.0
"""Answers that the mean length looks back on."""


def check_grace(grace_tokens: object) -> None:
    """`InvalidConfig` unless it is a number of tokens; infinity for a lane that is never used."""
    require_lead("grace_tokens", grace_tokens)


@final
class OverdueLane(Lanes):
    """The virtual engine in arrival order, and which lane is behind.

    Args:
        fair_share: part of the work that goes to overdue requests while there are any, in (0, 1).
        grace_tokens: work that is admitted after a request has come before it can be overdue.
    """

    def __init__(self, fair_share: float = 0.15, grace_tokens: float = 500_000.0) -> None:
        check_share(fair_share)
        check_grace(grace_tokens)
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
        self._new: dict[str, PendingRequest] = {}
        self._picked: list[PendingRequest] = []
        self._in_use = False
        self._several = False

    # -- who comes and goes ------------------------------------------------------------------------

    def arrived(self, request: PendingRequest) -> None:
        """A request began to wait; what stands before it is known with the next `price`.  O(1)."""
        request.turn = self.clock  # until it is priced
        request.price = 0.0
        self._new[request.request_id] = request

    def price(self, several: bool) -> None:
        """Put those who have come since the last call behind each other.  O(those).

        Their cached lengths are known.  `several`: requests of more than one namespace wait.
        """
        self._several = several
        for request in self._new.values():
            held = max(request.cached_len, request.coming_len)
            request.price = self.work_of(request, request.num_tokens - held)
            came = request.turn
            request.turn = max(self.virtual, came)
            request.due = max(request.turn, came + self.grace_tokens)
            self.virtual = request.turn + request.price
        self._new.clear()

    def withdrawn(self, request: PendingRequest) -> None:
        """A request left without being served, and the virtual engine has the rest of its price less to do.

        Whoever is behind it there keeps the turn that he has.  O(1).
        """
        self._new.pop(request.request_id, None)
        rest = min(request.price, request.turn + request.price - self.clock)
        self.virtual -= max(0.0, rest)

    def charge(self, request: PendingRequest, uncached_tokens: int) -> None:
        self._new.pop(request.request_id, None)
        work = self.work_of(request, uncached_tokens)
        self.clock += work
        if not self._in_use:
            return
        if request.lane == FAIR_LANE:
            self.lead += work / self.fair_share
        else:
            self.lead -= work / (1.0 - self.fair_share)

    def answered(self, tokens: int) -> None:
        """Somebody's answer is complete, of so many tokens.  O(1)."""
        self._answers = min(MEMORY, self._answers + 1.0)
        self.answer_tokens += (float(tokens) - self.answer_tokens) / self._answers

    def work_of(self, request: PendingRequest, uncached_tokens: int) -> float:
        """What a request costs, if so much of it is not cached."""
        prompt = float(request.num_tokens if self._several else max(1, uncached_tokens))
        return prompt + DECODE_WEIGHT * self.answer_tokens

    # -- one order ---------------------------------------------------------------------------------

    def merge(self, order: RequestStream, tree: PendingTree) -> RequestStream:
        """`order` with the turns of those in `tree` who are overdue; `order` itself if nobody is.  O(1)."""
        for request in self._picked:
            request.lane = NO_LANE
        self._picked.clear()
        turns = OverdueTurns(order, self, tree.handles())
        self._in_use = turns.head is not None
        return turns if self._in_use else order

    def pick(self, request: PendingRequest) -> None:
        """Note that the overdue lane has placed somebody."""
        request.lane = FAIR_LANE
        self._picked.append(request)

    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        return everybody(self.merge(Listed(cache_lane), cycle.tree))


@final
class OverdueTurns(RequestStream):
    """An order in which the oldest overdue request goes whenever its lane is behind.

    Args:
        order: the policy's, of all who wait.
        lane: as it stands; the order to come is not charged to it.
        waiting: those who wait, oldest first.

    Attributes:
        head: the oldest who is overdue and has not been placed; None if nobody is.
    """

    __slots__ = ("_lane", "_lead", "_order", "_placed", "_waiting", "head")

    def __init__(self, order: RequestStream, lane: OverdueLane, waiting: Iterator[Terminator]) -> None:
        self._order = order
        self._lane = lane
        self._lead: float = lane.lead
        self._waiting = waiting
        self._placed: set[str] = set()
        self.head: PendingRequest | None = None
        self._advance()

    def next(self) -> PendingRequest | None:
        """Whoever goes next; None at the end.  O(1) and the order's own cost."""
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
        """To the next who is overdue; nobody behind one who is not."""
        self.head = None
        terminator = next(self._waiting, None)
        while terminator is not None and terminator.request.request_id in self._placed:
            terminator = next(self._waiting, None)
        if terminator is not None and terminator.request.due < self._lane.clock:
            self.head = terminator.request
