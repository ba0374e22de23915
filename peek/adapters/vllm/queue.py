"""vLLM's waiting queue in the planner's order.

vLLM admits a few requests a step.  So `PlannedQueue` (first come, first served) and `RankedQueue`
(`--scheduling-policy priority`) look up in the plan only what vLLM asks for: a step costs what it admits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from copy import copy
from itertools import islice
from math import inf, isfinite
from typing import Any

from sortedcontainers import SortedDict, SortedList


class PlannedQueue:
    """Mixed into vLLM's `RequestQueue`: its methods, a plan's order, and a record of arrivals and departures.

    It is first come, first served until there is a plan.  Then requests that take part go in the order of the
    last plan, followed by those that it does not know, by entry.  A request outside plans (`keep_place`) is
    next when as many have left as stood before it.  A request that vLLM puts at the head stays there until it
    takes part.  Requests that cannot run (`hold`) come last: vLLM's scan passes over them and puts them back
    at once, at two assignments each.  O(1) per call plus the plan's own.  A request may enter twice.

    Attributes:
        members: the requests in the queue, by id.
        entered: requests that entered or came back since the adapter last took note, in that order.
        gone: requests that left since then and did not come back.
        held: members that cannot run for now, by id.
        looked: called with the request that vLLM is shown, before vLLM looks into its cache for it.
        overtook: whether a plan has let a request go before an earlier one; the adapter clears it.
    """

    def __init__(self, requests: Iterable[Any] = ()) -> None:
        self.members: dict[str, Any] = {}
        self.entered: OrderedDict[str, Any] = OrderedDict()
        self.gone: dict[str, Any] = {}
        self.looked: Callable[[Any], None] = lambda _: None
        self.overtook = False
        self._next: Any = None
        """The last answer of `peek_request`: vLLM looks, makes room, and then takes out that request."""
        self._plan: Callable[[int], str | None] | None = None
        self._at = 0
        self._body: OrderedDict[str, Any] = OrderedDict()
        """The requests that take part in plans, by id; also new ones."""
        self._numbers: dict[str, Any] = {}
        """Rising by entry; for requests put at the head, which are next at once, below 0 and falling."""
        self._kept: SortedDict[Any, Any] = SortedDict()
        """The requests that keep their places, by number."""
        self.held: dict[str, Any] = {}
        self._entries = self._put_at_head = 0
        self._left = 0
        """Departures, less one for each request put at the head, which all others have to wait for."""
        self._held_numbers: SortedList[int] = SortedList()
        self._departed: list[int] = []
        """The numbers of held requests that have left; used only while a request keeps its place."""
        self._passed: list[Any] = []
        """The held requests that vLLM's scan has taken out and not yet put back."""
        self._scanned: Iterator[Any] = iter(())
        """The held requests after these."""
        for request in requests:
            self.add_request(request)

    # -- vLLM's calls ------------------------------------------------------------------------------

    def prepend_request(self, request: Any) -> None:
        self.add_request(request, at_head=True)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in self.put_back(list(requests)):
            self.prepend_request(request)

    def add_request(self, request: Any, at_head: bool = False) -> None:
        self.put_back([])
        name = request.request_id
        self._next = None
        if name in self.members:  # vLLM adds a resumable request once more when it preempts it
            self._discard(self.members[name])
        self.members[name] = request
        came_back = self.gone.get(name) is request
        if came_back:
            del self.gone[name]
        if not came_back or name not in self.held:  # a held request that was only passed over is not new
            self.held.pop(name, None)
            self.entered[name] = request
        self._insert(request, at_head)

    def peek_request(self) -> Any:
        """Return the next request; the same one until something enters or leaves."""
        if self._next is None:
            self._next = self._find_next()
        if self._next is None:
            raise IndexError("peek from an empty queue")
        return self._next

    def pop_request(self) -> Any:
        request = self._next or self.peek_request()
        name = request.request_id
        if self._passed or name in self.held:
            self._next = None
            self._passed.append(request)
            return request
        if self._plan is not None and not self.overtook and name in self._body:
            self.overtook = next(iter(self._body)) != name
        self.remove_request(request)
        return request

    def remove_request(self, request: Any) -> None:
        if self.members.get(request.request_id) is not request:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Any]) -> None:
        self.put_back([])
        self._next = None
        for request in set(requests):
            if self.members.get(request.request_id) is request:
                self._leave(request)

    def _leave(self, request: Any) -> None:
        name = request.request_id
        self._discard(request)
        del self.members[name]
        self.entered.pop(name, None)
        self.gone[name] = request

    def forget_gone(self) -> None:
        """Forget which requests have left, and which one vLLM was shown last.  O(requests that left)."""
        self._next = None
        for name in self.gone:
            self.held.pop(name, None)
        self.gone.clear()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        return len(self.members) - len(self._passed)

    def __iter__(self) -> Iterator[Any]:
        """Yield requests in the order in which they go, from a copy.  O(n log n), and the whole plan."""
        twin, own = copy(self), vars(self).items()
        vars(twin).update((name, copy(it)) for name, it in own if isinstance(it, (dict, list, SortedList)))
        twin.looked, twin._next = (lambda _: None), None
        twin._scanned = islice(twin.held.values(), len(self._passed), None)
        return iter([twin.pop_request() for _ in range(len(self))])

    def __getitem__(self, place: int) -> Any:
        """Return the request at a place, like vLLM's own queue, a deque.  O(n)."""
        return list(self)[place]

    # -- plans -------------------------------------------------------------------------------------

    def follow(self, plan: Callable[[int], str | None] | None) -> None:
        """Follow `plan`, which returns the id at a place, None after its end; without it vLLM's own order."""
        self._plan = plan
        self._at = 0
        self._next = None

    def keep_place(self, request: Any) -> None:
        """Let a member take part in no plan, and keep its place.  O(log n)."""
        self._take_from_its_place(request)
        self._kept[self._numbers[request.request_id]] = request

    def take_part(self, request: Any) -> None:
        """Let a member take part in plans.  O(1); O(log n) if it was held or kept its place."""
        name = request.request_id
        if name not in self._body:
            self._take_from_its_place(request)
            self._body[name] = request
            self._body.move_to_end(name, last=False)

    def hold(self, request: Any) -> None:
        """Put a member that cannot run for now last, until it takes part again.  O(log n)."""
        name = request.request_id
        if name not in self.held:
            self._take_from_its_place(request)
            self.held[name] = request
            self._held_numbers.add(self._numbers[name])

    def _take_from_its_place(self, request: Any) -> None:
        name = request.request_id
        number = self._numbers[name]
        self._next = None
        if self.held.pop(name, None) is not None:
            self._held_numbers.remove(number)
        elif self._body.pop(name, None) is None:
            del self._kept[number]

    def in_stock_order(self) -> list[Any]:
        """Return all requests as without a plan, held ones where vLLM would have them.  O(n log n)."""
        passed, held = set(self._passed), self.held
        numbered = [(self._numbers[name], name) for name, it in self.members.items() if it not in passed]
        numbered.sort(key=lambda each: (each[0] >= 0, each[1] not in held, each[0]))
        return [self.members[name] for _, name in numbered]

    def put_back(self, requests: list[Any]) -> list[Any]:
        """Put back the held ones of `requests`, given last out first; return the others.  O(requests)."""
        if not self._passed:
            return requests
        passed, self._passed = self._passed, []
        self._next = None
        if requests[: len(passed)] == passed[::-1]:
            return requests[len(passed) :]
        back, known = set(requests), set(passed)
        for request in passed:
            if request not in back:  # taken out and not put back
                self._leave(request)
        return [request for request in requests if request not in known]

    # -- the order ---------------------------------------------------------------------------------

    def _insert(self, request: Any, at_head: bool) -> None:
        if at_head:
            self._put_at_head += 1
            self._left -= 1
            number = -self._put_at_head
            self._kept[number] = request
        else:
            number = self._entries
            self._entries += 1
            self._body[request.request_id] = request
        self._numbers[request.request_id] = number

    def _find_next(self) -> Any:
        """Return the next request; None if there is none."""
        if not self._passed:
            request = self._first_to_run()
            if request is not None:
                self.looked(request)
                return request
            self._scanned = iter(self.held.values())
        return next(self._scanned, None)

    def _first_to_run(self) -> Any:
        """Return the next of the requests that are not held; None if there is none."""
        kept = None
        if self._kept:
            number, kept = self._kept.peekitem(0)
            # It was put at the head, or all requests with a smaller number have left or are held.
            if number < 0 or number - self._held_numbers.bisect_left(number) <= self._left:
                return kept
        elif self._departed:
            self._left += len(self._departed)
            while self._departed:
                self._held_numbers.remove(self._departed.pop())
        planned = self._next_planned()
        return next(iter(self._body.values()), kept) if planned is None else planned

    def _next_planned(self) -> Any:
        """Return the plan's first request that is still here."""
        plan = self._plan
        while plan is not None and (name := plan(self._at)) is not None:
            if name in self._body:
                return self._body[name]
            self._at += 1
        return None

    def _discard(self, request: Any) -> None:
        name = request.request_id
        number = self._numbers[name]
        held = name in self.held
        self._take_from_its_place(request)
        del self._numbers[name]
        if held and self._kept:  # so that requests that keep their places do not move up
            self._held_numbers.add(number)
            self._departed.append(number)
        else:
            self._left += 1


