"""Decides where and when one router sends its requests, with a planner of its own.

A request goes at once if its home has a free seat, or if its home has room and holds half of its prompt.
Otherwise it waits here.  The planner also knows the loads and prompts of the deployment's other routers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

from peek.adapters.fleet_metrics import imbalance
from peek.adapters.ray_serve.settings import fleet_config, seats_of
from peek.errors import PeekError, UnknownReplica
from peek.fleet import FleetPlanner
from peek.request import PendingRequest

logger = logging.getLogger("ray.serve.peek")

ASIDE_S: Final = 60.0  # seconds for which Ray's own rule decides after an internal error
REST_S: Final = 0.1  # seconds for which a replica gets nothing after a refusal; doubled by each further one
LONGEST_REST_S: Final = 1.6  # upper bound of such a rest, in seconds
LONGEST_REQUEST_S: Final = 3600.0  # seconds after which a request counts as ended if Ray reports no end
MOST_UNTOLD: Final = 1000  # most prompts that are kept for the other routers while the exchange is away


class Asked(NamedTuple):
    """A request as routers describe it to each other."""

    key: bytes  # packed symbols of the prompt, of `num_tokens` tokens
    num_tokens: int
    namespace: str  # requests of different namespaces share no KV
    decode_tokens: int  # expected length of the answer, tokens
    session: str = ""  # name of the conversation that it belongs to, "" if unknown
    replica: str = ""  # name of the replica that it was sent to, "" before that


WAITING: Final = ""
Loads = dict[str, tuple[int, int]]
"""By replica: number of requests and their tokens.  Under `WAITING`: those that wait in the router."""


@dataclass(eq=False)
class Sent:
    """A request that this router has sent."""

    serial: int
    replica: str
    since_s: float
    gone: bool = False  # whether Ray has sent it, and so will report its end there, even if it is refused
    taken: bool = False  # whether it is known that the replica has not refused it


class Decider:
    """A planner, and what one router knows of the replicas.  Does no I/O; call it from one thread.

    After an internal error it decides nothing for `ASIDE_S`.  `later` runs a function at the end of this turn
    of the event loop, so that requests that come together are ordered together.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], None]], object] = lambda send: send(),
    ) -> None:
        self.name = uuid4().hex[:12]
        self.fallbacks = 0  # number of internal errors
        self.by_rays_rule = 0  # number of requests that were left to Ray's own rule
        self._options = options
        self._clock = clock
        self._later = later
        self._sends_later = False
        self._fleet: FleetPlanner | None = FleetPlanner(fleet_config(options))
        self._aside_until = 0.0
        self._serial = 0
        self._replicas: set[str] = set()
        self._resting: dict[str, float] = {}  # resting replicas, and when each rest ends
        self._rest_s: dict[str, float] = {}  # length of a replica's last rest, until it completes a request
        self._waiting: dict[int, tuple[Asked, Callable[[Sent | None], None]]] = {}
        self._under_way: dict[int, Sent] = {}
        self._tries: dict[str, list[Sent]] = {}  # by Ray's id of a request, also refused ones, in that order
        self._others: Loads = {}
        self._theirs = 0  # number of the other routers' requests, including waiting ones
        self._untold: deque[Asked] = deque(maxlen=MOST_UNTOLD)

    def status(self) -> dict[str, Any]:
        """Return whether the planner decides, its counters, and the load of each replica."""
        replicas = [] if self._fleet is None else self._fleet.status()
        return {
            "active": self._fleet is not None,
            "fallbacks": self.fallbacks,
            "by_rays_rule": self.by_rays_rule,
            "waiting": len(self._waiting),
            "replicas": {each.name: each._asdict() for each in replicas},
            "imbalance": imbalance(replicas),
            **({} if self._fleet is None else self._fleet.stats.as_dict()),
        }

    # -- requests --------------------------------------------------------------------------------------

    def ask(self, asked: Asked, ready: Callable[[Sent | None], None], age_s: float = 0.0) -> int:
        """Take a new request, which arrived `age_s` ago; return its number, for `give_up`.

        `ready` is called once the request may go, before this method returns or later.  Its argument says
        where the request goes; None leaves the choice to Ray's own rule.
        """
        self._serial += 1
        serial = self._serial
        self.tick()
        self._waiting[serial] = (asked, ready)
        if self._fleet is None:
            self._answer(serial, "")
            return serial
        try:
            with self._contained(PeekError):
                request = self._pending(self._name_of(serial), asked, age_s)
                if self._is_quiet():
                    self._answer(serial, self._fleet.place(request, asked.decode_tokens))
                else:
                    self._fleet.add(request, asked.decode_tokens)
        except PeekError as error:
            logger.error("a request that peek cannot place goes by Ray Serve's own rule: %s", error)
            self._answer(serial, "")
        self._send_later()
        return serial

    def note(self, asked: Asked, replica: str) -> Sent | None:
        """Count a request that Ray's own rule sent to `replica`; None if that replica is unknown."""
        self._serial += 1
        if self._fleet is not None and replica in self._replicas:
            with suppress(PeekError), self._contained(PeekError):
                request = self._pending(self._name_of(self._serial), asked)
                self._fleet.place(request, asked.decode_tokens, replica)
                return self._keep(self._serial, asked, replica)
        return None

    def _is_quiet(self) -> bool:
        """Whether every replica has a free seat for a new request, so that no order is needed."""
        at_work = len(self._under_way) + self._theirs
        accepting = len(self._replicas) - len(self._resting)
        return len(self._waiting) == 1 and accepting > 0 and at_work < seats_of(self._options)

    def _name_of(self, serial: int) -> str:
        return f"{self.name}#{serial}"

    def _send_later(self) -> None:
        if self._waiting and not self._sends_later:
            self._sends_later = True
            self._later(self._send)

    def _send(self) -> None:
        """Send the waiting requests that may go now."""
        self._sends_later = False
        if self._fleet is not None and self._waiting:
            with self._contained():
                for request, replica in self._fleet.dispatch(self._clock()):
                    self._answer(int(request.rpartition("#")[2]), replica)

    def _answer(self, serial: int, replica: str) -> None:
        """End a request's wait: it goes to `replica`, or by Ray's own rule if that is ""."""
        asked, ready = self._waiting.pop(serial)
        self.by_rays_rule += not replica
        ready(self._keep(serial, asked, replica) if replica else None)

    def _keep(self, serial: int, asked: Asked, replica: str) -> Sent:
        sent = self._under_way[serial] = Sent(serial, replica, self._clock())
        self._untold.append(asked._replace(replica=replica))
        return sent

    def _pending(self, name: str, asked: Asked, age_s: float = 0.0) -> PendingRequest:
        arrived = self._clock() - age_s
        return PendingRequest(
            name, asked.key, arrived, asked.namespace, asked.num_tokens, session=asked.session
        )

    def tried(self, request: str, sent: Sent) -> None:
        """Note that Ray has sent a request (`request` is Ray's id) to the replica chosen for it."""
        self._tries.setdefault(request, []).append(sent)

    def left(self, request: str, replica: str) -> Sent | None:
        """Return the request with Ray's id that has left a replica, however it ended; None if unknown."""
        sent = next((each for each in self._tries.get(request, []) if each.replica == replica), None)
        if sent is not None:
            self._forget(request, sent)
        return sent

    def refused(self, request: str, sent: Sent) -> None:
        """Note that the replica refused a request, or refused it a place before it was sent."""
        if not sent.gone:
            self._forget(request, sent)
        self.end(sent, False)

    def _forget(self, request: str, sent: Sent) -> None:
        self._tries[request] = [each for each in self._tries.get(request, []) if each is not sent]
        if not self._tries[request]:
            del self._tries[request]

    def end(self, sent: Sent, computed: bool) -> None:
        """Note that a request has left its replica; not `computed` if it was refused or cancelled."""
        if self._under_way.pop(sent.serial, None) is None:
            return
        if computed and self._rest_s.pop(sent.replica, 0.0):
            self._use_again(sent.replica)
        self._take_off(sent.serial, sent.replica if computed else "")
        self._send_later()

    def give_up(self, serial: int) -> None:
        """Drop a request whose client went away while it waited, or just as it was sent."""
        if self._waiting.pop(serial, None) is not None:
            self._take_off(serial, "")
        elif serial in self._under_way:
            self.end(self._under_way[serial], False)

    def _take_off(self, serial: int, replica: str) -> None:
        request = self._name_of(serial)
        if self._fleet is not None and request in self._fleet:
            with self._contained():
                if not (replica and self._fleet.finished(request, replica)):
                    self._fleet.cancel(request)

    # -- replicas --------------------------------------------------------------------------------------

    def set_replicas(self, names: Iterable[str]) -> None:
        """Set the deployment's replicas; Ray still reports the end of requests at a replica that left."""
        there = set(names)
        for name in sorted(self._replicas - there):
            self._drop(name, False)
        for name in sorted(there - self._replicas):
            self._replicas.add(name)
            self._join(name)
        self._send()

    def _join(self, name: str) -> None:
        if self._fleet is not None:
            with self._contained():
                try:
                    self._fleet.resume(name)  # it was about to leave
                except UnknownReplica:
                    self._fleet.join(name, cache_tokens=self._options["cache_tokens"])
                self._fleet.other_load(name, *self._others.get(name, (0, 0)))

    def lose(self, name: str) -> None:
        """Drop a dead replica; Ray reports the end of each of its requests."""
        if name in self._replicas:
            self._drop(name, True)
            self._send()

    def _drop(self, name: str, dead: bool) -> None:
        self._replicas.discard(name)
        self._resting.pop(name, None)
        self._rest_s.pop(name, None)
        if self._fleet is not None:
            with self._contained():
                if dead:
                    self._fleet.lost(name, requeue=False)
                else:
                    self._fleet.leave(name)

    def rest(self, name: str) -> float:
        """Leave a replica that refused a request alone; return the seconds until `tick` is due."""
        if self._fleet is None or name not in self._replicas:
            return 0.0
        rest_s = self._rest_s[name] = min(LONGEST_REST_S, 2 * self._rest_s.get(name, REST_S / 2))
        self._resting[name] = self._clock() + rest_s
        with self._contained():
            self._fleet.pause(name)
        return rest_s

    def _use_again(self, name: str) -> None:
        if self._resting.pop(name, None) is not None and self._fleet is not None:
            with self._contained():
                self._fleet.resume(name)

    # -- other routers ---------------------------------------------------------------------------------

    def loads(self) -> Loads:
        """Return this router's own load by replica, and its waiting requests."""
        found = {WAITING: (len(self._waiting), 0)} if self._waiting else {}
        for each in [] if self._fleet is None else self._fleet.status():
            if each.under_way and each.name in self._replicas:
                theirs = self._others.get(each.name, (0, 0))[1]
                found[each.name] = (each.under_way, int(each.backlog) - theirs)
        return found

    def take_sent(self) -> list[Asked]:
        """Return the newest requests sent since the last call."""
        sent = list(self._untold)
        self._untold.clear()
        return sent

    def set_others(self, loads: list[Loads]) -> None:
        """Replace the loads of the other routers."""
        others: Loads = {}
        for name, (requests, tokens) in [item for each in loads for item in each.items()]:
            had = others.get(name, (0, 0))
            others[name] = (had[0] + requests, had[1] + tokens)
        self._theirs = sum([requests for requests, _ in others.values()])
        most = self._share()
        for name in self._replicas:
            requests, tokens = others.get(name, (0, 0))
            requests = requests if most < 0 else most
            others[name] = (requests, tokens if requests else 0)
        self._others = others
        if self._fleet is not None:
            with self._contained():
                for name in self._replicas:
                    self._fleet.other_load(name, *others[name])
        self._send()

    def _share(self) -> int:
        """Return how many seats of each replica are left to the other routers; -1 if there are enough seats.

        Otherwise a router that holds all seats would take each free one before the others hear of it.
        """
        mine = len(self._under_way) + len(self._waiting)
        seats = seats_of(self._options)
        if not self._theirs or mine + self._theirs <= seats * len(self._replicas):
            return -1
        return seats - max(1, -(-seats * mine // (mine + self._theirs)))

    def hear(self, asked: Asked) -> None:
        """Note a request that another router has sent."""
        if self._fleet is not None and asked.replica in self._replicas:
            self._serial += 1
            with suppress(PeekError), self._contained(PeekError):
                self._fleet.other_prompt(self._pending(f"other#{self._serial}", asked), asked.replica)

    # -- when something goes wrong ---------------------------------------------------------------------

    def tick(self) -> None:
        """End rests, the time after an error, and a request whose end was not reported, once they are due."""
        now = self._clock()
        rested = [name for name, until in self._resting.items() if until <= now]
        for name in rested:
            self._use_again(name)
        request, tries = next(iter(self._tries.items()), ("", []))
        if tries and now - tries[0].since_s > LONGEST_REQUEST_S:
            for sent in self._tries.pop(request):
                self.end(sent, False)
        if self._fleet is None and now >= self._aside_until:
            self._fleet = FleetPlanner(fleet_config(self._options))
            for name in sorted(self._replicas):
                self._join(name)
            logger.info("peek decides again")
        if rested:
            self._send()

    @contextmanager
    def _contained(self, *theirs: type[Exception]) -> Iterator[None]:
        """Set the planner aside on an error, except on one of `theirs`, which a single request can cause."""
        try:
            yield
        except theirs:
            raise
        except Exception:
            logger.exception("peek failed; Ray Serve's own rule decides for %.0f s", ASIDE_S)
            self.fallbacks += 1
            self._fleet = None
            self._aside_until = self._clock() + ASIDE_S
            self._resting.clear()
            self._rest_s.clear()
            for serial in list(self._waiting):
                self._answer(serial, "")
