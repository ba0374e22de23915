"""vLLM's waiting queue in the order of a plan that is worked out as vLLM asks for the next request.

vLLM looks at a waiting queue through a dozen methods and admits a few requests a step.  So the order is not
laid out: whoever is asked for is looked up in the plan, and a step costs what it admits, however many wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from peek.planner import LazyPlan


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _nothing(request: Any) -> None:
    pass


class Planned:
    """Mixed into vLLM's `RequestQueue`.

    Who takes part in plans goes in the order of the last one, and behind these whoever it does not know, by
    entry.  Who takes part in none (`keep_place`) is up when as many have left as stood before it, as it
    would be without plans.  Whom vLLM puts at the head stays there until it takes part.  Who cannot run
    (`hold`) comes last: vLLM's scan passes over all of these and puts them back in one go, which costs
    two assignments each.

    Attributes:
        members: who is in the queue, by request id.
        entered: who has entered, or come back, until somebody takes note of it, in that order.
        gone: who has left and not come back, likewise.
        guard: calls the plan; answers None where that fails.
        looked: told whom vLLM is shown, before it looks into its cache for it; not of those held.
        overtook: whether a plan had somebody taken out before one who had entered earlier, since somebody
            last cleared it.
    """

    def __init__(self, requests: Iterable[Any] = ()) -> None:
        self.members: dict[str, Any] = {}
        self.entered: OrderedDict[str, Any] = OrderedDict()
        self.gone: dict[str, Any] = {}
        self.guard: Callable[..., Any] = _call
        self.looked: Callable[[Any], None] = _nothing
        self.overtook = False
        self._head: OrderedDict[str, Any] = OrderedDict()
        self._body: OrderedDict[str, Any] = OrderedDict()
        self._turns: list[tuple[int, str]] = []  # a heap, of those who keep their places and some who did
        self._numbers: dict[str, int] = {}
        self._came = 0
        self._left = 0
        self._strays: list[Any] = []
        self._held: dict[str, Any] = {}
        self._held_numbers: SortedList[int] = SortedList()
        self._departed: list[int] = []
        """Of these, the numbers of those who have left; only while somebody keeps its place."""
        self._line: list[Any] | None = []
        """The held ones as they stand; None if it is to be made anew."""
        self._passed = 0
        """How many of that line vLLM has taken out and not yet put back."""
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
        if self._let_go(name) or self._body.pop(name, None) is not None:
            heapq.heappush(self._turns, (self._numbers[name], name))

    def take_part(self, request: Any) -> None:
        """A member takes part in plans.  O(1), O(log n) for one that was held."""
        name = request.request_id
        self._next = None
        if name not in self._body:
            self._head.pop(name, None)
            self._let_go(name)
            self._body[name] = request
            self._body.move_to_end(name, last=False)

    def hold(self, request: Any) -> None:
        """A member cannot run for now: it comes last until it takes part again.  O(log n)."""
        name = request.request_id
        self._next = None
        if name not in self._held:
            self._body.pop(name, None)
            self._head.pop(name, None)
            self._held[name] = request
            self._held_numbers.add(self._numbers[name])
            self._line = None

    def release(self) -> None:
        """Nobody is held any more: they stand at the head, where vLLM would have them.  O(held)."""
        self.settle()
        self._next = None
        for name, request in [*self._held.items()]:
            self._let_go(name)
            self._head[name] = request

    def settle(self) -> None:
        """Between steps: whoever was held, was taken out and was not put back has left."""
        if self._passed and self._line is not None:
            left, self._passed = self._line[: self._passed], 0
            for request in left:
                self._leave(request)

    def _let_go(self, name: str) -> bool:
        """Whether it was held; it is no more, and stands nowhere yet."""
        if self._held.pop(name, None) is None:
            return False
        self._held_numbers.remove(self._numbers[name])
        self._line = None
        return True

    # -- vLLM's calls ------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        self.settle()
        if self._enters(request):
            self._body[request.request_id] = request
            self._numbers[request.request_id] = self._came
            self._came += 1

    def prepend_request(self, request: Any) -> None:
        self.settle()
        if self._enters(request):
            name = request.request_id
            self._head[name] = request
            self._head.move_to_end(name, last=False)
            self._left -= 1  # it goes before all who are here, and they wait as long again
            self._numbers[name] = self._left

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in self.put_back(list(requests)):
            self.prepend_request(request)

    def put_back(self, requests: list[Any]) -> list[Any]:
        """The held ones of `requests`, the last one taken out first; returns the others.  O(requests)."""
        if not self._passed or self._line is None:
            return requests
        passed = self._line[: self._passed]
        passed.reverse()
        if requests[: self._passed] == passed:
            requests = requests[self._passed :]
        else:
            back, known = set(requests), set(passed)
            requests = [request for request in requests if request not in known]
            for request in passed:
                if request not in back:
                    self._leave(request)
        self._passed = 0
        self._next = None
        return requests

    def _enters(self, request: Any) -> bool:
        """Take it in.  A second one of an id is set apart: nobody is lost, and `len` tells the adapter."""
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
            self._next = self._next_held() if self._passed else self._find_next()
        return self._next

    def _next_held(self) -> Any:
        if self._line is None:
            self._line = list(self._held.values())
        if self._passed == len(self._line):
            raise IndexError("peek from an empty queue")
        return self._line[self._passed]

    def _find_next(self) -> Any:
        if self._head:
            return next(iter(self._head.values()))
        name = self._find_name()
        if name is None:
            return self._strays[0] if self._strays else self._next_held()
        self.guard(self.looked, self.members[name])
        return self.members[name]

    def _find_name(self) -> str | None:
        """The next of those who are neither at the head nor held."""
        turn = self._next_turn()
        if turn is not None and self._is_up(self._numbers[turn], self._left):
            return turn
        planned = self._next_planned()
        return next(iter(self._body), turn) if planned is None else planned

    def _is_up(self, number: int, left: int) -> bool:
        """Whether all who stood before a number have left, or are held."""
        return number - self._held_numbers.bisect_left(number) <= left

    def _next_turn(self) -> str | None:
        """The first of those who keep their places."""
        turns = self._turns
        while turns:
            if self._keeps_place(*turns[0]):
                return turns[0][1]
            heapq.heappop(turns)
        for number in self._departed:
            self._held_numbers.remove(number)
        self._left += len(self._departed)
        self._departed.clear()
        return None

    def _keeps_place(self, number: int, name: str) -> bool:
        elsewhere = name in self._body or name in self._held or name in self._head
        return self._numbers.get(name) == number and not elsewhere

    def _next_planned(self) -> str | None:
        """The first of those in the plan who are still here."""
        plan = self._plan
        while plan is not None and (name := self.guard(plan.at, self._at)) is not None:
            if name in self._body:
                return str(name)
            self._at += 1
        return None

    def pop_request(self) -> Any:
        request = self._next or self.peek_request()
        self._next = None
        name = request.request_id
        if self._passed or name in self._held:
            self._passed += 1
            return request
        if self._plan is not None and not self.overtook and name in self._body:
            self.overtook = next(iter(self._body)) != name
        self.remove_request(request)
        return request

    def remove_request(self, request: Any) -> None:
        self.settle()
        self._next = None
        if self.members.get(request.request_id) is request:
            self._leave(request)
        else:
            self._strays.remove(request)

    def _leave(self, request: Any) -> None:
        name = request.request_id
        number = self._numbers[name]
        if self._let_go(name) and self._turns:  # it lets nobody move up who stood before it
            self._held_numbers.add(number)
            self._departed.append(number)
        else:
            self._left += 1
        if self._body.pop(name, None) is None:
            self._head.pop(name, None)
        del self.members[name], self._numbers[name]
        self.entered.pop(name, None)
        self.gone[name] = request

    def remove_requests(self, requests: Iterable[Any]) -> None:
        self.settle()
        for request in set(requests):
            if self.members.get(request.request_id) is request or request in self._strays:
                self.remove_request(request)

    def __bool__(self) -> bool:
        return len(self.members) + len(self._strays) > self._passed

    def __len__(self) -> int:
        return len(self.members) + len(self._strays) - self._passed

    def __iter__(self) -> Iterator[Any]:
        """First to go first.  O(n), and works the whole plan out."""
        names = [] if self._plan is None else self.guard(self._plan.rest, self._at) or []
        planned = [name for name in names if name in self._body]
        known = set(planned)
        rest = [name for name in self._body if name not in known]
        turns = sorted({turn for turn in self._turns if self._keeps_place(*turn)})
        names = self._with_turns(planned + rest, turns) if turns else planned + rest
        held = list(self._held.values())
        order = [*self._head.values(), *map(self.members.__getitem__, names), *self._strays]
        return iter(order + held[self._passed :])

    def _with_turns(self, names: list[str], turns: list[tuple[int, str]]) -> list[str]:
        """Both together, as `_find_name` would name one after the other."""
        order: list[str] = []
        at, left = 0, self._left + len(self._head)
        for name in names:
            while at < len(turns) and self._is_up(turns[at][0], left + len(order)):
                order.append(turns[at][1])
                at += 1
            order.append(name)
        return order + [name for _, name in turns[at:]]

    def __getitem__(self, place: int) -> Any:
        """Who stands there, as of vLLM's own queue, which is a deque.  O(n)."""
        return list(self)[place]
