"""Queues as plain data, at one moment (`Scene`) and over time (`History`, `Replay`), and their printed form.

A `Scene` builds the library's objects (`prepare`, `planner`).  A `Replay` keeps one tree over many steps, as
a planner does, and never rebuilds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import ADMITTED, HELD, WITHDRAWN, AdmissionPolicy, Cycle
from peek.policy.sections import THETA
from peek.request import PendingRequest
from peek.testing.twins import Place, longest
from peek.trie.dual_walk import DualWalk
from peek.trie.keys import heads_of
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView

NOW = 64.0  # the `now` of every scene that sets none, in seconds


@dataclass(frozen=True)
class Arrival:
    """One request as it arrives.

    Attributes:
        symbols: the prompt in symbols of the engine's cache.
        arrival_time: seconds.
        num_tokens: prompt length in tokens; 0 means that the symbols are all of it.
        arrival_work: uncached tokens that the engine had admitted by then.
    """

    request_id: str
    symbols: tuple[int, ...]
    arrival_time: float = 0.0
    namespace: str = ""
    num_tokens: int = 0
    arrival_work: int = 0
    tenant: str = ""
    session: str = ""
    ttft_target_s: float | None = None

    @property
    def place(self) -> Place:
        return self.namespace, self.symbols

    def tokens(self, unit: int = 1) -> int:
        """Length of the prompt in tokens, with `unit` tokens per symbol."""
        return self.num_tokens or len(self.symbols) * unit

    def request(self) -> PendingRequest:
        """Make a new request object; the planner sets its `arrival_work`."""
        return PendingRequest(
            self.request_id, list(self.symbols), self.arrival_time, self.namespace, self.num_tokens,
            tenant=self.tenant, session=self.session, ttft_target_s=self.ttft_target_s,
        )  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """The arguments of a policy: the queue in arrival order, with every signal written, and the cycle."""

    queue: list[PendingRequest]
    cycle: Cycle

    def order(self, policy: AdmissionPolicy) -> list[str]:
        return ids(policy.order(self.queue, self.cycle))

    def sections(self) -> dict[str, int]:
        return {request.request_id: request.section for request in self.queue}


@dataclass(frozen=True)
class Scene:
    """The waiting requests in arrival order, the cached prompts, and the prompts under way."""

    rows: tuple[Arrival, ...]
    cached: tuple[Place, ...] = ()
    in_flight: tuple[Place, ...] = ()
    unit: int = 1  # tokens per symbol
    now: float = NOW

    def cache(self) -> TreeView:
        """Make a cache that holds `cached` and nothing else."""
        return cache_of(self.cached, self.unit)

    def planner(self, label: str) -> Planner:
        """Make a planner that knows the whole queue and has planned nothing yet."""
        planner = Planner(PeekConfig.from_label(label))
        for row in self.rows:
            planner.add(row.request())
        return planner

    def plan(self, label: str) -> list[str]:
        return self.planner(label).plan(self.cache(), self.now)

    def prepare(self, theta: int = THETA, work_done: int = 0, defers_siblings: bool = False) -> Prepared:
        """Make new request objects in a new tree, with all signals written.

        `theta` are the tokens of the head, see `AdmissionPolicy`; the others are those of `Cycle`.
        """
        tree = PendingTree()
        queue = [row.request() for row in self.rows]
        for row, request in zip(self.rows, queue, strict=True):
            tree.add(request)
            request.num_tokens = row.tokens(self.unit)
            request.arrival_work = row.arrival_work
            request.coming_len = longest(self.in_flight, row.place) * self.unit
        DualWalk(tree).walk(self.cache())
        tree.refresh(-(-theta // self.unit))
        return Prepared(queue, Cycle(tree, self.now, self.unit, work_done, defers_siblings))


def ids(requests: Iterable[PendingRequest]) -> list[str]:
    return [request.request_id for request in requests]


def cache_of(places: Iterable[Place], unit: int = 1) -> TreeView:
    """Make a cache that holds these sequences and their prefixes."""
    return TreeView(tree_of({f"cached-{i}": place for i, place in enumerate(places) if place[1]}), unit)


def tree_of(waiting: Mapping[str, Place]) -> PendingTree:
    tree = PendingTree()
    for request_id, (namespace, symbols) in waiting.items():
        tree.insert(request_id, list(symbols), namespace)
    return tree


# -- a queue over time --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One step of an engine: requests arrive, the queue is ordered, requests leave.

    Attributes:
        now: moment at which the queue is ordered, seconds.
        arrivals: requests that have come since the last step.
        cached: what the cache holds now.
        admitted: number of requests admitted from the front of the order.
        withdrawn: number of the other requests that are withdrawn, latest arrivals first.
    """

    now: float
    arrivals: tuple[Arrival, ...] = ()
    cached: tuple[Place, ...] = ()
    admitted: int = 0
    withdrawn: int = 0


@dataclass(frozen=True)
class History:
    """Steps of one engine, in the order of time."""

    steps: tuple[Step, ...]
    unit: int = 1  # tokens per symbol


