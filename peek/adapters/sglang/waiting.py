"""What is remembered of SGLang's requests, without keeping them alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from peek.adapters.sglang.seams import entry_time, prefill_ended, was_admitted
from peek.adapters.sglang.translation import Translated

TIE_S: Final = 1e-9
"""Between two arrivals at one point of the clock, where their order counts."""


class Waiting:
    """What the adapter remembers of a request in the planner or in flight.

    It does not keep SGLang's request alive: an idle server calls nobody, and would keep its last burst.
    """

    __slots__ = ("output_ids", "outputs", "request", "translated")

    def __init__(self, request: Any, translated: Translated) -> None:
        self.request: ref[Any] = ref(request)
        self.translated = translated
        self.output_ids = request.output_ids  # grows in place: tells of a prefill when the request is gone
        self.outputs = len(request.output_ids)

    def is_of(self, request: Any) -> bool:
        """Whether this is `request` as it was then; one that has generated since was away."""
        return len(request.output_ids) == self.outputs and self.request() is request

    def lent_anew(self, lends: Callable[[Any, int], int]) -> bool:
        """Of a turn of a streaming session: whether the session lends something else than it did."""
        request = self.request()
        made = self.translated
        return request is not None and lends(request, made.limit) != made.lent

    def was_admitted(self) -> bool:
        """Of a request that left the queue."""
        request = self.request()
        if request is None:
            return len(self.output_ids) > self.outputs
        return was_admitted(request, self.outputs)

    def prefill_ended(self) -> bool:
        """Of an admitted request; one that is gone has ended."""
        request = self.request()
        return request is None or prefill_ended(request, self.outputs)


class Arrivals:
    """When requests arrived, on the adapter's clock; who was retracted arrived when it did first.

    Under priority scheduling ties are the engine's to break, by its entry time.  Some versions renew that
    after a retraction, and then the request arrives again; no two arrivals are equal there.
    """

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._count = 0
        self._known: WeakKeyDictionary[Any, tuple[float, float]] = WeakKeyDictionary()
        """By request: its arrival, and the engine's entry time then."""

    def of(self, request: Any, now: float) -> float:
        """The arrival of a request that enters the queue now.  O(1)."""
        entered = entry_time(request)
        known = self._known.get(request)
        if known is not None and (not self._by_priority or known[1] == entered):
            return known[0]
        self._count += 1
        arrival = now + self._count * TIE_S if self._by_priority else now
        self._known[request] = (arrival, entered)
        return arrival


class Standing:
    """Tells a list that has not changed since it was put in order, in O(1).

    SGLang appends to its queue, takes out of it, and moves nobody.  So it is the same while it is as long as
    it was, with the same first and last: for everybody who left, somebody came, as the last.  A retracted
    request comes back with more output than it had.

    Args:
        queue: the queue, in order.
        view: the cache it was ordered by.
        answer: what `order` said.
    """

    __slots__ = ("_first", "_last", "_list", "_outputs", "_version", "answer")

    def __init__(self, queue: list[Any], view: object, answer: bool) -> None:
        self.answer = answer
        self._list = (id(queue), len(queue))
        self._first = ref(queue[0])
        self._last = ref(queue[-1])
        self._outputs = len(queue[-1].output_ids)
        self._version: object = getattr(view, "version", None)

    def is_of(self, queue: list[Any], view: object) -> bool:
        """Whether queue and cache are as they were; False where the cache cannot tell."""
        if self._version is None or (id(queue), len(queue)) != self._list:
            return False
        outputs = len(queue[-1].output_ids)
        same = queue[0] is self._first() and queue[-1] is self._last() and outputs == self._outputs
        return same and getattr(view, "version", None) == self._version
