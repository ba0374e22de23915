"""A queue that lives: requests come and go, step after step, over one tree that is never made anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from peek.policy.base import ADMITTED, WITHDRAWN, AdmissionPolicy, Cycle
from peek.policy.sections import THETA
from peek.request import PendingRequest
from peek.testing.scenes import Arrival, Prepared, Scene, cache_of
from peek.testing.twins import Place
from peek.trie.dual_walk import DualWalk
from peek.trie.keys import heads_of
from peek.trie.pending_tree import PendingTree


@dataclass(frozen=True)
class Step:
    """One step of an engine: some arrive, the queue is ordered, some leave.

    Attributes:
        now: seconds, when the queue is ordered.
        arrivals: who has come since the last step.
        cached: what the cache holds now.
        admitted: so many are admitted from the front of the order.
        withdrawn: and so many of the others, those who came last, give up.
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
    unit: int = 1
    """Tokens per symbol."""


class Replay:
    """The waiting requests of one engine over time, as a planner would keep them.

    Args:
        policy: hears who comes and leaves.
    """

    def __init__(self, unit: int = 1, policy: AdmissionPolicy | None = None) -> None:
        self.unit = unit
        self._policy = AdmissionPolicy() if policy is None else policy
        self.work_done = 0
        """Uncached tokens admitted so far."""
        self._tree = PendingTree()
        self._walk = DualWalk(self._tree)
        self._rows: dict[str, Arrival] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def arrive(self, rows: Iterable[Arrival]) -> None:
        for row in rows:
            request = row.request()
            self._tree.add(request)
            request.num_tokens = row.num_tokens or len(row.symbols) * self.unit
            request.arrival_work = self.work_done
            _tell(self._policy, request, self._tree)
            self._rows[row.request_id] = replace(row, arrival_work=self.work_done)

    def admit(self, request_id: str) -> int:
        """A request leaves for the engine; returns the tokens it has to compute, from the last walk."""
        request = self._tree.remove(request_id)
        del self._rows[request_id]
        cost = max(0, request.num_tokens - request.cached_len)
        self.work_done += cost
        self._policy.left(request, ADMITTED, cost)
        return cost

    def withdraw(self, count: int) -> None:
        """Those who came last give up."""
        for request_id in list(self._rows)[max(0, len(self._rows) - count) :]:
            self._policy.left(self._tree.remove(request_id), WITHDRAWN, 0)
            del self._rows[request_id]

    def scene(self, cached: tuple[Place, ...], now: float) -> Scene:
        """The same queue, written down; what it prepares knows nothing of the past."""
        rows = sorted(self._rows.values(), key=lambda row: row.arrival_time)
        return Scene(tuple(rows), cached, (), self.unit, now)

    def prepare(self, cached: tuple[Place, ...], now: float, theta: int = THETA) -> Prepared:
        """The living requests in arrival order, every signal written anew."""
        self._walk.walk(cache_of(cached, self.unit))
        self._tree.refresh(-(-theta // self.unit))
        queue = sorted(self._tree.requests(), key=lambda request: request.arrival_time)
        return Prepared(queue, Cycle(self._tree, now, self.unit, self.work_done))


def told(policy: AdmissionPolicy, prepared: Prepared) -> Prepared:
    """`prepared`, of whose requests the policy has heard."""
    for request in prepared.queue:
        _tell(policy, request, prepared.cycle.tree)
    return prepared


def _tell(policy: AdmissionPolicy, request: PendingRequest, tree: PendingTree) -> None:
    if policy.reads_heads and not request.heads:
        request.heads = heads_of(tree.key_of(request.request_id))
    policy.arrived(request)
