"""Simulate several engines behind one router, in virtual time.

Events happen in order of time: a request arrives, a step of an engine begins or ends, news of a step reaches
the router, a replica dies or joins.  After each event that the router hears of, it says which requests to
send where.  It learns everything `stale_s` seconds late; engines know nothing of each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from peek.config import PeekConfig
from peek.errors import InvalidConfig, WorkloadError
from peek.protocols import CacheView
from peek.settings import require_one_of, require_within
from peek.simulation.caches import SymbolTable
from peek.simulation.cost import Faster, StepTimes, cost_model_for
from peek.simulation.engines import BlockEngine, Job, SimEngine, StepWork
from peek.simulation.routers import ROUTERS as ROUTERS
from peek.simulation.routers import Arrival, Router, Site
from peek.simulation.simulate import TARGETS, PlanMeter, Target, figures, make_engine
from peek.simulation.workload import CIRCLE, Progress, SimRequest, Workload, followers
from peek.trie.keys import pack

MOST_REPLICAS: Final = 16_384


class ReportedBlocks:
    """`CacheView` of a vLLM-like engine's blocks, also scheduled ones, as of the last `refresh`."""

    block_symbols = 1

    def __init__(self, engine: BlockEngine) -> None:
        self._engine = engine
        self.unit_tokens = engine.cache.unit_tokens
        self._names: frozenset[int] = frozenset()

    def refresh(self) -> None:
        """Take over the names of the blocks that are cached now."""
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
    """One replica: its engine, and the jobs there that have not ended."""

    name: int
    engine: SimEngine
    jobs: dict[str, Job] = field(default_factory=dict)
    blocks: ReportedBlocks | None = None
    busy: bool = False
    alive: bool = True