class Replay:
    """The waiting requests of an engine over time, as a planner would keep them; `policy` is told of them."""

    def __init__(self, unit: int = 1, policy: AdmissionPolicy | None = None) -> None:
        self.unit = unit
        self._policy = AdmissionPolicy() if policy is None else policy
        self.work_done = 0  # uncached tokens admitted so far
        self._tree = PendingTree()
        self._walk = DualWalk(self._tree)
        self._rows: dict[str, Arrival] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def arrive(self, rows: Iterable[Arrival]) -> None:
        for row in rows:
            request = row.request()
            self._tree.add(request)
            request.num_tokens = row.tokens(self.unit)
            request.arrival_work = self.work_done
            _tell(self._policy, request, self._tree)
            self._rows[row.request_id] = replace(row, arrival_work=self.work_done)

    def admit(self, request_id: str) -> int:
        """Admit a request; return the tokens that the engine has to compute, by the last walk."""
        request = self._tree.remove(request_id)
        del self._rows[request_id]
        cost = max(0, request.num_tokens - request.cached_len)
        self.work_done += cost
        self._policy.left(request, ADMITTED, cost)
        if request.tenant:
            self._policy.generated(request.tenant, 7)
        self._policy.answered(request_id, 7)
        return cost

    def hold(self) -> None:
        """Hold the request that arrived first, and let it wait again at once."""
        if self._rows:
            row = next(iter(self._rows.values()))
            self._policy.left(self._tree.remove(row.request_id), HELD, 0)
            del self._rows[row.request_id]
            self.arrive([row])

    def withdraw(self, count: int) -> None:
        for request_id in list(self._rows)[max(0, len(self._rows) - count) :]:
            self._policy.left(self._tree.remove(request_id), WITHDRAWN, 0)
            del self._rows[request_id]

    def scene(self, cached: tuple[Place, ...], now: float) -> Scene:
        """The same queue as a `Scene`, without its history."""
        rows = sorted(self._rows.values(), key=lambda row: row.arrival_time)
        return Scene(tuple(rows), cached, (), self.unit, now)

    def prepare(self, cached: tuple[Place, ...], now: float, theta: int = THETA) -> Prepared:
        """The actual request objects in arrival order, with all signals up to date."""
        self._walk.walk(cache_of(cached, self.unit))
        self._tree.refresh(-(-theta // self.unit))
        queue = sorted(self._tree.requests(), key=lambda request: request.arrival_time)
        return Prepared(queue, Cycle(self._tree, now, self.unit, self.work_done))


def told(policy: AdmissionPolicy, prepared: Prepared) -> Prepared:
    """Tell a policy of the requests of `prepared`, and return it."""
    for request in prepared.queue:
        _tell(policy, request, prepared.cycle.tree)
    return prepared


def _tell(policy: AdmissionPolicy, request: PendingRequest, tree: PendingTree) -> None:
    if policy.reads_heads and not request.heads:
        request.heads = heads_of(tree.key_of(request.request_id))
    policy.arrived(request)


# -- what a failing check prints ----------------------------------------------------------------------


def show_symbols(symbols: Sequence[int]) -> str:
    """Show a key with each run of one symbol shortened: `[1, 2 x31, 3]`."""
    runs = [(symbol, len(list(run))) for symbol, run in groupby(symbols)]
    return f"[{', '.join(f'{symbol} x{n}' if n > 1 else str(symbol) for symbol, n in runs)}]"


def show_place(place: Place) -> str:
    namespace, symbols = place
    return show_symbols(symbols) + (f" in namespace {namespace!r}" if namespace else "")


def show_arrival(row: Arrival) -> str:
    tokens = f", {row.num_tokens} tokens" if row.num_tokens else ""
    named = {"tenant": row.tenant, "session": row.session, "target": row.ttft_target_s}
    who = "".join(f", {name} {value}" for name, value in named.items() if value not in ("", None))
    return f"{row.request_id}: arrived at {row.arrival_time:g}{tokens}{who}, {show_place(row.place)}"


SHOWN: Final = 12  # most requests of a queue that are shown


def show_scene(scene: Scene) -> str:
    """Show the queue, and how much of each request is cached."""
    unit = "" if scene.unit == 1 else f", {scene.unit} tokens a symbol"
    lines = [f"  queue at {scene.now:g}{unit}, symbols cached in brackets:"]
    for row in scene.rows[:SHOWN]:
        coming = longest(scene.in_flight, row.place)
        under_way = f", {coming} being computed" if coming else ""
        lines.append(f"    {show_arrival(row)} ({longest(scene.cached, row.place)}{under_way})")
    if len(scene.rows) > SHOWN:
        lines.append(f"    and {len(scene.rows) - SHOWN} more")
    return "\n".join(lines)


def show_history(history: History) -> str:
    lines = ["  history, step by step:"]
    for step in history.steps:
        lines.append(f"    at {step.now:g}:")
        lines += [f"      arrives {show_arrival(row)}" for row in step.arrivals]
        lines += [f"      cached {show_place(place)}" for place in step.cached if place[1]]
        if step.admitted or step.withdrawn:
            lines.append(f"      then {step.admitted} admitted, {step.withdrawn} withdrawn")
    return "\n".join(lines)