class RankedQueue(PlannedQueue):
    """By priority; among equals in a plan's order, then those that it does not know.  O(log n) per call.

    The arrival time is read at entry, because it may change, or be no number.  A request that is preempted
    under a plan goes before its equals.  One outside plans, or that cannot run, waits at most for its equals.
    """

    def __init__(self, requests: Iterable[Any] = ()) -> None:
        self._order: SortedDict[Any, Any] = SortedDict()
        """All requests by number, here what vLLM sorts by, priority first."""
        super().__init__(requests)

    def keep_place(self, request: Any) -> None:
        self.held.pop(request.request_id, None)
        self._stay(request)

    def take_part(self, request: Any) -> None:
        self._next = None
        self.held.pop(request.request_id, None)
        self._kept.pop(self._numbers[request.request_id], None)
        self._body[request.request_id] = request

    def hold(self, request: Any) -> None:
        self.held[request.request_id] = request
        self._stay(request)

    def _stay(self, request: Any) -> None:
        """Note the number of departures after which it is next."""
        number = self._numbers[request.request_id]
        if self._body.pop(request.request_id, None) is not None:
            self._next = None
            self._kept[number] = self._left + self._order.index(number)

    def in_stock_order(self) -> list[Any]:
        return list(self._order.values())

    def _insert(self, request: Any, at_head: bool) -> None:
        name, arrival = request.request_id, float(request.arrival_time)
        first = request.num_preemptions > 0 and self._plan is not None
        number = (request.priority, not first, arrival if isfinite(arrival) else inf, name)
        self._left -= at_head
        self._numbers[name] = number
        self._order[number] = self._body[name] = request
        if first or name in self.held:
            self._stay(request)

    def _discard(self, request: Any) -> None:
        number = self._numbers.pop(request.request_id)
        del self._order[number]
        self._kept.pop(number, None)
        self._body.pop(request.request_id, None)
        self._left += 1

    def _find_next(self) -> Any:
        if not self._order:
            return None
        number, request = self._order.peekitem(0)
        planned = self._next_planned()
        if planned is not None and self._numbers[planned.request_id][0] == number[0]:
            request = planned
        if self._kept:
            stays, due = self._kept.peekitem(0)
            if stays == number or (stays[0] == number[0] and due <= self._left):
                request = self._order[stays]
        self.looked(request)
        return request

    def pop_request(self) -> Any:
        request = self.peek_request()
        self.overtook |= request is not self._order.peekitem(0)[1]
        self.remove_request(request)
        return request


