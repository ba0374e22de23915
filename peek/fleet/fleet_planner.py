"""One queue in front of many replicas: where a request waits, whom a replica takes, who helps whom.

`FleetPlanner` does no I/O and knows no clock.  Whoever drives it, a router's actor or a simulated fleet,
makes the same calls:

    join, pause, resume, leave, lost    which replicas there are
    add, cancel                         who came, and who went away
    dispatch, take                      whom to send now, and where
    place                               for hosts that cannot hold a request: where to send it at once
    started, finished                   what became of those who were sent

Each request waits at a *home*, the replica that ends with it first if what is computed twice counts
`stickiness` times.  A `Planner` per replica orders those who wait there.  A replica is sent what it mostly
holds at once, anything else only while little queues there: so who waits can still go elsewhere.  A replica
that runs out of work takes over a part of the longest backlog (`peek.fleet.stealing`).
docs/fleet.md tells it at length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from peek.errors import InvalidConfig, NoReplica, QueueFull
from peek.fleet.config import FleetConfig
from peek.fleet.dispatching import Dispatcher
from peek.fleet.homes import Homes
from peek.fleet.members import Members
from peek.fleet.replica import Replica, new_replica
from peek.fleet.stats import FleetStats
from peek.fleet.status import ReplicaStatus, check_fleet, status_of
from peek.fleet.ticket import Ticket, Tickets
from peek.request import PendingRequest

if TYPE_CHECKING:
    from peek.protocols import CacheView

CACHE_TOKENS: Final = 200_000
"""A replica's cache, where the host does not say how large it is."""


