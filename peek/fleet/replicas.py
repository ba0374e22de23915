"""One replica as a fleet sees it: requests that wait for it or run there, and what it will have cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from peek.fleet.config import FleetConfig
from peek.fleet.stats import ReplicaStatus
from peek.fleet.views import ReplicaView
from peek.planner.planner import Planner
from peek.request import PendingRequest

if TYPE_CHECKING:
    from peek.protocols import CacheView


DECODING: Final = 0.3  # what a computed token costs a request that decodes, relative to one that waits


@final
class Ticket:
    """What the fleet knows of a request that was given to `FleetPlanner.add` or `place`."""

    __slots__ = ("decode_tokens", "key", "priority", "replica", "request", "sent", "started", "work")

    def __init__(self, request: PendingRequest, key: bytes, decode_tokens: i64, priority: i64) -> None:
        self.request = request
        self.key = key  # its packed prompt; empty while it waits for a replica, whose planner then has it
        self.decode_tokens: i64 = decode_tokens  # expected tokens of its answer
        self.priority: i64 = priority
        self.replica: Replica | None = None  # the one it waits for or runs on
        self.work: i64 = 0  # uncached prompt tokens that it counts for there
        self.sent: bool = False  # whether it has gone to its replica
        self.started: bool = False  # whether its first token is known


@final
class Replica:
    """One replica as the fleet sees it, the `number`th that joined; only `FleetPlanner` changes it.

    `told` is a view of its cache, None if it reports none.  Others are arguments of `FleetPlanner.join`.
    """

    def __init__(
        self, name: str, number: i64, config: FleetConfig, told: CacheView | None, cache_tokens: i64,
        speed: float,
    ) -> None:  # fmt: skip
        unit: i64 = config.unit_tokens
        self.name = name
        self.number: i64 = number
        self.unit_tokens: i64 = unit
        self.speed: float = speed
        # Memory for requests, 0 if not known: with late news many that seem to hold memory have ended.
        self.memory_tokens: i64 = 0 if config.news_s > 0.0 else cache_tokens
        self.seats: i64 = config.seats
        self.stickiness: float = config.stickiness
        self.tells: bool = False  # whether it reports first tokens
        self.accepting: bool = True  # whether it may be sent requests: not while it is paused or leaving
        self.leaving: bool = False  # whether it goes once its last request has ended
        self.due: bool = False  # whether it may hold half of a request that waits for it
        # What it holds, including prompts on their way there.
        self.view = ReplicaView(told, cache_tokens // unit, unit)
        # Grows when a request that waits for it may share fewer tokens than before with others that wait, run
        # or were computed here.
        self.losses: i64 = 0
        # The requests that wait for it, their uncached and decode tokens, and how many have a priority.
        self.planner = Planner(config.order, unit_tokens=config.unit_tokens, learns=False)
        self.in_order_of_arrival: bool = config.order.policy == "fcfs"
        self.waiting_tokens: i64 = 0
        self.ranked: i64 = 0
        # The requests sent there, by id; the tokens of their answers; how many have no first token; and the
        # uncached tokens of these.
        self.under_way: dict[str, Ticket] = {}
        self.decode_tokens: i64 = 0
        self.unstarted: i64 = 0
        self.unstarted_tokens: i64 = 0
        self.other_requests: i64 = 0  # the load of other routers, see `FleetPlanner.other_load`
        self.other_tokens: i64 = 0
        self.usual_backlog: float = 0.0  # mean backlog when the last requests looked for a home here

    @property
    def backlog(self) -> float:
        """Tokens it has to compute and decode, divided by its speed.  O(1)."""
        own: i64 = self.waiting_tokens + self.unstarted_tokens + self.decode_tokens
        return float(own + self.other_tokens) / self.speed

    def wait(self, work: i64) -> float:
        """Return the part of its backlog ahead of a request that adds `work` tokens.  O(1).

        Requests that were sent go first.  Of those that wait here only the ones with less to compute do, so
        each counts as `work` at most.  In order of arrival all go first.
        """
        if self.in_order_of_arrival:
            return self.backlog
        overtaken: i64 = max(0, self.waiting_tokens - work * len(self.planner))
        return self.backlog - float(overtaken) / self.speed

    @property
    def queued(self) -> i64:
        """Number of requests that queue there, other routers' included.  O(1)."""
        return self.unstarted + self.other_requests

    @property
    def held_tokens(self) -> float:
        """Memory that requests sent there hold, in tokens: their prompts, and a whole answer each.  O(1).

        On average a request has half of its answer, but longer answers are under way for longer.
        """
        return float(self.view.pinned * self.unit_tokens + self.decode_tokens)

    @property
    def is_idle(self) -> bool:
        """Whether every request sent there, also by other routers, has ended.  O(1)."""
        return not self.under_way and self.other_requests == 0

    @property
    def is_full(self) -> bool:
        """Whether all seats are taken: by requests that decode and one prefill.  O(1).

        If the host does not report first tokens, every request sent there takes a seat.
        """
        taken: i64 = len(self.under_way) + self.other_requests
        if self.tells and self.unstarted > 1:
            taken -= self.unstarted - 1
        return 0 < self.seats <= taken

    def weight(self, waste: float) -> float:
        """Weight of a token computed there: 1, plus a part for each request that waits or decodes.  O(1).

        `waste`, 0.0 to 1.0, is how likely the token will not be used again.  It counts twice in a full cache,
        where the token takes another's room.
        """
        queued: i64 = self.unstarted + len(self.planner) + self.other_requests
        decoding: i64 = len(self.under_way) - self.unstarted
        delay = min(self.stickiness, 1.0 + float(queued) + DECODING * float(decoding))
        return delay + (2.0 * waste if self.view.history.full else waste)

    def status(self) -> ReplicaStatus:
        """Return its load.  O(1)."""
        queued, under_way = self.unstarted, len(self.under_way)
        return ReplicaStatus(self.name, self.accepting, len(self.planner), queued, under_way, self.backlog)

    def cold_tokens(self, request: PendingRequest, key: bytes) -> i64:
        """Return the prompt tokens of a request that its cache lacks, at least 1.  O(shared part)."""
        return max(1, request.num_tokens - self.view.held(key, request.namespace) * self.unit_tokens)

    def added_tokens(self, request: PendingRequest, key: bytes) -> i64:
        """Return the prompt tokens that a request adds to its work, at least 1.  O(shared part).

        A prefix adds nothing if it is cached, or if another request that waits here has it.
        """
        cold = self.cold_tokens(request, key)
        shared: i64 = self.planner.shared_symbols(key, request.namespace)
        return min(cold, max(1, request.num_tokens - shared * self.unit_tokens))

    # -- the way of a request ------------------------------------------------------------------------

    def hold(self, ticket: Ticket, work: i64) -> None:
        """Let a request wait for this replica; it adds `work` prompt tokens.  O(len(key))."""
        request = ticket.request
        request.key = ticket.key
        self.planner.add(request)
        ticket.key = b""
        ticket.replica = self
        ticket.work = work
        self._count_waiting(ticket, 1)

    def release(self, ticket: Ticket) -> None:
        """Let a request no longer wait for this replica; its ticket gets the key back.  O(len(key))."""
        request_id = ticket.request.request_id
        ticket.key = self.planner.key_of(request_id)
        ticket.replica = None
        self._count_waiting(ticket, -1)
        self.planner.remove(request_id, False)
        self._let_go(ticket)

    def pick(self, ticket: Ticket) -> None:
        """Send a request that waits here; `drop` must follow, once its lazy plan is done.  O(len(key))."""
        request = ticket.request
        key = self.planner.key_of(request.request_id)
        work = self.cold_tokens(request, key)
        ticket.key = key
        self._count_waiting(ticket, -1)
        self.begin(ticket, work)

    def _count_waiting(self, ticket: Ticket, change: i64) -> None:
        self.waiting_tokens += change * (ticket.work + ticket.decode_tokens)
        if ticket.priority != 0:
            self.ranked += change

    def drop(self, ticket: Ticket) -> None:
        """Remove a request that was picked from the queue.  O(depth)."""
        self.planner.remove(ticket.request.request_id, True, ticket.work)

    def begin(self, ticket: Ticket, work: i64) -> None:
        """Note a request sent here; the replica must compute `work` prompt tokens of it.  O(len(key))."""
        request = ticket.request
        ticket.replica = self
        ticket.work = work
        ticket.sent = True
        self.under_way[request.request_id] = ticket
        self.unstarted += 1
        self.unstarted_tokens += work
        self.decode_tokens += ticket.decode_tokens
        held = -((work - request.num_tokens) // self.unit_tokens)
        self.view.send(request.request_id, ticket.key, request.namespace, held)

    def start(self, ticket: Ticket) -> None:
        """Note the first token of a request: its prompt is in the cache.  O(len(key)), once."""
        if not ticket.started:
            self._leave_queue(ticket)
            request = ticket.request
            self.view.compute(request.request_id, ticket.key, request.namespace)

    def end(self, ticket: Ticket, computed: bool) -> None:
        """Remove a request sent here: it has ended (`computed`), or was given up.  O(len(key)) at most."""
        if computed:
            self.start(ticket)
        elif not ticket.started:
            self._leave_queue(ticket)
            self.view.give_up(ticket.request.request_id)
            self._let_go(ticket)
        self.view.end(ticket.request.request_id)
        self.decode_tokens -= ticket.decode_tokens
        del self.under_way[ticket.request.request_id]

    def forget_cache(self) -> None:
        """Note that its cache was emptied.  O(prompts held)."""
        self.view.forget()
        self.losses += 1

    def _let_go(self, ticket: Ticket) -> None:
        """Note a prompt that is no longer waiting or under way here.  O(shared part)."""
        key, namespace = ticket.key, ticket.request.namespace
        if self.planner.shared_symbols(key, namespace) > self.view.remembered(key, namespace):
            self.losses += 1

    def _leave_queue(self, ticket: Ticket) -> None:
        ticket.started = True
        self.unstarted -= 1
        self.unstarted_tokens -= ticket.work

    def check(self, tickets: dict[str, Ticket]) -> None:
        """Verify that each request is only here, and that each sum is right; `AssertionError`."""
        queue = [tickets[request.request_id] for request in self.planner.requests()]
        for ticket in queue:
            assert ticket.replica is self and not ticket.sent, "a request waits where it is not"
        for request_id, ticket in self.under_way.items():
            assert tickets[request_id] is ticket, "under way and unknown"
            assert ticket.replica is self and ticket.sent, "a request is under way where it is not"
        sent = list(self.under_way.values())
        new = [ticket for ticket in sent if not ticket.started]
        assert self.waiting_tokens == sum(t.work + t.decode_tokens for t in queue), "waiting tokens"
        assert self.ranked == sum(t.priority != 0 for t in queue), "requests with a priority"
        assert self.decode_tokens == sum(t.decode_tokens for t in sent), "tokens of answers"
        assert self.unstarted_tokens == sum(t.work for t in new), "unstarted tokens"
        assert self.unstarted == len(new) == len(self.view.coming), "unstarted requests"
        assert len(sent) == len(self.view.under_way), "requests that hold memory"
        assert sent or not self.leaving, "a replica that left is there"
