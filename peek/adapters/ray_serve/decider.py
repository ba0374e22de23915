"""Which replica a router sends a request to: its own planner decides, at once, and knows what others do."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import uuid4

from peek.adapters.fleet_metrics import imbalance
from peek.adapters.ray_serve.settings import fleet_config
from peek.errors import NoReplica, PeekError
from peek.fleet import FleetPlanner
from peek.request import PendingRequest

logger = logging.getLogger("ray.serve.peek")

ASIDE_S: Final = 60.0
"""How long Ray's own rule decides after an error of ours."""

REST_S: Final = 0.1
"""How long a replica that refused a request is left alone, the first time; then twice as long each time."""

LONGEST_REST_S: Final = 1.6
"""The longest such rest."""

LONGEST_REQUEST_S: Final = 3600.0
"""After that long a request whose end was never told counts as ended."""

MOST_UNTOLD: Final = 1000
"""Prompts that are kept for the other routers while they cannot be told."""


class Asked(NamedTuple):
    """A request, as routers tell each other of it.

    Attributes:
        key: packed symbols of the prompt.
        num_tokens: length of the prompt.
        namespace: what keeps it from sharing.
        decode_tokens: that its answer is expected to have.
        session: the conversation that it is a turn of, "" where nobody says.
        replica: where it went, "" before.
    """

    key: bytes
    num_tokens: int
    namespace: str
    decode_tokens: int
    session: str = ""
    replica: str = ""


Loads = dict[str, tuple[int, int]]
"""Requests and their tokens, by replica."""


class Sent(NamedTuple):
    """A request of this router at a replica: its number, where, and since when."""

    serial: int
    replica: str
    since_s: float


