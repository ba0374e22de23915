"""A user's own policy, view, queue and calls, fully typed, to test the type annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from peek import AdmissionPolicy, CacheView, Cycle, Lanes, PendingRequest, Planner
from peek.fleet import FleetPlanner
from peek.offline import Waves, reorder
from peek.testing import Prepared


@dataclass(frozen=True)
class Weights:
    cold: float = 0.5


class Weighed(AdmissionPolicy):
    """Counts of tokens are numbers like others: with floats, in means and bounds."""

    Options = Weights

    def __init__(self, options: Weights | None = None) -> None:
        super().__init__(options=options)
        self.seen = 0.0

    def arrived(self, request: PendingRequest) -> None:
        self.seen += request.num_tokens / 1000

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        def rank(request: PendingRequest) -> tuple[float, float]:
            share = request.cached_len / max(1, request.num_tokens)
            age = (cycle.now - request.arrival_time) / max(1, round(request.num_tokens, -1))
            return (self.options.cold * abs(request.num_tokens - request.cached_len) - age, -share)

        return sorted(queue, key=rank)

    def stream(self, cycle: Cycle) -> Iterator[PendingRequest]:
        waiting = sorted(cycle.tree.requests(), key=lambda request: (request.arrival_time, request.sequence))
        yield from self.order(waiting, cycle)


class OldestFirst(Lanes):
    def interleave(
        self, cache_lane: list[PendingRequest], queue: list[PendingRequest], cycle: Cycle
    ) -> list[PendingRequest]:
        return list(queue)


def oldest(prepared: Prepared) -> PendingRequest:
    return OldestFirst().interleave([], prepared.queue, prepared.cycle)[0]


class Node:
    """A token in a cache."""

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}


class View:
    """A cache whose cursors have a type of their own; the size of a page is the engine's."""

    def __init__(self) -> None:
        self.top = Node()

    @property
    def unit_tokens(self) -> int:
        return 1

    def root(self, namespace: str) -> Node:
        return self.top

    def advance(self, cursor: Node, segment: memoryview, offset: int) -> tuple[int, Node]:
        done = 0
        while done < len(segment) and segment[done] in cursor.children:
            cursor = cursor.children[segment[done]]
            done += 1
        return done, cursor

    def node_id(self, cursor: Node) -> int:
        return id(cursor)


class Queue:
    """An engine's waiting queue."""

    def __init__(self, waiting: dict[str, list[int]]) -> None:
        self.waiting = waiting

    def waiting_ids(self) -> Sequence[str]:
        return list(self.waiting)

    def translate(self, request_id: str) -> PendingRequest:
        return PendingRequest(request_id, np.array(self.waiting[request_id]), arrival_time=0)

    def uncached_tokens(self, request_id: str) -> int:
        return -1

    def reorder(self, order: Sequence[str]) -> None:
        self.waiting = {name: self.waiting[name] for name in order}


def play() -> tuple[float, float]:
    """Use each of them; what was expected to hit, and was sent to who had it, as shares."""
    view: CacheView = View()
    planner, queue = Planner(policy=Weighed(), lanes=OldestFirst()), Queue({"a": [1, 2], "b": [1, 3]})
    planner.cycle(queue, view, now=1)
    fleet = FleetPlanner()
    fleet.join("gpu0", view=view)
    matrix = np.ones((3, 40), np.int32)
    assert list(Waves(matrix, wave_size=3)) == [reorder(matrix).order]
    hit = planner.stats.cached_expected / max(1, planner.stats.prompt_tokens)
    return hit, fleet.stats.sticky / max(1, fleet.stats.dispatched)