def tracked_queue(stock: Any) -> Any:
    """Return a queue of vLLM's own kind with the same requests, which records changes and follows plans."""
    from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue

    if isinstance(stock, PriorityRequestQueue):
        return type("RankedPriorityQueue", (RankedQueue, PriorityRequestQueue), {})(list(stock))
    return type("PlannedRequestQueue", (PlannedQueue, RequestQueue), {})(list(stock))


class Blocked:
    """The waiting requests that vLLM's scan would pass over, whatever their place, and when that ends.

    A request waits for its grammar (status `compiles`), or for a slot for its LoRA adapter.  While slots are
    free, the adapters that have waited longest take part in plans, one more of them than free slots.
    """

    def __init__(self, scheduler: Any, compiles: object) -> None:
        self._scheduler = scheduler
        self._compiles = compiles
        self._held: dict[int, dict[str, Any]] = {}
        """Held requests, by LoRA adapter; 0 for a grammar."""
        self._contending: Counter[int] = Counter()
        """Number of requests in plans, by LoRA adapter."""
        self._running: set[int] = set()

    def blocks(self, request: Any) -> bool:
        """Whether a waiting request cannot run, as far as is known.  O(adapters in plans)."""
        if self._compiles_still(request):
            return True
        lora = lora_of(request) if self._scheduler.lora_config else 0
        if not lora or lora in self._running:
            return False
        room = self._room()
        return room is None or (room == 0 and lora not in self._contending)

    def _compiles_still(self, request: Any) -> bool:
        return request.status == self._compiles and not _is_compiled(request)

    def _room(self) -> int | None:
        """Return how many more adapters may take part in plans; None while no slot is free."""
        free = int(self._scheduler.lora_config.max_loras) - len(self._running)
        return max(0, free + 1 - len(self._contending.keys() - self._running)) if free > 0 else None

    def hold(self, request: Any) -> None:
        """Note that a request is in no plan because it cannot run.  O(1)."""
        self.let_go(request)
        lora = 0 if self._compiles_still(request) else lora_of(request)
        self._held.setdefault(lora, {})[request.request_id] = request

    def let_go(self, request: Any) -> None:
        """Note that a request left, or is in plans again.  O(1)."""
        for lora in {0, lora_of(request)} & self._held.keys():
            self._held[lora].pop(request.request_id, None)
            if not self._held[lora]:
                del self._held[lora]

    def planned(self, request: Any, change: int) -> None:
        """Note one more (`change` 1) or one fewer (-1) request of its LoRA adapter in plans.  O(1)."""
        lora = lora_of(request)
        if lora:
            self._contending[lora] += change
            if not self._contending[lora]:
                del self._contending[lora]

    def freed(self) -> list[Any]:
        """Note which adapters have slots, before each step; return the held requests that could run now.

        O(grammars + adapters + these), with LoRA also O(running).
        """
        if self._scheduler.lora_config:
            self._running = {lora_of(request) for request in self._scheduler.running} - {0}
        ready = [request for request in self._held.get(0, {}).values() if _is_compiled(request)]
        loras = [lora for lora in self._held if lora]
        room = self._room() if loras else None
        able = self._running if room is None else self._running | self._contending.keys()
        may = [lora for lora in loras if lora in able]
        if room:
            others = [lora for lora in loras if lora not in able]
            since = {lora: min(float(r.arrival_time) for r in self._held[lora].values()) for lora in others}
            may += sorted(others, key=since.__getitem__)[:room]
        return ready + [request for lora in may for request in self._held[lora].values()]


def lora_of(request: Any) -> int:
    """Return the number of a request's LoRA adapter; 0 if it has none."""
    return 0 if request.lora_request is None else int(request.lora_request.lora_int_id)


def _is_compiled(request: Any) -> bool:
    """Whether the grammar is compiled, or has failed.  vLLM's own property for this may block."""
    wanted = request.structured_output_request
    if wanted is None:
        return False
    grammar = wanted._grammar if hasattr(wanted, "_grammar") else wanted.grammar
    return grammar is not None and (not isinstance(grammar, Future) or grammar.done())
