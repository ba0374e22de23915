"""vLLM's waiting queue in the order of a plan that is worked out as vLLM asks for the next request.

vLLM looks at a waiting queue through a dozen methods and admits a few requests a step.  So the order is not
laid out: whoever is asked for is looked up in the plan, and a step costs what it admits, however many wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peek.planner import LazyPlan


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Planned:
    """Mixed into vLLM's `RequestQueue`.

    Who takes part in plans goes in the order of the last one, and behind these whoever it does not know, by
    entry.  Who takes part in none (`keep_place`) is up when as many have left as stood before him, as it
    would be without plans.  Whom vLLM puts at the head stays there until he takes part.

    Attributes:
        members: who is in the queue, by request id.
        entered: who has entered, or come back, until somebody takes note of it, in that order.
        gone: who has left and not come back, likewise.
        guard: calls the plan; answers None where that fails.
        overtook: whether a plan had somebody taken out before one who had entered earlier, since somebody
            last cleared it.
    """

    def __init__(self, requests: Iterable[Any] = ()) -> None:
        self.members: dict[str, Any] = {}
        self.entered: OrderedDict[str, Any] = OrderedDict()
        self.gone: dict[str, Any] = {}
        self.guard: Callable[..., Any] = _call
        self.overtook = False
        self._head: deque[Any] = deque()
        self._body: OrderedDict[str, Any] = OrderedDict()
        self._turns: list[tuple[int, str]] = []  # a heap, of those who keep their places and some who did
        self._numbers: dict[str, int] = {}
        self._came = 0
        self._left = 0
        self._strays: list[Any] = []
        self._plan: LazyPlan | None = None
        self._at = 0
        self._next: Any = None
        """Whoever was asked for last: vLLM looks, makes room, and then takes out whom it has seen."""
        for request in requests:
            self.add_request(request)

    # -- plans -------------------------------------------------------------------------------------

    def follow(self, plan: LazyPlan | None) -> None:
        """Go on in the order of this plan; None for the order of entry.  O(1)."""
        self._plan = plan
        self._at = 0
        self._next = None

    def keep_place(self, request: Any) -> None:
        """A member takes part in no plan.  O(log n)."""
        name = request.request_id
        self._next = None
        if self._body.pop(name, None) is not None:
            heapq.heappush(self._turns, (self._numbers[name], name))

    def take_part(self, request: Any) -> None:
        """A member takes part in plans.  O(1), but O(n) for one at the head."""
        name = request.request_id
        self._next = None
        if name not in self._body:
            if request in self._head:
                self._head.remove(request)
            self._body[name] = request
            self._body.move_to_end(name, last=False)

    # -- vLLM's calls ------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        if self._enters(request):
            self._body[request.request_id] = request
            self._numbers[request.request_id] = self._came
            self._came += 1

    def prepend_request(self, request: Any) -> None:
        if self._enters(request):
            self._head.appendleft(request)
            self._left -= 1  # he goes before all who are here, and they wait as long again
            self._numbers[request.request_id] = self._left

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in list(requests):
            self.prepend_request(request)

    def _enters(self, request: Any) -> bool:
        """Take him in.  A second one of an id is set apart: nobody is lost, and `len` tells the adapter."""
        name = request.request_id
        if name in self.members:
            self._strays.append(request)
            return False
        self._next = None
        self.members[name] = self.entered[name] = request
        if self.gone.get(name) is request:
            del self.gone[name]
        return True

    def peek_request(self) -> Any:
        """Who goes next; the same until somebody enters or leaves.  O(1) but for what the plan works out."""
        if self._next is None:
            self._next = self._find_next()
        return self._next

    def _find_next(self) -> Any:
        if self._head:
            return self._head[0]
        turn = self._next_turn()
        if turn is not None and self._numbers[turn] <= self._left:
            return self.members[turn]
        planned = self._next_planned()
        if planned is not None:
            return self._body[planned]
        name = next(iter(self._body), None)
        if name is None or (turn is not None and self._numbers[turn] < self._numbers[name]):
            name = turn
        if name is not None:
            return self.members[name]
        if self._strays:
            return self._strays[0]
        raise IndexError("peek from an empty queue")

    def _next_turn(self) -> str | None:
        """The first of those who keep their places."""
        turns = self._turns
        while turns:
            number, name = turns[0]
            if self._numbers.get(name) == number and name not in self._body:
                return name
            heapq.heappop(turns)
        return None

    def _next_planned(self) -> str | None:
        """The first of those in the plan who are still here."""
        plan = self._plan
        while plan is not None and (name := self.guard(plan.at, self._at)) is not None:
            if name in self._body:
                return str(name)
            self._at += 1
        return None

    def pop_request(self) -> Any:
        request = self.peek_request()
        name = request.request_id
        if self._plan is not None and not self.overtook and name in self._body:
            self.overtook = next(iter(self._body)) != name
        self.remove_request(request)
        return request

    def remove_request(self, request: Any) -> None:
        name = request.request_id
        self._next = None
        if self.members.get(name) is not request:
            self._strays.remove(request)
            return
        if self._body.pop(name, None) is None and request in self._head:
            self._head.remove(request)
        del self.members[name], self._numbers[name]
        self.entered.pop(name, None)
        self.gone[name] = request
        self._left += 1

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in set(requests):
            if self.members.get(request.request_id) is request or request in self._strays:
                self.remove_request(request)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        return len(self.members) + len(self._strays)

    def __iter__(self) -> Iterator[Any]:
        """First to go first.  O(n), and works the whole plan out."""
        copy = Planned()
        for name in ("members", "_numbers", "_head", "_body", "_turns", "_strays"):
            setattr(copy, name, getattr(self, name).copy())
        copy.guard = self.guard
        copy._left, copy._plan, copy._at = self._left, self._plan, self._at
        while copy:
            yield copy.pop_request()

    def __getitem__(self, place: int) -> Any:
        """Who stands there, as of vLLM's own queue, which is a deque.  O(n)."""
        return list(self)[place]
