"""The queue of all requests for one deployment, behind the routers of all its handles, and its metrics.

`classes.FleetQueueActor` makes an actor of it, one for a deployment.  A router says `hello`, then tells which
requests come and which have ended (`tell`).  It learns where to send which: in the answer what need not wait,
and by a standing call (`poll`) the rest.  A router that does not call any more has died, and with it its
requests.  After an error of ours all requests go by Ray's own rule for a while, then the queue begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from peek.adapters import fleet_metrics
from peek.adapters.fleet_metrics import ACTIVE, IMBALANCE, REPLICA, WAITING, imbalance
from peek.adapters.metrics import Metric
from peek.adapters.ray_serve.queue_client import FULL, HELD_S, STOCK, Arrival, News
from peek.adapters.ray_serve.settings import divided, fleet_config
from peek.errors import DuplicateRequest, InvalidKey, QueueFull
from peek.fleet import FleetPlanner
from peek.request import PendingRequest

logger = logging.getLogger("ray.serve.peek")

POLL_S: Final = HELD_S
"""A `poll` is answered after that long at the latest."""

LEASE_S: Final = 15.0
"""A router that has not called for that long has died."""

ASIDE_S: Final = 60.0
"""How long Ray's own rule decides after an error of ours."""

FULL_S: Final = 0.1
"""How long a replica that refused a request is left alone, the first time; then twice as long each time."""

LONGEST_FULL_S: Final = 1.6
"""The longest such pause."""


class Router:
    """A router of a handle, as the queue knows it: where its requests are, and what it is to be told.

    Attributes:
        called_s: when it last called.
        waiting: serials of its requests that wait.
        sent: those at a replica: its name, and since when.
        answers: what its next answered call brings.
    """

    def __init__(self, now: float) -> None:
        self.called_s = now
        self.waiting: set[int] = set()
        self.sent: dict[int, tuple[str, float]] = {}
        self.answers: list[tuple[int, str]] = []
        self._ready = asyncio.Event()

    def answer(self, serial: int, answer: str) -> None:
        """A request no longer waits."""
        self.waiting.discard(serial)
        self.answers.append((serial, answer))
        self._ready.set()

    def take(self) -> list[tuple[int, str]]:
        """The answers there are."""
        answers, self.answers = self.answers, []
        return answers

    async def collect(self, timeout_s: float) -> list[tuple[int, str]]:
        """The answers, as soon as there is one."""
        until = asyncio.get_running_loop().time() + timeout_s
        while not self.answers and (left_s := until - asyncio.get_running_loop().time()) > 0:
            self._ready.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ready.wait(), left_s)
        return self.take()


