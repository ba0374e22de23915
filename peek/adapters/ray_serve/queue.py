"""The queue of all requests for one deployment, behind the routers of all its handles.

`classes.FleetQueueActor` makes an actor of it, one for a deployment.  A router says `hello`, then tells who
comes and who has ended (`tell`), and learns by a standing call (`poll`) where to send whom.  A router that
does not call any more has died, and with it its requests.  After an error of ours everybody goes by Ray's
own rule for a while, then the queue begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from peek.adapters.fleet_metrics import imbalance
from peek.adapters.ray_serve.line import FULL, STOCK, Arrival, News
from peek.adapters.ray_serve.router import Router
from peek.adapters.ray_serve.settings import divided, fleet_config
from peek.errors import DuplicateRequest, InvalidKey, QueueFull
from peek.fleet import FleetPlanner
from peek.request import PendingRequest

logger = logging.getLogger("ray.serve.peek")

POLL_S: Final = 2.0
"""A `poll` is answered after that long at the latest."""

LEASE_S: Final = 15.0
"""A router that has not called for that long has died."""

ASIDE_S: Final = 60.0
"""How long Ray's own rule decides after an error of ours."""

FULL_S: Final = 0.1
"""How long a replica that refused a request is left alone, the first time; then twice as long each time."""

LONGEST_FULL_S: Final = 1.6


class FleetQueue:
    """See the module.

    Args:
        options: see `fleet_options`; those of the queue.
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
        """Have `set_replicas` called from now on; what is returned is kept.  For a subclass."""

    def export(self, status: dict[str, Any]) -> None:
        """Show a `status` to whoever watches.  Once a second; for a subclass, too."""

    # -- what routers call -----------------------------------------------------------------------------

    async def hello(self, router: str) -> None:
        """A router is there, with no requests."""
        if not self._begun:
            self._begun += [self.watch(), asyncio.create_task(self._look_around())]
        self._forget_router(router)
        self._routers[router] = Router(self._clock())

    async def tell(self, router: str, news: News) -> bool:
        """What is new at a router; False if it is not known here, and has to say `hello`."""
        known = self._routers.get(router)
        if known is None:
            return False
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
        return True

    async def poll(self, router: str) -> list[tuple[int, str]] | None:
        """Who of a router's requests may go, and where: serials, with a replica, `STOCK` or `FULL`.

        Waits until there is somebody, `POLL_S` at most.  None for a router that has to say `hello`.
        """
        known = self._routers.get(router)
        if known is None:
            return None
        known.called_s = self._clock()
        return await known.collect(POLL_S)

    async def status(self) -> dict[str, Any]:
        """The load of each replica, who waits, the fleet's counters, and what deciding took.

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
        """An error of ours, in an `except`: everybody goes by Ray's own rule for a while."""
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
        """Once a second: routers that have died, requests that nobody told the end of, and metrics."""
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
