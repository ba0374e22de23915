"""Several simulated engines behind one router, in virtual time.

Plan.  Events in order of their time: a request arrives, an engine's step begins or ends, news of it reaches
the router, a replica dies or joins.  After each the router is asked whom to send where.  The engines are
those of `peek simulate` and know nothing of each other; the router knows what it is told, `stale_s` seconds
late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import TypeVar

from peek.errors import WorkloadError
from peek.protocols import CacheView
from peek.simulation.block_engine import BlockEngine
from peek.simulation.engine import Job, SimEngine
from peek.simulation.routers import Arrival, Router, Site
from peek.simulation.workload import SimRequest, Workload
from peek.trie.keys import pack

Answer = TypeVar("Answer")

EngineMaker = Callable[[Workload, float], SimEngine]
"""Makes an empty engine of some speed."""


class StaleBlocks:
    """`CacheView`: the blocks of a vLLM-like engine as they were some time ago."""

    block_symbols = 1

    def __init__(self, engine: BlockEngine) -> None:
        self._engine = engine
        self.unit_tokens = engine.cache.unit_tokens
        self._names: frozenset[int] = frozenset()

    def refresh(self) -> None:
        """They are known as they are now."""
        self._names = self._engine.cache.names()

    def root(self, namespace: str) -> object:
        return 0

    def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
        held = 0
        for symbol in segment:
            if symbol & 0xFFFFFFFF not in self._names:
                break
            held += 1
        return held, 0

    def node_id(self, cursor: object) -> int:
        raise NotImplementedError("a router evicts nothing")


@dataclass
class Member:
    """One replica, and the requests that are there."""

    name: int
    engine: SimEngine
    jobs: dict[str, Job] = field(default_factory=dict)
    busy: bool = False
    alive: bool = True


class SimFleet:
    """Runs one workload on several engines.

    Args:
        workload: a cell or a trace; a cap on the client's outstanding requests holds for each replica.
        make_engine: makes its engines.
        router: chooses among them.
        speeds: one replica for each.
        stale_s: seconds until the router hears of anything that happens on a replica.
        timer: called before and after the router decides.
        progress: called with the number of finished requests.
    """

    def __init__(
        self,
        workload: Workload,
        make_engine: EngineMaker,
        router: Router,
        speeds: list[float],
        stale_s: float = 0.0,
        timer: Callable[[], float] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.workload = workload
        self.router = router
        self.now = 0.0
        self.members: list[Member] = []
        self._make_engine = make_engine
        self._stale_s = stale_s
        self._timer = timer
        self._progress = progress
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._finished: dict[str, Job] = {}
        self._arrived: dict[str, tuple[SimRequest, float]] = {}
        self._followers: dict[str, list[SimRequest]] = {}
        self._held_back: deque[SimRequest] = deque()
        limit = workload.client_concurrency
        self._limit = None if limit is None else limit * len(speeds)
        for speed in speeds:
            self.join(speed)

    def run(self) -> list[Job]:
        """Run to the end; all jobs in the order of the workload."""
        for request in self.workload.requests:
            if request.after is None:
                self.at(request.arrival_s, partial(self._arrive, request))
            else:
                self._followers.setdefault(request.after, []).append(request)
        while len(self._finished) < len(self.workload.requests):
            if not self._events:
                missing = len(self.workload.requests) - len(self._finished)
                raise WorkloadError(f"{missing} requests wait for a replica, and none is left")
            self.now, _, event = heappop(self._events)
            event()
        return [self._finished[request.request_id] for request in self.workload.requests]

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """`event` happens at a time, behind those already planned for it."""
        self._serial += 1
        heappush(self._events, (time_s, self._serial, event))

    # -- replicas --------------------------------------------------------------------------------------

    def join(self, speed: float = 1.0) -> None:
        """One more replica, with an empty cache; the router hears of it at once."""
        engine = self._make_engine(replace(self.workload, requests=(), client_concurrency=None), speed)
        member = Member(len(self.members), engine)
        self.members.append(member)
        view = engine.cache_view()
        if self._stale_s > 0.0 and isinstance(engine, BlockEngine):
            stale = StaleBlocks(engine)
            self._refresh(stale)
            view = stale
        self._welcome(member, view, speed)

    def _welcome(self, member: Member, view: CacheView, speed: float) -> None:
        tokens = self.workload.arena_tokens
        self.router.joined(Site(member.name, view, tokens, view.unit_tokens, speed, self._stale_s))
        self._send()

    def lose(self, name: int) -> None:
        """A replica dies with all it has."""
        self.members[name].alive = False
        self._tell(partial(self._report_loss, name))

    def _refresh(self, view: StaleBlocks) -> None:
        view.refresh()
        self.at(self.now + self._stale_s, partial(self._refresh, view))

    # -- requests --------------------------------------------------------------------------------------

    def _arrive(self, request: SimRequest) -> None:
        outstanding = len(self._arrived) - len(self._finished)
        if self._limit is not None and outstanding >= self._limit:
            self._held_back.append(request)
            return
        self._arrived[request.request_id] = (request, self.now)
        reader = self.members[0].engine
        key = pack(reader.planner_key(reader.make_job(request, self.now)))
        arrival = Arrival(
            request.request_id, key, request.num_tokens, request.output_tokens, self.now, request.namespace
        )
        self._timed(partial(self.router.arrived, arrival))
        self._send()

    def _send(self) -> None:
        """Do what the router says; what is sent to a replica that is dead stays there until that is known."""
        for request_id, name in self._timed(partial(self.router.ready, self.now)):
            member = self.members[name]
            if not member.alive:
                continue
            request, arrived_s = self._arrived[request_id]
            member.jobs[request_id] = member.engine.accept(request, arrived_s)
            if not member.busy:
                member.busy = True
                self.at(self.now, partial(self._begin_step, member))

    def _begin_step(self, member: Member) -> None:
        if not member.alive:
            return
        engine = member.engine
        engine.now = self.now
        if engine.turn():
            self.at(engine.now, partial(self._end_step, member))
            return
        member.busy = False
        if engine.stuck():
            raise engine.too_small(engine.stuck())

    def _end_step(self, member: Member) -> None:
        if not member.alive:
            return
        started = [name for name, job in member.jobs.items() if job.first_token_s == self.now]
        ended = [name for name, job in member.jobs.items() if job.finished_s >= 0.0]
        for request_id in ended:
            self._finish(request_id, member.jobs.pop(request_id))
        self._tell(partial(self._report, member.name, started, ended))
        self.at(self.now, partial(self._begin_step, member))

    def _finish(self, request_id: str, job: Job) -> None:
        assert request_id not in self._finished, "answered twice"
        self._finished[request_id] = job
        for request in self._followers.pop(request_id, []):
            self.at(max(request.arrival_s, self.now + request.think_s), partial(self._arrive, request))
        if self._held_back:
            self._arrive(self._held_back.popleft())
        if self._progress is not None:
            self._progress(len(self._finished))

    def _timed(self, decide: Callable[[], Answer]) -> Answer:
        if self._timer is None:
            return decide()
        self._timer()
        answer = decide()
        self._timer()
        return answer

    # -- news ------------------------------------------------------------------------------------------

    def _tell(self, report: Callable[[], None]) -> None:
        if self._stale_s > 0.0:
            self.at(self.now + self._stale_s, report)
        else:
            report()

    def _report(self, name: int, started: list[str], ended: list[str]) -> None:
        for request_id in started:
            self.router.started(request_id, name)
        for request_id in ended:
            self.router.finished(request_id, name)
        self._send()

    def _report_loss(self, name: int) -> None:
        self.router.lost(name)
        self._send()
