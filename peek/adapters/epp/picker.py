"""Chooses the endpoint of a request: the planner's choice, else the one with the fewest requests.

A gateway sends a request on at once, so this uses `FleetPlanner.place`: no queue, no help.  The planner runs
in its own thread.  If it misses the deadline, the fewest requests decide for that request, and the planner
hears where it went.  After an internal error, or a call that hangs, they decide for `ASIDE_S`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from peek.adapters.engine_adapter import Statements
from peek.adapters.fleet_metrics import FleetMetrics
from peek.adapters.prompts import ROOM, Prompt, beginning_of
from peek.errors import NoReplica, PeekError, UnknownReplica
from peek.fleet import FleetConfig, FleetPlanner
from peek.fleet.prompt_keys import BLOCK_TOKENS
from peek.request import PendingRequest
from peek.settings import require_within

logger = logging.getLogger(__name__)

ASIDE_S: Final = 60.0  # seconds for which the fewest requests decide after an error; then a new planner
HUNG_S: Final = 5.0  # seconds that a call of the planner may run before it counts as hung
LONGEST_READ: Final = 2**23  # bytes of a body that is read (`ROOM` while late); longer ones are mostly images
MOST_CALLS: Final = 5_000  # most calls that may wait: the planner could not catch up with more
REST_S: Final = 1.0  # seconds for which an endpoint gets nothing after another served; doubles each time
LONGEST_REST_S: Final = 30.0  # upper bound of such a rest, in seconds


@dataclass(frozen=True)
class Options:
    """Settings of a picker."""

    cache_tokens: int = 200_000  # KV cache of an endpoint; four bytes of a prompt count as a token
    seats: int = 256  # requests that an endpoint computes at once, its max_num_seqs; 0: not known
    stickiness: float = 4.0  # as in `FleetConfig`
    decode_tokens: int = 128  # expected length of an answer, tokens, unless the request allows fewer
    deadline_s: float = 0.1  # seconds that the planner may take for a request

    def __post_init__(self) -> None:
        require_within("cache_tokens", self.cache_tokens, 0, 2**60)
        require_within("decode_tokens", self.decode_tokens, 0, 2**40)
        require_within("deadline_s", self.deadline_s, 0.001, 60.0)
        self.fleet()

    def fleet(self) -> FleetConfig:
        """Return the planner's settings; `InvalidConfig`."""
        return FleetConfig(unit_tokens=BLOCK_TOKENS, stickiness=self.stickiness, seats=self.seats)


@dataclass
class Picked:
    """A request at an endpoint."""

    serial: str  # its name for the planner
    endpoint: str
    brain: Brain | None  # the planner that knows of it
    began: bool = False  # whether its answer has begun
    ended: bool = False  # further news of it is ignored