class FleetQueue:
    """One queue for the requests of all routers.

    Args:
        options: those of the queue, see `fleet_options`.
        clock: seconds.

    Raises `InvalidConfig` for an unknown option or value.
    """

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._options = divided(options)[0]
        self._clock = clock
        self._replicas: dict[str, int] = {}
        """How many requests each takes, by name."""
        self._full_s: dict[str, float] = {}
        """Replicas that are left alone for a while, and for how long."""
        self._lost: set[str] = set()
        """Replicas that a router found dead before the controller did."""
        self._routers: dict[str, Router] = {}
        self._fleet: FleetPlanner | None = FleetPlanner(fleet_config(self._options))
        self._begun: list[Any] = []
        self._export_failed = False
        self._tells = 0
        self._telling_s = 0.0

    def watch(self) -> Any:
        """Have `set_replicas` called from now on; the queue keeps what is returned.  For a subclass."""

    def export(self, status: dict[str, Any]) -> None:
        """Publish a `status`; called once a second.  For a subclass."""

    # -- what routers call -----------------------------------------------------------------------------

    async def hello(self, router: str) -> None:
        """A router is there, with no requests."""
        if not self._begun:
            self._begun += [self.watch(), asyncio.create_task(self._look_around())]
        self._forget_router(router)
        self._routers[router] = Router(self._clock())

    async def tell(self, router: str, news: News) -> list[tuple[int, str]] | None:
        """What is new at a router; the answer as that of `poll`, but at once."""
        known = self._routers.get(router)
        if known is None:
            return None
        known.called_s = self._clock()
        started = time.perf_counter()
        try:
            for serial, computed in news.ended:
                self._end(router, known, serial, computed)
            for replica in news.lost:
                self._lose(replica)
            for replica in news.full:
                self._leave_alone(replica)
        except Exception:
            self._stand_aside()
        for arrival in news.arrivals:
            self._add(router, known, arrival)
        self._send()
        self._tells += 1
        self._telling_s += time.perf_counter() - started
        return known.take()

    async def poll(self, router: str) -> list[tuple[int, str]] | None:
        """Which of a router's requests may go, and where: serials, with a replica, `STOCK` or `FULL`.

        Waits until there is one, `POLL_S` at most.  None for a router that has to say `hello`.
        """
        known = self._routers.get(router)
        if known is None:
            return None
        known.called_s = self._clock()
        return await known.collect(POLL_S)

    async def status(self) -> dict[str, Any]:
        """The load of each replica, how many wait, the fleet's counters, and what deciding took.

        `imbalance` is the longest backlog by the mean one, `tells` are calls of routers, `telling_s` is the
        time these took.
        """
        fleet = self._fleet
        replicas = [] if fleet is None else fleet.status()
        return {
            "working": fleet is not None,
            "routers": len(self._routers),
            "waiting": sum([len(router.waiting) for router in self._routers.values()]),
            "replicas": {each.name: each._asdict() for each in replicas},
            "imbalance": imbalance(replicas),
            "tells": self._tells,
            "telling_s": self._telling_s,
            **({} if fleet is None else fleet.stats.as_dict()),
        }

    # -- requests --------------------------------------------------------------------------------------

    def _add(self, name: str, router: Router, arrival: Arrival) -> None:
        if self._fleet is None:
            router.answer(arrival.serial, STOCK)
            return
        try:
            request = PendingRequest(
                f"{name}#{arrival.serial}",
                arrival.key,
                self._clock() - arrival.age_s,
                namespace=arrival.namespace,
                num_tokens=arrival.num_tokens,
                session=arrival.session,
            )
            self._fleet.add(request, arrival.decode_tokens)
            router.waiting.add(arrival.serial)
        except QueueFull:
            router.answer(arrival.serial, FULL)
        except (DuplicateRequest, InvalidKey):
            logger.exception("a request that cannot wait in the queue goes by Ray Serve's own rule")
            router.answer(arrival.serial, STOCK)
        except Exception:
            self._stand_aside()
            router.answer(arrival.serial, STOCK)

    def _end(self, name: str, router: Router, serial: int, computed: bool) -> None:
        ours = f"{name}#{serial}"
        router.waiting.discard(serial)
        replica, _ = router.sent.pop(serial, ("", 0.0))
        if self._fleet is None or ours not in self._fleet:
            return
        if computed and self._fleet.finished(ours, replica):
            self._use_again(replica)
        else:
            self._fleet.cancel(ours)

    def _send(self) -> None:
        if self._fleet is None:
            return
        now = self._clock()
        try:
            sent = self._fleet.dispatch(now)
        except Exception:
            self._stand_aside()
            return
        for ours, replica in sent:
            name, _, serial = ours.rpartition("#")
            router = self._routers[name]
            router.sent[int(serial)] = (replica, now)
            router.answer(int(serial), replica)

    def _forget_router(self, name: str) -> None:
        router = self._routers.pop(name, None)
        if router is not None:
            for serial in [*router.waiting, *router.sent]:
                self._end(name, router, serial, False)

    # -- replicas --------------------------------------------------------------------------------------

    def set_replicas(self, replicas: dict[str, int]) -> None:
        """Which replicas there are, and how many requests each takes."""
        self._lost &= set(replicas)
        alive = {name: most for name, most in replicas.items() if name not in self._lost}
        try:
            for name in set(self._replicas) - set(alive):
                self._full_s.pop(name, None)
                if self._fleet is not None:
                    self._fleet.leave(name)
            for name in sorted(set(alive) - set(self._replicas)):
                self._join(name, alive[name])
        except Exception:
            self._stand_aside()
        self._replicas = alive
        self._send()

    def _join(self, name: str, most: int) -> None:
        if most < self._options["max_ongoing_requests"]:
            logger.warning(
                "replica %s takes %d requests, peek's queue was told %d: it will refuse some",
                name,
                most,
                self._options["max_ongoing_requests"],
            )
        if self._fleet is not None:
            if any(each.name == name for each in self._fleet.status()):  # it was about to leave
                self._fleet.lost(name, requeue=False)
            self._fleet.join(name, cache_tokens=self._options["cache_tokens"])

    def _lose(self, name: str) -> None:
        """A router found a replica dead; it tells what becomes of its requests itself."""
        if name in self._replicas:
            del self._replicas[name]
            self._full_s.pop(name, None)
            self._lost.add(name)
            if self._fleet is not None:
                self._fleet.lost(name, requeue=False)

    def _leave_alone(self, name: str) -> None:
        """A replica is full with requests that are not known here."""
        if self._fleet is None or name not in self._replicas:
            return
        pause_s = min(LONGEST_FULL_S, 2 * self._full_s.get(name, FULL_S / 2))
        self._full_s[name] = pause_s
        self._fleet.pause(name)
        asyncio.get_running_loop().call_later(pause_s, self._try_again, name)

    def _try_again(self, name: str) -> None:
        if self._fleet is not None and name in self._replicas:
            self._fleet.resume(name)
            self._send()

    def _use_again(self, name: str) -> None:
        if self._full_s.pop(name, 0.0) and self._fleet is not None and name in self._replicas:
            self._fleet.resume(name)

    # -- when something goes wrong ---------------------------------------------------------------------

    def _stand_aside(self) -> None:
        """An error of ours, in an `except`: all requests go by Ray's own rule for a while."""
        if self._fleet is None:
            return
        logger.exception("peek's queue failed; Ray Serve's own rule decides for %.0f s", ASIDE_S)
        self._fleet = None
        self._full_s.clear()
        for each in self._routers.values():
            for serial in list(each.waiting):
                each.answer(serial, STOCK)
        asyncio.get_running_loop().call_later(ASIDE_S, self._begin_anew)

    def _begin_anew(self) -> None:
        self._fleet = FleetPlanner(fleet_config(self._options))
        for name in sorted(self._replicas):
            self._fleet.join(name, cache_tokens=self._options["cache_tokens"])
        logger.info("peek's queue decides again")

    async def _look_around(self) -> None:
        """Once a second: routers that have died, requests whose end was never told, and metrics."""
        while True:
            await asyncio.sleep(1.0)
            now = self._clock()
            for name, router in list(self._routers.items()):
                if now - router.called_s > LEASE_S:
                    logger.warning("a router has not called for %.0f s: its requests are forgotten", LEASE_S)
                    self._forget_router(name)
                    continue
                for serial, (_, since_s) in list(router.sent.items()):
                    if now - since_s > self._options["max_request_s"]:
                        self._end(name, router, serial, False)
            self._send()
            await self._export()

    async def _export(self) -> None:
        try:
            self.export(await self.status())
        except Exception:
            if not self._export_failed:
                self._export_failed = True
                logger.exception("the metrics of peek's queue cannot be exported")