class Decider:
    """A planner, and what one router knows of the replicas.  No I/O; all calls from one thread.

    After an error of ours it decides nothing for `ASIDE_S`, then it begins anew.

    Args:
        options: see `fleet_options`.
        clock: seconds.

    Attributes:
        name: of this router.
        fallbacks: errors of ours.
        by_rays_rule: requests that it did not choose a replica for.
    """

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.name = uuid4().hex[:12]
        self.fallbacks = 0
        self.by_rays_rule = 0
        self._options = options
        self._clock = clock
        self._fleet: FleetPlanner | None = FleetPlanner(fleet_config(options))
        self._aside_until = 0.0
        self._serial = 0
        self._replicas: dict[str, int] = {}
        """How many requests each takes."""
        self._taken: dict[str, int] = {}
        """How many this router has there."""
        self._resting: dict[str, float] = {}
        """Replicas that are left alone, and until when."""
        self._rest_s: dict[str, float] = {}
        """How long the last rest of a replica was that has answered nothing since."""
        self._under_way: dict[int, Sent] = {}
        self._others: Loads = {}
        self._untold: deque[Asked] = deque(maxlen=MOST_UNTOLD)

    def status(self) -> dict[str, Any]:
        """Whether the planner decides, what it did, and the load of each replica."""
        self._look_around()
        replicas = [] if self._fleet is None else self._fleet.status()
        return {
            "active": self._fleet is not None,
            "fallbacks": self.fallbacks,
            "by_rays_rule": self.by_rays_rule,
            "replicas": {each.name: each._asdict() for each in replicas},
            "imbalance": imbalance(replicas),
            **({} if self._fleet is None else self._fleet.stats.as_dict()),
        }

    # -- requests --------------------------------------------------------------------------------------

    def place(self, asked: Asked, at: str = "") -> Sent | None:
        """Where a request goes.

        Args:
            asked: the request.
            at: the replica that Ray's own rule has chosen, "" before.

        Returns:
            None if Ray's own rule is to choose, since no replica has room or after an error; or if it has
            and there is no need to tell when the request ends.
        """
        self._look_around()
        self._serial += 1
        replica = ""
        if self._fleet is not None and (not at or at in self._replicas):
            try:
                with self._contained():
                    request = self._pending(f"{self.name}#{self._serial}", asked)
                    replica = self._fleet.place(request, asked.decode_tokens, at)
            except NoReplica:  # Ray lets it wait
                pass
            except PeekError as error:
                logger.error("a request that peek cannot place goes by Ray Serve's own rule: %s", error)
        if not replica:
            return None
        sent = self._under_way[self._serial] = Sent(self._serial, replica, self._clock())
        self._count(replica, 1)
        self._untold.append(asked._replace(replica=replica))
        return sent

    def _pending(self, name: str, asked: Asked) -> PendingRequest:
        return PendingRequest(
            name,
            asked.key,
            self._clock(),
            namespace=asked.namespace,
            num_tokens=asked.num_tokens,
            session=asked.session,
        )

    def end(self, sent: Sent, computed: bool) -> None:
        """A request has left its replica: its prompt was `computed`, or it was refused or given up."""
        if self._under_way.pop(sent.serial, None) is None:
            return
        if computed and self._rest_s.pop(sent.replica, 0.0):
            self._resting.pop(sent.replica, None)
        self._count(sent.replica, -1)
        request = f"{self.name}#{sent.serial}"
        if self._fleet is not None and request in self._fleet:
            with self._contained():
                if not (computed and self._fleet.finished(request, sent.replica)):
                    self._fleet.cancel(request)

    # -- replicas --------------------------------------------------------------------------------------

    def set_replicas(self, replicas: Mapping[str, int]) -> None:
        """Which replicas there are, and how many requests each takes; one that is gone ends what it has."""
        for name in [name for name in self._replicas if name not in replicas]:
            self._drop(name, False)
        for name in [name for name in replicas if name not in self._replicas]:
            self._join(name)
        self._replicas.update(replicas)
        for name in replicas:
            self._heed(name)

    def _join(self, name: str) -> None:
        if self._fleet is not None:
            with self._contained():
                if any(each.name == name for each in self._fleet.status()):  # it was about to leave
                    self._fleet.lost(name, requeue=False)
                self._fleet.join(name, cache_tokens=self._options["cache_tokens"])
                self._fleet.other_load(name, *self._others.get(name, (0, 0)))

    def lose(self, name: str) -> None:
        """A replica is dead; Ray tells what becomes of the requests that it had."""
        if name in self._replicas:
            self._drop(name, True)

    def _drop(self, name: str, dead: bool) -> None:
        del self._replicas[name]
        self._resting.pop(name, None)
        self._rest_s.pop(name, None)
        if self._fleet is not None:
            with self._contained():
                if dead:
                    self._fleet.lost(name, requeue=False)
                else:
                    self._fleet.leave(name)

    def rest(self, name: str) -> None:
        """A replica refused a request: it is full with what is not known here, and left alone for a while."""
        if self._fleet is not None and name in self._replicas:
            rest_s = self._rest_s[name] = min(LONGEST_REST_S, 2 * self._rest_s.get(name, REST_S / 2))
            self._resting[name] = self._clock() + rest_s
            self._heed(name)

    def _count(self, name: str, requests: int) -> None:
        self._taken[name] = self._taken.get(name, 0) + requests
        if not self._taken[name]:
            del self._taken[name]
        self._heed(name)

    def _heed(self, name: str) -> None:
        """Have a replica chosen only while it has room, as far as is known here, and does not rest."""
        if self._fleet is not None and name in self._replicas:
            taken = self._taken.get(name, 0) + self._others.get(name, (0, 0))[0]
            with self._contained():
                if name in self._resting or taken >= self._replicas[name]:
                    self._fleet.pause(name)
                else:
                    self._fleet.resume(name)

    # -- other routers ---------------------------------------------------------------------------------

    def loads(self) -> Loads:
        """What this router has under way at each replica that it has sent something to."""
        found = {}
        for each in [] if self._fleet is None else self._fleet.status():
            if each.under_way and each.name in self._replicas:
                others = self._others.get(each.name, (0, 0))
                found[each.name] = (each.under_way, int(each.backlog) - others[1])
        return found

    def take_sent(self) -> list[Asked]:
        """What was sent since the last call, the newest."""
        sent = list(self._untold)
        self._untold.clear()
        return sent

    def set_others(self, loads: list[Loads]) -> None:
        """What the other routers have under way now."""
        others: Loads = {}
        for name, (requests, tokens) in [item for each in loads for item in each.items()]:
            had = others.get(name, (0, 0))
            others[name] = (had[0] + requests, had[1] + tokens)
        changed = self._others.keys() | others.keys()
        self._others = others
        for name in changed & self._replicas.keys():
            if self._fleet is not None:
                with self._contained():
                    self._fleet.other_load(name, *others.get(name, (0, 0)))
            self._heed(name)

    def hear(self, asked: Asked) -> None:
        """Another router has sent a request."""
        if self._fleet is not None and asked.replica in self._replicas:
            self._serial += 1
            with suppress(PeekError), self._contained():
                self._fleet.other_prompt(self._pending(f"other#{self._serial}", asked), asked.replica)

    # -- when something goes wrong ---------------------------------------------------------------------

    def _look_around(self) -> None:
        """What time brings: rests end, requests whose end was never told, the end of standing aside."""
        now = self._clock()
        for name in [name for name, until in self._resting.items() if until <= now]:
            del self._resting[name]
            self._heed(name)
        for sent in list(islice(self._under_way.values(), 1)):
            if now - sent.since_s > LONGEST_REQUEST_S:
                self.end(sent, False)
        if self._fleet is None and now >= self._aside_until:
            self._fleet = FleetPlanner(fleet_config(self._options))
            for name in self._replicas:
                self._join(name)
                self._heed(name)
            logger.info("peek decides again")

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """An error of ours, other than one that a single request makes, sets the planner aside."""
        try:
            yield
        except PeekError:
            raise
        except Exception:
            logger.exception("peek failed; Ray Serve's own rule decides for %.0f s", ASIDE_S)
            self.fallbacks += 1
            self._fleet = None
            self._aside_until = self._clock() + ASIDE_S
            self._resting.clear()
            self._rest_s.clear()