class Brain:
    """A planner, its metrics, and the thread in which its calls run; answers are awaited in `loop`."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.runs_since: float | None = None  # start of the call that runs now; None while none runs
        self.fleet = FleetPlanner(options.fleet())
        self.metrics = FleetMetrics(self.fleet)
        self.abandoned: set[str] = set()  # requests for whose place nobody waits any more, until they end
        self._options = options
        self._loop = loop
        self._clock = clock
        self._statements = Statements()
        self._calls: SimpleQueue[tuple[Callable[..., Any], Any, Callable[..., object]] | None] = SimpleQueue()
        Thread(target=self._work, name="peek-planner", daemon=True).start()

    def call(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call a function in the thread, after earlier calls; return a future of its answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        settle = self._loop.call_soon_threadsafe
        self._calls.put((function, args, lambda result, error: settle(_settle, future, result, error)))
        return future

    def tell(self, failed: Callable[[Exception], None], function: Callable[..., None], *args: Any) -> None:
        """Call a function in the thread, after earlier calls; `failed` is called in the loop if it raises."""

        def answer(_: None, error: Exception | None) -> None:
            if error is not None:
                self._loop.call_soon_threadsafe(failed, error)

        self._calls.put((function, args, answer))

    @property
    def waiting(self) -> int:
        """Number of calls that wait for their turn."""
        return self._calls.qsize()

    def close(self) -> None:
        """End the thread after earlier calls."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, args, answer = call
            result, error = None, None
            self.runs_since = self._clock()
            try:
                result = function(*args)
            except Exception as raised:
                error = raised
            self.runs_since = None
            with suppress(RuntimeError):  # the loop is closed
                answer(result, error)

    # -- in the thread -------------------------------------------------------------------------------

    def place(self, serial: str, body: bytes, session: str, allowed: frozenset[str] | None) -> str:
        """Return the endpoint for a request, one of `allowed` unless that is None; `NoReplica`.

        "" for a request that was abandoned before its turn, so that it counts once if `went` follows.
        """
        if serial in self.abandoned:
            return ""
        request, decode_tokens = self._read(serial, body, session)
        with self.metrics.deciding():
            barred = []
            if allowed is not None:
                status = self.fleet.status()
                barred = [each.name for each in status if each.accepting and each.name not in allowed]
            try:
                for name in barred:
                    self.fleet.pause(name)
                return self.fleet.place(request, decode_tokens)
            finally:
                for name in barred:
                    self.fleet.resume(name)

    def went(self, serial: str, body: bytes, session: str, endpoint: str) -> None:
        """Note that a request went to `endpoint`, which the planner did not choose."""
        request, decode_tokens = self._read(serial, body, session)
        with self.metrics.changing, suppress(PeekError):  # the endpoint has gone, or it is no request
            self.fleet.place(request, decode_tokens, endpoint)

    def _read(self, serial: str, body: bytes, session: str) -> tuple[PendingRequest, int]:
        """Return a request for the planner, and its expected answer; an unreadable body shares nothing."""
        decode_tokens = self._options.decode_tokens
        parsed: Any = None
        prompt: Prompt | None = None
        with suppress(Exception):  # whatever a client may send
            parsed = json.loads(body) if body else None
            prompt = beginning_of((parsed,), {}) if isinstance(parsed, dict) else None
        if prompt is None:
            symbol = int(serial) % 2**31
            return PendingRequest(serial, [symbol], time.monotonic(), namespace="no prompt"), decode_tokens
        if prompt.most_tokens:
            decode_tokens = min(decode_tokens, prompt.most_tokens)
        key = prompt.key
        sessions = (session or None, parsed.get("prompt_cache_key"), parsed.get("user"))
        session = self._statements.of(prompt.parameters, sessions).session
        now = time.monotonic()
        request = PendingRequest(serial, key.key, now, key.namespace, key.num_tokens, session=session)
        return request, decode_tokens

    def started(self, serial: str, endpoint: str) -> None:
        """Note that a request's answer has begun."""
        with self.metrics.changing:
            self.fleet.started(serial, endpoint)

    def ended(self, serial: str, endpoint: str) -> None:
        """Note that `endpoint` answered a request, or that it was given up (""); unknown ones are ignored."""
        self.abandoned.discard(serial)
        with self.metrics.deciding():
            if serial in self.fleet and not self.fleet.finished(serial, endpoint):
                self.fleet.cancel(serial)

    def join(self, endpoint: str) -> None:
        """Add an endpoint; if it was about to leave, it keeps its requests and prompts."""
        with self.metrics.changing:
            try:
                self.fleet.resume(endpoint)
            except UnknownReplica:
                self.fleet.join(endpoint, cache_tokens=self._options.cache_tokens)

    def leave(self, endpoint: str) -> None:
        """Remove an endpoint after its last request has ended."""
        with self.metrics.changing, suppress(UnknownReplica):
            self.fleet.leave(endpoint)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Picker:
    """Picks endpoints, and collects its metrics for `prometheus_client`.  Call it from one event loop."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._brain = Brain(options, asyncio.get_running_loop(), clock)
        self._endpoints: list[str] = []
        self._loads: dict[str, int] = {}  # requests at each endpoint that has any, even if it is gone
        self._resting: dict[str, float] = {}  # resting endpoints, and when each rest ends
        self._rest_s: dict[str, float] = {}  # length of an endpoint's last rest, until it serves a request
        self._serial = 0
        self._aside_until = 0.0
        self._late: asyncio.Future[Any] | None = None  # the last call of the planner that missed its deadline
        self._told: set[str] = set()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; called at each scrape, from any thread."""
        yield from self._brain.metrics.collect()

    @property
    def endpoints(self) -> dict[str, int]:
        """Number of requests at each endpoint that may be picked."""
        return {name: self._loads.get(name, 0) for name in self._endpoints}

    def close(self) -> None:
        self._brain.close()

    # -- endpoints -----------------------------------------------------------------------------------

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Set the endpoints; one that is missing gets no new requests, and ends the ones it has."""
        there = list(dict.fromkeys(endpoints))
        for name in [name for name in self._endpoints if name not in there]:
            self._resting.pop(name, None)
            self._rest_s.pop(name, None)
            self._tell(self._brain, self._brain.leave, name)
        for name in [name for name in there if name not in self._endpoints]:
            self._tell(self._brain, self._brain.join, name)
        self._endpoints = there

    def tick(self) -> None:
        """End rests, and the time after an error, once they are due; call it about once a second."""
        now = self._clock()
        for name in [name for name, until in self._resting.items() if until <= now]:
            del self._resting[name]
            self._tell(self._brain, self._brain.join, name)
        runs_since = self._brain.runs_since
        if runs_since is not None and now - runs_since > HUNG_S:
            self._set_aside("has hung")
        elif self._brain.waiting > MOST_CALLS:
            self._set_aside("has fallen behind")
        if self._aside_until and now >= self._aside_until:
            self._aside_until = 0.0
            self._told.clear()
            self._brain.metrics.active = True
            logger.info("peek's planner decides again")

    # -- requests ------------------------------------------------------------------------------------

    async def pick(self, body: bytes, session: str = "", subset: Iterable[str] | None = None) -> Picked:
        """Return a request with its endpoint, one of `subset` if that is given; `NoReplica`.

        Waits for the planner, at most `deadline_s`; the planner is not asked about a long body.
        """
        allowed = None if subset is None else frozenset(self._endpoints).intersection(subset)
        if not (self._endpoints if allowed is None else allowed):
            raise NoReplica(f"none of {len(self._endpoints)} endpoints may be picked")
        self._serial += 1
        serial = str(self._serial)
        brain = self._brain
        is_long = len(body) > (ROOM if self._is_late() else LONGEST_READ)
        endpoint = "" if is_long else await self._planned(brain, serial, body, session, allowed)
        if endpoint and endpoint not in self._endpoints:  # it has gone meanwhile
            self._tell(brain, brain.ended, serial, "")
            endpoint = ""
        knows = bool(endpoint) or is_long or self._is_late()
        if not endpoint:
            endpoint = self._least(allowed)
            if knows:
                self._tell(brain, brain.went, serial, b"" if is_long else body, session, endpoint)
        self._count(endpoint, 1)
        return Picked(serial, endpoint, brain if knows else None)

    def _is_late(self) -> bool:
        """Whether a call of the planner that missed its deadline is not back yet."""
        return self._late is not None and not self._late.done()

    def _least(self, allowed: frozenset[str] | None) -> str:
        """Return the endpoint with the fewest requests; a resting one only if all rest.  `NoReplica`."""
        names = [name for name in self._endpoints if allowed is None or name in allowed]
        if not names:
            raise NoReplica("the last endpoint went away")
        self._brain.metrics.fallbacks += 1
        awake = [name for name in names if name not in self._resting]
        return min(awake or names, key=lambda name: self._loads.get(name, 0))

    async def _planned(
        self, brain: Brain, serial: str, body: bytes, session: str, allowed: frozenset[str] | None
    ) -> str:
        """Return the planner's choice, "" if it gives none."""
        if self._aside_until or self._is_late():
            return ""
        call = brain.call(brain.place, serial, body, session, allowed)
        finished = False
        try:
            await asyncio.wait([call], timeout=self.options.deadline_s)
            finished = call.done()
        finally:
            if not finished:  # or cancelled
                call.add_done_callback(_ignore)
                brain.abandoned.add(serial)
                self._tell(brain, brain.ended, serial, "")
        if not finished:
            if brain is self._brain:  # a replaced one hangs, and its call may never come back
                self._late = call
            self._log_once("late", "peek's planner has not answered within its deadline")
            return ""
        error = call.exception()
        if error is None:
            return str(call.result())
        if not isinstance(error, PeekError):
            self._failed(brain, error)
        elif not isinstance(error, NoReplica):  # nothing has changed in the planner
            self._log_once("refused", f"peek's planner refuses a request: {error}")
        return ""

    def began(self, picked: Picked, served: str = "") -> None:
        """Note that an answer begins, from `served` if known; if another was picked, that one rests."""
        if picked.began or picked.ended:
            return
        picked.began = True
        if served in ("", picked.endpoint):
            self._rest_s.pop(picked.endpoint, None)
            if picked.brain is not None:
                self._tell(picked.brain, picked.brain.started, picked.serial, picked.endpoint)
            return
        name = picked.endpoint
        self._take_off(picked, False)
        if name in self._endpoints and name not in self._resting:
            rest_s = self._rest_s[name] = min(LONGEST_REST_S, 2 * self._rest_s.get(name, REST_S / 2))
            if rest_s == REST_S:
                logger.warning(
                    "endpoint %s does not serve what it is sent: it is left alone for a while", name
                )
            self._resting[name] = self._clock() + rest_s
            self._tell(self._brain, self._brain.leave, name)
        picked.endpoint, picked.brain = served, None
        self._count(served, 1)

    def ended(self, picked: Picked, answered: bool) -> None:
        """Note that a request has ended: `answered`, or its client or endpoint went away."""
        if not picked.ended:
            picked.ended = True
            if answered:  # many gateways do not report its beginning
                self._rest_s.pop(picked.endpoint, None)
            self._take_off(picked, answered)

    def _count(self, endpoint: str, requests: int) -> None:
        self._loads[endpoint] = self._loads.get(endpoint, 0) + requests
        if not self._loads[endpoint]:
            del self._loads[endpoint]

    def _take_off(self, picked: Picked, answered: bool) -> None:
        self._count(picked.endpoint, -1)
        if picked.brain is not None:
            self._tell(picked.brain, picked.brain.ended, picked.serial, picked.endpoint if answered else "")

    def _tell(self, brain: Brain, function: Callable[..., None], *args: Any) -> None:
        """Pass news to a planner without waiting, unless it was set aside."""
        if brain is self._brain:
            brain.tell(partial(self._failed, brain), function, *args)

    def _failed(self, brain: Brain, error: BaseException) -> None:
        if brain is self._brain:
            self._set_aside("failed", error)

    def _log_once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            logger.error("%s; the fewest requests decide meanwhile", text)

    def _set_aside(self, what: str, error: BaseException | None = None) -> None:
        """Replace the planner by a new, empty one, which decides after `ASIDE_S`."""
        logger.error(
            "peek's planner %s; the fewest requests decide for %.0f s", what, ASIDE_S, exc_info=error
        )
        fallbacks = self._brain.metrics.fallbacks
        self._brain.close()
        self._brain = Brain(self.options, asyncio.get_running_loop(), self._clock)
        self._brain.metrics.fallbacks = fallbacks
        self._brain.metrics.active = False
        self._late = None
        self._aside_until = self._clock() + ASIDE_S
        for name in self._endpoints:
            if name not in self._resting:
                self._tell(self._brain, self._brain.join, name)


def _ignore(call: asyncio.Future[Any]) -> None:
    """Retrieve a late call's error, so that asyncio does not log it."""
    if not call.cancelled():
        call.exception()