# -- metrics ------------------------------------------------------------------------------------------


GAUGES: Final = {
    "working": ACTIVE,
    "waiting": WAITING,
    "imbalance": IMBALANCE,
    "routers": Metric("peek_fleet_routers", "gauge", "Routers of deployment handles that share the queue"),
}
"""By the name of the field of `FleetQueue.status`."""

COUNTERS: Final = {
    **fleet_metrics.COUNTERS,
    "tells": Metric("peek_fleet_tells", "counter", "Calls of routers"),
    "telling_s": Metric(
        "peek_fleet_telling_seconds", "counter", "Seconds spent on these, decisions included"
    ),
}
"""Likewise."""

FALLBACK_REQUESTS: Final = Metric(
    "peek_fleet_fallback_requests", "counter", "Times a request of a router went by Ray's own rule"
)


class RouterMetrics:
    """Exports whether the queue decides for a router, and how often a request went by Ray's own rule.

    Made in the router's process, which knows it also where the queue's actor is dead or hangs.

    Args:
        labels: of the router.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        from ray.util.metrics import Counter, Gauge

        self._labels = labels
        self._active = Gauge(ACTIVE.name, ACTIVE.text, tuple(labels))
        self._fallbacks = Counter(FALLBACK_REQUESTS.name, FALLBACK_REQUESTS.text, tuple(labels))
        self._told = 0

    def tell(self, active: bool, fallbacks: int) -> None:
        """Export the state of a router; `fallbacks` is a running total."""
        self._active.set(float(active), self._labels)
        if fallbacks > self._told:
            self._fallbacks.inc(fallbacks - self._told, self._labels)
            self._told = fallbacks


class QueueMetrics:
    """Exports what `FleetQueue.status` tells as metrics of Ray's, which puts `ray_` before their names.

    Made in the actor.
    """

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge

        self._gauges = {field: Gauge(each.name, each.text) for field, each in GAUGES.items()}
        self._of_replicas = {
            field: Gauge(each.name, each.text, each.labels) for field, each in REPLICA.items()
        }
        self._counters = {field: Counter(each.name, each.text) for field, each in COUNTERS.items()}
        self._told: dict[str, float] = {}
        self._replicas: set[str] = set()

    def tell(self, status: dict[str, Any]) -> None:
        """Export a status; counters by what they have grown."""
        for name, gauge in self._gauges.items():
            gauge.set(float(status[name]))
        for replica in self._replicas - set(status["replicas"]):
            for gauge in self._of_replicas.values():
                gauge.set(0.0, {"replica": replica})
        self._replicas = set(status["replicas"])
        for replica, load in status["replicas"].items():
            for name, gauge in self._of_replicas.items():
                gauge.set(float(load[name]), {"replica": replica})
        for name, counter in self._counters.items():
            grown = status.get(name, 0) - self._told.get(name, 0)
            self._told[name] = status.get(name, 0)
            if grown > 0:
                counter.inc(grown)
