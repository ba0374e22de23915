"""One queue in front of many replicas: where a request waits, what a replica gets next, which replica helps.

`FleetPlanner` does no I/O and knows no clock.  Its driver, a router's actor or a simulated fleet, calls:

    join, pause, resume, leave, lost    which replicas there are
    add, cancel                         which requests came, and which were given up
    dispatch, take                      which requests to send now, and where
    place                               for hosts that cannot hold a request: where to send it at once
    other_load, other_prompt            what routers with planners of their own do at these replicas
    started, finished                   which requests have a first token, and which have ended

Each request waits for a *home* (`peek.fleet.placement`), where a `Planner` orders the requests.  It is sent
at once if the replica holds half of it, otherwise only while little queues there.  A replica that runs out of
work takes over a part of the longest backlog (`peek.fleet.stealing`).  docs/fleet.md has the details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, final

from mypy_extensions import i64

from peek.errors import DuplicateRequest, InvalidConfig, NoReplica, QueueFull, UnknownReplica, UnknownRequest
from peek.fleet.config import FleetConfig
from peek.fleet.placement import Placement
from peek.fleet.replicas import Replica, Ticket
from peek.fleet.stats import FleetStats, ReplicaStatus
from peek.fleet.stealing import Looks
from peek.request import PendingRequest
from peek.settings import require_within
from peek.trie.continuations import Continuations
from peek.trie.dual_walk import block_symbols_of, unit_tokens_of
from peek.trie.keys import pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from peek.planner.plan import LazyPlan
    from peek.protocols import CacheView

CACHE_TOKENS: Final = 200_000  # size of a replica's cache if the host does not give it
MOST_PROMPTS: Final = 65_536  # prompts whose ends are remembered to infer sessions: enough for many replicas


@final
class FleetPlanner:
    """One queue in front of many replicas.

    For one thread at a time.  An error of a view goes to the caller; no request is lost by it or sent
    unreported, and the next call continues there.  The caller names replicas and requests.  In costs, R is
    the number of replicas, k that of a key's symbols, n that of the requests that wait for the replica.
    A copy or pickle is refused with `TypeError`.

    >>> fleet = FleetPlanner()
    >>> fleet.join("gpu0"); fleet.join("gpu1")
    >>> fleet.add(PendingRequest("a", [1, 2, 3], arrival_time=0.0), decode_tokens=100)
    >>> fleet.dispatch(now=0.1)
    [('a', 'gpu1')]
    """

    def __init__(self, config: FleetConfig | None = None) -> None:
        settings = FleetConfig() if config is None else config
        self.config = settings
        self.stats = FleetStats()
        self._max_waiting: i64 = settings.max_waiting
        self._window_tokens: float = float(settings.window_tokens)
        self._late_tokens: float = settings.news_s * settings.tokens_per_s
        self._window_requests: i64 = settings.window_requests
        self._warm_requests: i64 = int(settings.warm_requests * (1.0 + settings.news_s))
        self._replicas: dict[str, Replica] = {}  # by name, in the order in which they joined
        self._placement = Placement(self._replicas, self.stats, settings.asked_whole)
        self._loads = self._placement.loads
        self._continuations = Continuations(settings.unit_tokens, MOST_PROMPTS)
        self._joined: i64 = 0
        self._tickets: dict[str, Ticket] = {}  # all requests that wait or are under way, by id
        self._looks = Looks(self._tickets)
        self._sent: dict[str, str] = {}  # requests that were sent and not yet reported, each with its replica
        self._waiting: i64 = 0  # number of waiting requests, including ones without a home

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a FleetPlanner cannot be copied or pickled: make a new one, join and add again")

    # -- replicas ------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        cache_tokens: int = CACHE_TOKENS,
        view: CacheView | None = None,
        speed: float = 1.0,
    ) -> None:
        """Add a replica with an empty queue.  O(1), plus `add` for each request without a home.

        Args:
            name: a name that is not in the fleet yet.
            cache_tokens: size of its KV cache.  It bounds the prompts that are remembered, and requests avoid
                a replica at which those under way would leave them no memory.  0: neither.
            view: its cache, as it is or was seconds ago, in symbols of the fleet's `unit_tokens`.  Without a
                view its content is guessed from the requests sent there.
            speed: its speed as a multiple of a replica of speed 1.0.

        Raises `InvalidConfig` for a name that is taken, and for impossible numbers and views.
        """
        require_within("cache_tokens", cache_tokens, 0, 2**60)
        require_within("speed", speed, 1e-6, 1e6)
        unit = self.config.unit_tokens
        if view is not None and (unit_tokens_of(view) != unit or block_symbols_of(view) > 1):
            has = f"{unit_tokens_of(view)} tokens a symbol and {block_symbols_of(view)} symbols a block"
            raise InvalidConfig(f"view of {name!r} has {has}; need {unit} and 1")
        if name in self._replicas:
            raise InvalidConfig(f"replica {name!r} is in the fleet already")
        self._joined += 1
        replica = Replica(name, self._joined, self.config, view, cache_tokens, speed)
        self._replicas[name] = replica
        self._loads.touch(replica)
        self._placement.settle()

    def pause(self, name: str) -> None:
        """Send a replica nothing until `resume`.  Its requests wait on, or idle replicas take them over."""
        replica = self._replica(name)
        replica.accepting = False
        self._loads.touch(replica)

    def resume(self, name: str) -> None:
        """Send a replica requests again; if it was to leave and has not gone yet, it stays."""
        replica = self._replica(name)
        replica.accepting = True
        replica.leaving = False
        replica.due = True
        self._loads.touch(replica)
        self._placement.settle()

    def leave(self, name: str) -> None:
        """Send a replica nothing more; it leaves the fleet once its last request has ended.

        Requests that wait for it get another home, each at the cost of `add`.
        """
        replica = self._replica(name)
        replica.accepting = False
        replica.leaving = True
        self._turn_out(replica)
        if not replica.under_way:
            del self._replicas[name]
        self._placement.settle()

    def lost(self, name: str, requeue: bool = True) -> list[str]:
        """Remove a replica that is gone; return the ids of the requests that were under way there.

        With `requeue` these wait again, in their old place by arrival time.  Without it they are forgotten:
        for hosts that use `place`, and will place them again.  The cost of `add` for each request there.
        """
        replica = self._replica(name)
        replica.leaving = True
        del self._replicas[replica.name]
        self._turn_out(replica)
        for request_id, ticket in replica.under_way.items():
            self._sent.pop(request_id, None)
            if requeue:
                ticket.sent = False
                ticket.started = False
                self._waiting += 1
                self.stats.requeued += 1
                self._placement.wait(ticket)
            else:
                del self._tickets[request_id]
        self._placement.settle()
        return list(replica.under_way)

    def forget_caches(self) -> None:
        """Note that all replicas have emptied their prefix caches (new weights).  Sessions lose their homes.

        O(prompts remembered).
        """
        self._placement.forget_caches()
        for replica in self._replicas.values():
            replica.forget_cache()

    def _replica(self, name: str) -> Replica:
        replica = self._replicas.get(name)
        if replica is None:
            known = ", ".join(self._replicas) or "none"
            raise UnknownReplica(f"replica {name!r} is not in the fleet; there are: {known}")
        return replica

    def _turn_out(self, replica: Replica) -> None:
        """Leave all requests that wait for a replica without a home; it gets no more."""
        self._loads.drop(replica)
        self._looks.drop(replica)
        for request in replica.planner.requests():
            ticket = self._tickets[request.request_id]
            replica.release(ticket)
            self.stats.moved += 1
            self._placement.wait(ticket)

    # -- requests ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of waiting requests.  O(1)."""
        return self._waiting

    def __contains__(self, request_id: object) -> bool:
        """Whether the request waits or is under way.  O(1)."""
        return request_id in self._tickets

    def home(self, request_id: str) -> str:
        """Return the replica that a request waits for or was sent to, or "".  O(1); `UnknownRequest`."""
        replica = self._find(request_id).replica
        return "" if replica is None else replica.name

    def status(self) -> list[ReplicaStatus]:
        """Return the load of every replica, in the order in which they joined.  O(R)."""
        return [replica.status() for replica in self._replicas.values()]

    def check(self) -> None:
        """Verify the bookkeeping; `AssertionError` names the mismatch.  O(requests + replicas)."""
        tickets = self._tickets
        homeless = 0
        for ticket in tickets.values():
            if ticket.replica is None:
                assert not ticket.sent and ticket.key, "a request is nowhere"
                homeless += 1
        waiting = homeless
        under_way = 0
        for replica in self._replicas.values():
            replica.check(tickets)
            waiting += len(replica.planner)
            under_way += len(replica.under_way)
        for request_id, name in self._sent.items():
            assert self._find_sent(request_id, name) is not None, "unreported and not sent"
        assert self._placement.unplaced == homeless, "a request without a home waits for none"
        assert self._waiting == waiting, "waiting requests"
        assert len(tickets) == waiting + under_way, "a request is lost"

    def _find(self, request_id: str) -> Ticket:
        ticket = self._tickets.get(request_id)
        if ticket is None:
            raise UnknownRequest(f"request {request_id!r} neither waits nor is under way")
        return ticket

    def _find_sent(self, request_id: str, name: str) -> Ticket | None:
        """Return the ticket of a request that is under way at a replica; None for any other.  O(1)."""
        ticket = self._tickets.get(request_id)
        if ticket is None or not ticket.sent or ticket.replica is None or ticket.replica.name != name:
            return None
        return ticket

    def _ticket_for(self, request: PendingRequest, decode_tokens: int, priority: int) -> Ticket:
        """Make a ticket for a new request, without storing it; fills in its length and session.  O(k)."""
        if request.request_id in self._tickets:
            raise DuplicateRequest(f"request {request.request_id!r} waits or is under way already")
        require_within("decode_tokens", decode_tokens, 0, 2**40)
        require_within("priority", priority, -(2**40), 2**40)
        key = pack(request.key)
        if request.num_tokens == 0:
            request.num_tokens = ((len(key) >> 2) + request.tail) * self.config.unit_tokens
        if not request.session:
            request.session = self._continuations.session_of(request.request_id, key, request.namespace)
        return Ticket(request, key, decode_tokens, priority)

    def add(self, request: PendingRequest, decode_tokens: int = 0, priority: int = 0) -> str:
        """Add a waiting request.  O(k) for each replica asked: all, or a few if more than `asked_whole`.

        Args:
            request: its key is taken over.
            decode_tokens: expected tokens of its answer; they count as load.
            priority: among requests that wait for one replica, a smaller number goes first.

        Returns:
            Its home, "" while there is no replica.

        Raises `QueueFull`, `DuplicateRequest` if it waits or is under way, `InvalidKey`; nothing has changed.
        """
        if self._waiting >= self._max_waiting:
            self.stats.refused += 1
            raise QueueFull(f"{self._waiting} requests wait, max_waiting is {self._max_waiting}")
        ticket = self._ticket_for(request, decode_tokens, priority)
        self._tickets[request.request_id] = ticket
        self.stats.added += 1
        self._waiting += 1
        self._placement.wait(ticket)
        self._placement.settle()
        return "" if ticket.replica is None else ticket.replica.name

    def place(self, request: PendingRequest, decode_tokens: int = 0, at: str = "") -> str:
        """Choose the replica to send a request to now, for hosts that cannot hold it.  Otherwise as `add`.

        Args:
            at: the replica that the host has chosen, paused or not; "" lets the planner choose.

        Raises `NoReplica` if none is accepting, `UnknownReplica`, `DuplicateRequest`, `InvalidKey`; nothing
        has changed then.
        """
        ticket = self._ticket_for(request, decode_tokens, 0)
        if not at and not any(each.accepting for each in self._replicas.values()):
            raise NoReplica(f"none of {len(self._replicas)} replicas accepts requests")
        replica = self._replica(at) if at else self._placement.choose(ticket)[0]
        assert replica is not None
        work = replica.cold_tokens(request, ticket.key)  # whatever waits there comes later
        self._tickets[request.request_id] = ticket
        replica.begin(ticket, work)
        self._placement.went(ticket, replica)
        if not replica.leaving:
            self._loads.touch(replica)
        self.stats.added += 1
        self.stats.dispatched += 1
        return replica.name

    def other_load(self, name: str, requests: int, tokens: int) -> None:
        """Set the load that other routers have at a replica, in place of the earlier one.  O(1).

        It counts as backlog, takes seats, and counts as queued for the windows.  It is the number of their
        `requests` that have not ended there, and the `tokens` that these have to compute and decode.

        `UnknownReplica`, `InvalidConfig`.
        """
        require_within("requests", requests, 0, 2**40)
        require_within("tokens", tokens, 0, 2**60)
        replica = self._replica(name)
        replica.other_requests = requests
        replica.other_tokens = tokens if requests > 0 else 0
        if not replica.leaving:
            self._loads.touch(replica)

    def other_prompt(self, request: PendingRequest, name: str) -> None:
        """Note the prompt and session of a request that another router sent to a replica.  O(k).

        `other_load` tells its load.  Raises `UnknownReplica`, `InvalidKey`.
        """
        key = pack(request.key)
        replica = self._replica(name)
        replica.view.learn(request.request_id, key, request.namespace)
        self._placement.note(request, key, replica)

    def cancel(self, request_id: str) -> str:
        """Forget a request whose client went away or timed out.  O(depth); `UnknownRequest`.

        Returns the replica that it was sent to; "" if it waited or the caller was not told to send it yet.
        """
        ticket = self._find(request_id)
        self.stats.cancelled += 1
        if ticket.sent:
            unreported = request_id in self._sent
            name = self._end(ticket, False)
            return "" if unreported else name
        del self._tickets[request_id]
        self._waiting -= 1
        self._placement.give_up(ticket)
        return ""

    def started(self, request_id: str, name: str) -> bool:
        """Note the first token of a request at a replica; return False if it is not there.  O(k)."""
        ticket = self._find_sent(request_id, name)
        if ticket is None:
            return False
        replica = self._replica(name)
        replica.start(ticket)
        replica.tells = True
        self._loads.touch(replica)
        return True

    def finished(self, request_id: str, name: str) -> bool:
        """Note that a replica has answered a request; return False if it is not there.  O(depth)."""
        ticket = self._find_sent(request_id, name)
        if ticket is None:
            return False
        self.stats.finished += 1
        self._end(ticket, True)
        return True

    def _end(self, ticket: Ticket, computed: bool) -> str:
        """Forget a sent request that has ended or was given up; return the name of its replica."""
        replica = ticket.replica
        assert replica is not None
        request_id = ticket.request.request_id
        del self._tickets[request_id]
        self._sent.pop(request_id, None)
        replica.end(ticket, computed)
        if not replica.view.guesses:
            self._looks.renew(replica)
        if not replica.leaving:
            self._loads.touch(replica)
        elif not replica.under_way:
            del self._replicas[replica.name]
            self._loads.drop(replica)
        return replica.name

    # -- which request goes where --------------------------------------------------------------------

    def dispatch(self, now: float) -> list[tuple[str, str]]:
        """Return the requests to send now as `(request id, replica)`, each once, in the order to send them.

        Fills replicas that have room or hold what a request needs, and lets idle ones help.  `now` is in
        seconds, on the clock of `PendingRequest.arrival_time`.  Costs a `take` for each replica with news and
        O(idle replicas) while any request waits.  Idle ones search only if a request may have become cheaper.
        """
        if self._waiting == 0:
            return self._take_sent()
        self._placement.settle()
        news = self._loads.news
        for replica in sorted(news, key=_number):
            if replica.accepting and len(replica.planner) > 0 and self._may_send(replica):
                self._send(replica, now)
            news.pop(replica, None)
        helped = True
        while helped and self._waiting > 0:  # a replica that was helped may now be able or need to help
            helped = False
            victim = self._loads.neediest()
            for replica in self._loads.idle():
                if self._help(replica, victim):
                    self._send(replica, now)
                    helped = True
                    victim = self._loads.neediest()
        return self._take_sent()

    def take(self, name: str, now: float) -> list[str]:
        """Return the requests to send to one replica that asks, in order; if there are none, it has to wait.

        The cost of a lazy plan of the requests that wait for it, and O(k) for each request sent.  If none
        waits for it, also the search for requests to take from the longest backlog.  `UnknownReplica`.
        """
        replica = self._replica(name)
        self._placement.settle()
        if replica.accepting and (len(replica.planner) > 0 or self._help(replica, self._loads.neediest())):
            self._send(replica, now)
        sent = [request_id for request_id, at in self._sent.items() if at == name]
        for request_id in sent:
            del self._sent[request_id]
        return sent

    def _take_sent(self) -> list[tuple[str, str]]:
        """Return all requests sent and not yet reported, including those of a call that ended in an error."""
        sent = list(self._sent.items())
        self._sent.clear()
        return sent

    def _has_room(self, replica: Replica) -> bool:
        """Whether a replica may get a request that it does not hold: little queues there.  O(1)."""
        if replica.queued >= self._warm_requests:
            return False
        if replica.queued < self._window_requests:
            return True
        return float(replica.unstarted_tokens) < self._window_tokens + self._late_tokens * replica.speed

    def _may_send(self, replica: Replica) -> bool:
        """Whether a request that waits for it may be sent, as far as is known without a plan.  O(1)."""
        return self._has_room(replica) or (replica.due and replica.queued < self._warm_requests)

    def _send(self, replica: Replica, now: float) -> None:
        """Send a replica the requests that wait for it, in planned order, as far as its window allows."""
        while len(replica.planner) > 0:
            replica.due = True  # until the whole plan has been looked at: a view may fail before that
            plan = replica.planner.lazy_plan(replica.view, now)
            picked: list[Ticket] = []
            try:
                more = self._pick(replica, self._in_rank(plan) if replica.ranked > 0 else plan, picked)
            finally:
                for ticket in picked:
                    replica.drop(ticket)
                self._loads.touch(replica)
            if not more:  # otherwise plan again: other requests may share what is new there
                return

    def _pick(self, replica: Replica, plan: Iterable[str], picked: list[Ticket]) -> bool:
        """Pick the requests of a plan to send; return whether it picked all, and any brings a new prefix."""
        brought = False
        for request_id in plan:
            if replica.queued >= self._warm_requests:
                return False
            ticket = self._tickets[request_id]
            if 2 * replica.planner.cached_len(request_id) < ticket.request.num_tokens:
                if not self._has_room(replica):
                    replica.due = False
                    return False
                brought = True
            replica.pick(ticket)
            picked.append(ticket)
            self._waiting -= 1
            self.stats.dispatched += 1
            self._sent[request_id] = replica.name
        replica.due = False
        return brought

    def _in_rank(self, plan: LazyPlan) -> list[str]:
        """Return a plan's requests, smaller priorities first, equal ones as planned.  O(n log n)."""
        whole = plan.rest(0)
        tickets = self._tickets
        order = sorted([(tickets[name].priority, place) for place, name in enumerate(whole)])
        return [whole[place] for _, place in order]

    def _help(self, thief: Replica, victim: Replica | None) -> bool:
        """Let a replica for which no request waits take over a part of another's backlog; whether it did."""
        if victim is None or not self._has_room(thief):
            return False
        taken = self._looks.worth_taking(victim, thief)
        if not taken:
            return False
        self.stats.steals += 1
        self._loads.touch(victim)
        self._loads.touch(thief)
        for request_id in taken:
            ticket = self._tickets[request_id]
            work = thief.added_tokens(ticket.request, victim.planner.key_of(request_id))  # its view may fail
            victim.release(ticket)
            self._placement.went(ticket, thief)
            thief.hold(ticket, work)
            self.stats.stolen += 1
        return True


def _number(replica: Replica) -> int:
    return replica.number