class SimFleet:
    """Runs one workload on several replicas behind a router.

    The cap on the client's outstanding requests counts once per replica.  `make_engine` makes an empty engine
    from engine limits (a workload without requests) and a speed.  `timer` is read around each decision.
    """

    def __init__(
        self,
        workload: Workload,
        make_engine: Callable[[Workload, float], SimEngine],
        router: Router,
        shape: FleetShape,
        timer: Callable[[], float],
        progress: Progress,
    ) -> None:
        self.workload = workload
        self.router = router
        self.now = 0.0
        self.members: list[Member] = []
        self._make_engine = make_engine
        self._stale_s = shape.stale_s
        self._timer = timer
        self._progress = progress
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._finished: dict[str, Job] = {}
        self._arrived: dict[str, tuple[SimRequest, float]] = {}
        self._followers = followers(workload)
        self._held_back: deque[SimRequest] = deque()
        limit = workload.client_concurrency
        self._limit = None if limit is None else limit * len(shape.speeds)
        for speed in shape.speeds:
            self.join(speed)
        for second, name in shape.losses:
            self.at(second, partial(self.lose, name))
        for second, speed in shape.joins:
            self.at(second, partial(self.join, speed))

    def run(self) -> list[Job]:
        """Run until all requests are finished; return all jobs in the order of the workload."""
        for request in self.workload.requests:
            if request.after is None:
                self.at(request.arrival_s, partial(self._arrive, request))
        while len(self._finished) < len(self.workload.requests):
            if not self._events:
                if len(self._arrived) == len(self._finished):
                    raise WorkloadError(CIRCLE)
                missing = len(self.workload.requests) - len(self._finished)
                raise WorkloadError(f"{missing} requests wait for a replica, and none is left")
            self.now, _, event = heappop(self._events)
            event()
        return [self._finished[request.request_id] for request in self.workload.requests]

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Schedule `event` at `time_s`, after the events already scheduled for that time."""
        self._serial += 1
        heappush(self._events, (time_s, self._serial, event))

    # -- replicas --------------------------------------------------------------------------------------

    def join(self, speed: float) -> None:
        """Add a replica with an empty cache; the router is told at once."""
        engine = self._make_engine(replace(self.workload, requests=(), client_concurrency=None), speed)
        member = Member(len(self.members), engine)
        self.members.append(member)
        view: CacheView = engine.cache
        if isinstance(engine, BlockEngine):
            view = member.blocks = ReportedBlocks(engine)
            if self._stale_s > 0.0:
                self._refresh(member, member.blocks)
        tokens, seats = self.workload.arena_tokens, self.workload.max_running
        self.router.joined(Site(member.name, view, tokens, view.unit_tokens, speed, seats, self._stale_s))
        self._send()

    def lose(self, name: int) -> None:
        """Let a replica die with its cache and all its requests; the router is told like any other news."""
        self.members[name].alive = False
        self._tell(partial(self.router.lost, name))

    def _refresh(self, member: Member, view: ReportedBlocks) -> None:
        if member.alive:
            view.refresh()
            self.at(self.now + self._stale_s, partial(self._refresh, member, view))

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
            request.request_id, key, request.num_tokens, request.output_tokens, self.now, request.namespace,
            request.session,
        )  # fmt: skip
        self._timer()
        self.router.arrived(arrival)
        self._timer()
        self._send()

    def _send(self) -> None:
        """Send the requests that the router names; any for a dead replica wait until its loss is known."""
        self._timer()
        named = self.router.ready(self.now)
        self._timer()
        for request_id, name in named:
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
        work = engine.begin_step()
        if work.jobs:
            self.at(engine.now, partial(self._end_step, member, work))
            return
        member.busy = False
        if engine.stuck():
            raise engine.too_small(engine.stuck())

    def _end_step(self, member: Member, work: StepWork) -> None:
        if not member.alive:
            return
        member.engine.end_step(work)
        if member.blocks is not None and self._stale_s == 0.0:
            member.blocks.refresh()
        started = [name for name, job in member.jobs.items() if job.first_token_s == self.now]
        ended = [name for name, job in member.jobs.items() if job.finished_s >= 0.0]
        for request_id in ended:
            self._finish(request_id, member.jobs.pop(request_id))
        reports = [partial(self.router.started, request_id, member.name) for request_id in started]
        reports += [partial(self.router.finished, request_id, member.name) for request_id in ended]
        self._tell(*reports)
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

    def _tell(self, *reports: Callable[[], None]) -> None:
        """Give reports to the router, at once or `stale_s` later, and then do what it says."""
        if self._stale_s > 0.0:
            self.at(self.now + self._stale_s, partial(self._hear, reports))
        else:
            self._hear(reports)

    def _hear(self, reports: Sequence[Callable[[], None]]) -> None:
        for report in reports:
            report()
        self._send()


@dataclass(frozen=True)
class FleetShape:
    """The replicas and router of a fleet, and when replicas die and join."""

    router: str  # name of the router, one of `ROUTERS`
    speeds: Sequence[float]  # speed of each replica at the start, as a factor of the cost model's speed
    stale_s: float = 0.0  # delay of news from replicas to the router, in seconds
    # `(second, replica)`: when each replica dies, once; replicas are numbered from 0 as they join
    losses: Sequence[tuple[float, int]] = ()
    # `(second, speed)`: when each further replica joins, and its speed
    joins: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        require_one_of("router", self.router, ROUTERS)
        require_within("replicas", len(self.speeds), 1, MOST_REPLICAS)
        require_within("stale_s", self.stale_s, 0.0, 3600.0)
        for speed in self.speeds:
            require_within("speed", speed, 0.01, 100.0)
        there = [-inf] * len(self.speeds) + sorted([second for second, _ in self.joins])
        for second, name in sorted(self.losses):
            if not (0 <= name < len(there) and there[name] < second):
                raise InvalidConfig(f"there is no replica {name} to lose at {second} s")
            there[name] = inf


def simulate_fleet(
    workload: Workload,
    label: str,
    shape: FleetShape,
    cache: str = "blocks",
    timer: Callable[[], float] | None = None,
    cost: StepTimes | None = None,
    progress: Progress = None,
    router: Router | None = None,
    targets: Sequence[Target] = TARGETS,
) -> dict[str, Any]:
    """Run `workload` on a fleet whose engines have the policy `label`; return the figures of the run.

    The figures are those of `simulate`, and `shape`.  `imbalance` is the most prefill tokens that a replica
    computed, over the mean.  Arguments are those of `simulate`; `router`, if given, replaces `shape.router`.
    """
    if shape.stale_s > 0.0 and cache != "blocks":
        raise InvalidConfig(f"stale_s is {shape.stale_s}; late news needs engines of kind 'blocks'")
    meter, decisions = PlanMeter(timer), PlanMeter(timer)
    model = cost_model_for(workload.name) if cost is None else cost
    config, symbols = PeekConfig.from_label(label), SymbolTable()

    def engine_of(limits: Workload, speed: float) -> SimEngine:
        step_times = model if speed == 1.0 else Faster(model, speed)
        return make_engine(config, cache, limits, step_times, meter, symbols=symbols)

    chosen = ROUTERS[shape.router]() if router is None else router
    fleet = SimFleet(workload, engine_of, chosen, shape, decisions, progress)
    jobs = fleet.run()
    computed = [sum(j.prefill_tokens for j in m.engine.jobs.values()) for m in fleet.members]
    return {
        "workload": workload.name,
        "load": workload.load,
        "policy": label,
        "seed": workload.seed,
        "replicas": len(shape.speeds),
        "router": shape.router,
        "stale_s": shape.stale_s,
        **figures(workload, jobs, targets),
        "imbalance": max(computed) * len(computed) / sum(computed),
        "plan_us": meter.figures(),
        "decision_us": decisions.figures(),
    }
