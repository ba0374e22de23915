"""vLLM's waiting queue under `--scheduling-policy priority`: tells who came and went, and follows plans.

Here a plan is laid out when it comes.  docs/vllm.md says what that costs; first come, first served has
`peek.adapters.vllm.planned`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from peek.adapters.vllm.planned import Planned, _call, _nothing

if TYPE_CHECKING:
    from peek.planner import LazyPlan


class Tracking:
    """Mixed into `Ranked`, whose every way in and out passes here.

    The set of members is vLLM's business, the order vLLM's or the planner's (`place`).

    Attributes:
        members: who is in the queue, by request id.
        entered, gone: as those of `peek.adapters.vllm.planned.Planned`.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        super().__init__(requests)  # type: ignore[call-arg]
        self.members: dict[str, Any] = {}
        self.entered: OrderedDict[str, Any] = OrderedDict()
        self.gone: dict[str, Any] = {}
        self.guard: Callable[..., Any] = _call
        self.looked: Callable[[Any], None] = _nothing
        self._held: set[str] = set()
        self._enter(requests)

    def _enter(self, requests: Iterable[Any]) -> None:
        for request in requests:
            name = request.request_id
            self.members[name] = request
            came_back = self.gone.get(name) is request
            if came_back:
                del self.gone[name]
            if not came_back or name not in self._held:  # to be passed over is nothing new to those held
                self._held.discard(name)
                self.entered[name] = request

    def _leave(self, requests: Iterable[Any]) -> None:
        for request in requests:
            name = request.request_id
            if self.members.pop(name, None) is not None:
                self.entered.pop(name, None)
                self.gone[name] = request

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        self._enter((request,))

    def prepend_request(self, request: Any) -> None:
        super().prepend_request(request)  # type: ignore[misc]
        self._enter((request,))

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        requests = list(requests)
        super().prepend_requests(requests)  # type: ignore[misc]
        self._enter(requests)

    def peek_request(self) -> Any:
        request = super().peek_request()  # type: ignore[misc]
        self.guard(self.looked, request)
        return request

    def put_back(self, requests: list[Any]) -> list[Any]:
        """All of `requests`: those that are held stand where they stood."""
        return requests

    def pop_request(self) -> Any:
        request = super().pop_request()  # type: ignore[misc]
        self._leave((request,))
        return request

    def remove_request(self, request: Any) -> None:
        super().remove_request(request)  # type: ignore[misc]
        self._leave((request,))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        requests = list(requests)
        super().remove_requests(requests)  # type: ignore[misc]
        self._leave(requests)


class Ranked:
    """Mixed into vLLM's `PriorityRequestQueue`: among equal priorities, the order that was placed last.

    Who has entered since stands behind those of its priority, and who was preempted before them.  Before
    anything is placed the order is vLLM's own.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, Any]] = []
        self._ranks: dict[str, int] = {}
        for request in requests:
            heapq.heappush(self._heap, self._item(request))

    def _item(self, request: Any) -> tuple[int, int, Any]:
        """Sorts by priority, place, and then as vLLM's requests do."""
        if not self._ranks or request.num_preemptions:
            return (request.priority, 0, request)
        return (request.priority, self._ranks.get(request.request_id, len(self._ranks) + 1), request)

    def add_request(self, request: Any) -> None:
        heapq.heappush(self._heap, self._item(request))

    def prepend_request(self, request: Any) -> None:
        heapq.heappush(self._heap, self._item(request))

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            heapq.heappush(self._heap, self._item(request))

    def peek_request(self) -> Any:
        if not self._heap:
            raise IndexError("peek from an empty queue")
        return self._heap[0][2]

    def pop_request(self) -> Any:
        if not self._heap:
            raise IndexError("pop from an empty queue")
        return heapq.heappop(self._heap)[2]

    def remove_request(self, request: Any) -> None:
        if all(item[2] is not request for item in self._heap):
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        Ranked.remove_requests(self, (request,))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        gone = set(requests)
        self._heap = [item for item in self._heap if item[2] not in gone]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Any]:
        return iter([item[2] for item in sorted(self._heap)])


class PlacedByPriority(Tracking):
    """`Tracking` over a `Ranked` queue, with the calls of `peek.adapters.vllm.planned.Planned`.

    Whoever is in no plan keeps his place among all.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        super().__init__(requests)
        self.overtook = False

    def follow(self, plan: LazyPlan | None) -> None:
        """The order of this plan, ascending in priority; None for vLLM's own.  O(n log n)."""
        queue = list(cast(Iterable[Any], self))
        ids = [] if plan is None else list(plan)
        planned = iter(ids)
        members, taking_part = self.members, set(ids)
        ordered = sorted(queue) if plan is None else queue
        if plan is not None:
            ordered = [members[next(planned)] if r.request_id in taking_part else r for r in queue]
        if ordered != queue:
            self.place(ordered)
            self.overtook = True

    def place(self, requests: list[Any]) -> None:
        """The same members in another order, ascending in priority.  O(n)."""
        self._ranks = {request.request_id: rank for rank, request in enumerate(requests, 1)}
        self._heap = [(request.priority, rank, request) for rank, request in enumerate(requests, 1)]

    def keep_place(self, request: Any) -> None:
        """A member takes part in no plan.  O(1)."""
        self._held.discard(request.request_id)

    take_part = keep_place

    def hold(self, request: Any) -> None:
        """A member cannot run for now; vLLM passes over it where it stands.  O(1)."""
        self._held.add(request.request_id)

    def release(self) -> None:
        """Nobody is held any more."""
        self._held.clear()

    def settle(self) -> None:
        """Between steps: nothing to do."""


def tracked_queue(stock: Any) -> Any:
    """A queue of vLLM's own kind, with the same requests, that tells who came and went and follows plans."""
    from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue

    if isinstance(stock, PriorityRequestQueue):
        return type("TrackedPriorityQueue", (PlacedByPriority, Ranked, PriorityRequestQueue), {})(list(stock))
    return type("PlannedQueue", (Planned, RequestQueue), {})(list(stock))
