"""One moment in a queue's life, as plain data: who waits, what is cached, what is being prefilled.

A `Scene` builds the library's objects (`prepare`, `planner`), and it computes every signal that a policy
may read a second time, from the definitions (`facts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peek.config import PeekConfig
from peek.planner import Planner
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.sections import THETA
from peek.request import PendingRequest
from peek.testing.twins import NaivePendingTree, Place, longest
from peek.trie.dual_walk import DualWalk
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView

NOW = 64.0
"""The `now` of every scene that names no other, in seconds."""


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

    @property
    def place(self) -> Place:
        return self.namespace, self.symbols

    def request(self) -> PendingRequest:
        """A new request object; `arrival_work` is left to whoever plans."""
        key = list(self.symbols)
        return PendingRequest(self.request_id, key, self.arrival_time, self.namespace, self.num_tokens)


@dataclass(frozen=True)
class Fact:
    """The signals of one request, from their definitions; lengths in tokens unless said otherwise."""

    row: Arrival
    rank: int
    num_tokens: int
    cached_len: int
    coming_len: int
    score: int
    cluster: Place | None
    cluster_size: int
    head: Place | None

    @property
    def request_id(self) -> str:
        return self.row.request_id

    @property
    def cluster_depth(self) -> int:
        """In symbols."""
        return 0 if self.cluster is None else len(self.cluster[1])

    @property
    def uncached(self) -> int:
        return self.num_tokens - self.cached_len


@dataclass(frozen=True)
class Prepared:
    """What a policy is called with: the queue in arrival order, every signal written, and the cycle."""

    queue: list[PendingRequest]
    cycle: Cycle

    def order(self, policy: AdmissionPolicy) -> list[str]:
        return ids(policy.order(self.queue, self.cycle))

    def sections(self) -> dict[str, int]:
        return {request.request_id: request.section for request in self.queue}


@dataclass(frozen=True)
class Scene:
    """Who waits, in arrival order; what is cached; which prompts are being prefilled."""

    rows: tuple[Arrival, ...]
    cached: tuple[Place, ...] = ()
    in_flight: tuple[Place, ...] = ()
    unit: int = 1
    """Tokens per symbol."""
    now: float = NOW

    def cache(self) -> TreeView:
        """A cache that holds `cached` and nothing else."""
        return cache_of(self.cached, self.unit)

    def planner(self, label: str) -> Planner:
        """A planner that knows the whole queue and has planned nothing yet."""
        planner = Planner(PeekConfig.from_label(label))
        for row in self.rows:
            planner.add(row.request())
        return planner

    def plan(self, label: str) -> list[str]:
        return self.planner(label).plan(self.cache(), self.now)

    def prepare(self, theta: int = THETA, work_done: int = 0, defers_siblings: bool = False) -> Prepared:
        """New request objects in a new tree, all signals written.

        Args:
            theta: tokens of the head, see `AdmissionPolicy`.
            work_done, defers_siblings: as in `Cycle`.
        """
        tree = PendingTree()
        queue = [row.request() for row in self.rows]
        for row, request in zip(self.rows, queue, strict=True):
            tree.add(request)
            request.num_tokens = row.num_tokens or len(row.symbols) * self.unit
            request.arrival_work = row.arrival_work
            request.coming_len = longest(self.in_flight, row.place) * self.unit
        DualWalk(tree).walk(self.cache())
        tree.refresh(-(-theta // self.unit))
        return Prepared(queue, Cycle(tree, self.now, self.unit, work_done, defers_siblings))

    def naive_tree(self) -> NaivePendingTree:
        tree = NaivePendingTree()
        for row in self.rows:
            tree.insert(row.request_id, row.symbols, row.namespace)
        return tree

    def facts(self, theta: int = THETA) -> list[Fact]:
        """In arrival order."""
        tree = self.naive_tree()
        scores, clusters = tree.scores(), tree.clusters()
        heads = tree.heads(-(-theta // self.unit))
        found = []
        for rank, row in enumerate(self.rows):
            cluster = clusters[row.request_id]
            fact = Fact(
                row=row,
                rank=rank,
                num_tokens=row.num_tokens or len(row.symbols) * self.unit,
                cached_len=longest(self.cached, row.place) * self.unit,
                coming_len=longest(self.in_flight, row.place) * self.unit,
                score=scores[row.request_id],
                cluster=cluster,
                cluster_size=1 if cluster is None else tree.pending_count(cluster[1], cluster[0]),
                head=heads[row.request_id],
            )
            found.append(fact)
        return found


def ids(requests: Iterable[PendingRequest]) -> list[str]:
    return [request.request_id for request in requests]


def cache_of(places: Iterable[Place], unit: int = 1) -> TreeView:
    """A cache that holds these sequences and their prefixes."""
    tree = PendingTree()
    for i, (namespace, symbols) in enumerate(places):
        if symbols:
            tree.insert(f"cached-{i}", list(symbols), namespace)
    return TreeView(tree, unit)