@final
class FleetPlanner:
    """One queue in front of many replicas.

    For one thread at a time.  What a view raises goes to the caller; nobody is lost by it or sent unseen, and
    the next call goes on where that one ended.  Names of replicas and requests are the caller's.  Costs: R
    replicas, k symbols of a key, n requests that wait for the replica in question.

    >>> fleet = FleetPlanner()
    >>> fleet.join("gpu0"); fleet.join("gpu1")
    >>> fleet.add(PendingRequest("a", [1, 2, 3], arrival_time=0.0), decode_tokens=100)
    >>> fleet.dispatch(now=0.1)
    [('a', 'gpu1')]

    Args:
        config: settings.
    """

    def __init__(self, config: FleetConfig | None = None) -> None:
        settings = FleetConfig() if config is None else config
        self.config = settings
        self.stats = FleetStats()
        self._max_waiting: i64 = settings.max_waiting
        self._members = Members()
        self._homes = Homes(self._members, settings.stickiness, self.stats)
        self._tickets = Tickets(settings.unit_tokens)
        self._dispatcher = Dispatcher(settings, self._members, self._homes, self._tickets, self.stats)

    # -- replicas ------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        cache_tokens: int = CACHE_TOKENS,
        view: CacheView | None = None,
        speed: float = 1.0,
    ) -> None:
        """A replica is there, with an empty queue.  O(R), and O(k) for each request that had no home.

        Args:
            name: not in the fleet yet.
            cache_tokens: how much its prefix cache holds; of no use with a `view`.
            view: its cache, as it is or as it was seconds ago, in symbols of the fleet's `unit_tokens`.
                Without one it is guessed from what was sent there.
            speed: how many times faster it works than a replica of speed 1.0.

        Raises `InvalidConfig` for a name that is taken and for numbers and views that cannot be.
        """
        self._members.add(new_replica(name, self.config, view, cache_tokens, speed))
        self._homes.settle()

    def pause(self, name: str) -> None:
        """Send it nothing until `resume`.  Those who wait for it go on waiting, unless another is idle."""
        self._members.find(name).accepting = False
        self._homes.settled += 1

    def resume(self, name: str) -> None:
        """Send it requests again; `InvalidConfig` if it leaves."""
        replica = self._members.find(name)
        if replica.leaving:
            raise InvalidConfig(f"replica {name!r} leaves the fleet")
        replica.accepting = True
        replica.due = True
        replica.fruitless = -1

    def leave(self, name: str) -> None:
        """Send it nothing any more; it is out of the fleet once its last request has ended.

        Those who wait for it get another home.  O(R + k) for each.
        """
        replica = self._members.find(name)
        replica.accepting = False
        replica.leaving = True
        self._turn_out(replica)
        if not replica.under_way:
            self._members.drop(replica)
        self._homes.settle()

    def lost(self, name: str, requeue: bool = True) -> list[str]:
        """A replica is gone with all it had.  O(R + k) for each request that waited for it or was there.

        Args:
            requeue: those under way there wait again, in their old place by time of arrival.  False forgets
                them: for hosts that place requests at once, and will place these anew.

        Returns:
            Ids of those under way there.
        """
        replica = self._members.find(name)
        replica.leaving = True
        self._members.drop(replica)
        self._turn_out(replica)
        for request_id, ticket in replica.under_way.items():
            if requeue:
                ticket.sent = False
                ticket.started = False
                self._dispatcher.waiting += 1
                self.stats.requeued += 1
                self._homes.wait(ticket)
            else:
                del self._tickets.by_id[request_id]
        self._homes.settle()
        return list(replica.under_way)

    def forget_caches(self) -> None:
        """All replicas have emptied their prefix caches (new weights, say).  O(prompts remembered)."""
        for replica in self._members.all:
            replica.history.clear()

    def _turn_out(self, replica: Replica) -> None:
        """Those who wait for a replica have no home any more."""
        for request in replica.planner.tree.requests():
            ticket = self._tickets.by_id[request.request_id]
            replica.release(ticket)
            self.stats.moved += 1
            self._homes.wait(ticket)

    # -- requests ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Requests that wait.  O(1)."""
        return self._dispatcher.waiting

    def __contains__(self, request_id: object) -> bool:
        """Whether the request waits or is under way.  O(1)."""
        return request_id in self._tickets.by_id

    def home(self, request_id: str) -> str:
        """The replica that a request waits for or was sent to, "" if there is none.

        O(1); `UnknownRequest`.
        """
        replica = self._tickets.find(request_id).replica
        return "" if replica is None else replica.name

    def status(self) -> list[ReplicaStatus]:
        """The load of every replica, in the order in which they joined.  O(R)."""
        return [status_of(replica) for replica in self._members.all]

    def check(self) -> None:
        """Verify the bookkeeping; `AssertionError` names what is off.  O(requests + replicas)."""
        check_fleet(self._members, self._tickets.by_id, self._dispatcher.waiting)

    def add(self, request: PendingRequest, decode_tokens: int = 0, priority: int = 0) -> str:
        """A request waits from now on.  O(R k) at most, since each replica is asked what it holds.

        Args:
            request: its key is taken over.
            decode_tokens: tokens that its answer is expected to have; they count as load.
            priority: of those who wait for one replica the smaller number goes first.

        Returns:
            Its home, "" while there is no replica.

        Raises `QueueFull`, `DuplicateRequest` if it waits or is under way, `InvalidKey`; nothing has
        changed then.
        """
        if self._dispatcher.waiting >= self._max_waiting:
            self.stats.refused += 1
            raise QueueFull(f"{self._dispatcher.waiting} requests wait, max_waiting is {self._max_waiting}")
        ticket = self._tickets.made_for(request, decode_tokens, priority)
        self._tickets.keep(ticket)
        self.stats.added += 1
        self._dispatcher.waiting += 1
        self._homes.wait(ticket)
        self._homes.settle()
        return "" if ticket.replica is None else ticket.replica.name

    def place(self, request: PendingRequest, decode_tokens: int = 0) -> str:
        """Where to send a request now: for hosts that cannot hold one.  Arguments and cost of `add`.

        Raises `NoReplica` if none is accepting, `DuplicateRequest`, `InvalidKey`; nothing has changed then.
        """
        ticket = self._tickets.made_for(request, decode_tokens, 0)
        replica, work = self._homes.choose(ticket)
        if replica is None or not replica.accepting:
            raise NoReplica(f"none of {len(self._members.all)} replicas accepts requests")
        self._tickets.keep(ticket)
        replica.begin(ticket, work)
        self.stats.added += 1
        self.stats.dispatched += 1
        return replica.name

    def cancel(self, request_id: str) -> str:
        """A client went away or timed out: forget the request.  O(depth); `UnknownRequest`.

        Returns:
            The replica that the request was sent to and is still there, "" if it waited.
        """
        ticket = self._tickets.find(request_id)
        self.stats.cancelled += 1
        if ticket.sent:
            return self._end(ticket, False)
        del self._tickets.by_id[request_id]
        self._dispatcher.waiting -= 1
        self._homes.give_up(ticket)
        return ""

    def started(self, request_id: str, name: str) -> bool:
        """The first token of a request came from a replica; False, and nothing else, if it is not there."""
        ticket = self._tickets.sent_to(request_id, name)
        if ticket is None:
            return False
        replica = self._members.find(name)
        replica.start(ticket)
        replica.fruitless = -1
        return True

    def finished(self, request_id: str, name: str) -> bool:
        """A replica has answered a request; False, and nothing else, if it is not there.  O(depth)."""
        ticket = self._tickets.sent_to(request_id, name)
        if ticket is None:
            return False
        self.stats.finished += 1
        self._end(ticket, True)
        return True

    def _end(self, ticket: Ticket, computed: bool) -> str:
        """A request that was sent is done or given up; the name of its replica."""
        replica = ticket.replica
        assert replica is not None
        del self._tickets.by_id[ticket.request.request_id]
        replica.end(ticket, computed)
        replica.fruitless = -1
        if replica.leaving and not replica.under_way:
            self._members.drop(replica)
        return replica.name

    # -- who goes where ------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[tuple[str, str]]:
        """Whom to send now, and where: `(request id, replica)`, in the order in which they go.

        Fills the replicas that have room or hold what somebody needs, and lets idle ones help.  Each pair is
        told once.  O(R), and the cost of `take` for each of these.

        Args:
            now: seconds, on the clock of `PendingRequest.arrival_time`.
        """
        return self._dispatcher.send_all(now)

    def take(self, name: str, now: float) -> list[str]:
        """Whom to send to one replica that asks, in the order in which they go; none if it is to wait.

        O(n log n) for n who wait for it, O(k) for each that is sent; O(n) of the longest backlog more where
        nobody waits for it.  `UnknownReplica`.
        """
        return [request_id for request_id, _ in self._dispatcher.send_to(self._members.find(name), now)]
