"""The interface of an admission policy: one method that orders the waiting requests, and optional hooks.

`AdmissionPolicy` is the base class of every policy, the library's own and a user's alike.  Only `order` is
required.  A policy that keeps state overrides the hooks, which the planner calls in the order of events.
All that a policy may look at is passed in: requests with their signals, and a `Cycle` with the clock, the
tree and the work admitted so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

from mypy_extensions import mypyc_attr

from peek.native import i64
from peek.policy.sections import THETA
from peek.request import PendingRequest
from peek.trie.pending_tree import PendingTree


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestStream:
    """An order of waiting requests that is worked out only as far as it is asked for."""

    def next(self) -> PendingRequest | None:
        """Return the next request; None at the end."""
        raise NotImplementedError


@final
class Listed(RequestStream):
    """A list of requests as a stream."""

    def __init__(self, requests: list[PendingRequest]) -> None:
        self._rest = iter(requests)

    def next(self) -> PendingRequest | None:
        return next(self._rest, None)


@final
class Iterated(RequestStream):
    """An iterator as a stream; its items are not checked."""

    def __init__(self, items: Iterator[object]) -> None:
        self._items = items

    def item(self) -> object:
        """Return the iterator's next item, whatever it is; None at the end."""
        return next(self._items, None)


def everybody(stream: RequestStream) -> list[PendingRequest]:
    """The remaining requests of a stream, in order."""
    requests: list[PendingRequest] = []
    request = stream.next()
    while request is not None:
        requests.append(request)
        request = stream.next()
    return requests


ADMITTED: Final = "admitted"
"""How a request left the queue: the engine began to serve it."""
WITHDRAWN: Final = "withdrawn"
"""How a request left the queue: it was aborted, or the planner's driver took it back."""
HELD: Final = "held"
"""How a request left the plans: it cannot run for now (no slot for its LoRA adapter, no grammar yet).
`arrived` is called again once it can run, or right before it leaves the queue if it is still held."""


@final
class Cycle:
    """The circumstances of one scheduling cycle.

    Attributes:
        tree: the pending tree; its nodes carry the marks of this cycle's dual-walk.
        now: seconds on the caller's clock.
        unit_tokens: tokens per symbol.
        work_done: uncached prompt tokens that the engine has admitted so far.
        defers_siblings: whether the engine shows a prefix to others only when its prefill ends, or in parts.
        shown_tokens: number of uncached tokens that a prefill under way shows to others in this step.
    """

    def __init__(
        self,
        tree: PendingTree,
        now: float,
        unit_tokens: int = 1,
        work_done: int = 0,
        defers_siblings: bool = False,
        shown_tokens: int = 0,
    ) -> None:
        self.tree = tree
        self.now: float = now
        self.unit_tokens: i64 = unit_tokens
        self.work_done: i64 = work_done
        self.defers_siblings = defers_siblings
        self.shown_tokens: i64 = shown_tokens


def hits_something(queue: list[PendingRequest], gated: bool) -> bool:
    """Whether any request has cached tokens or, if `gated`, a prefix under way.  O(n)."""
    return any(request.cached_len > 0 or (gated and request.coming_len > 0) for request in queue)


def uncached_tokens(request: PendingRequest) -> i64:
    """Prompt tokens that an engine would compute if it admitted the request now; at least 1."""
    work = request.num_tokens - request.cached_len
    return work if work > 1 else 1


def arrival(request: PendingRequest) -> tuple[float, int]:
    """The place of a request in arrival order."""
    return (request.arrival_time, request.sequence)


@dataclass(frozen=True)
class NoOptions:
    """The options of a policy that has none."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AdmissionPolicy:
    """Orders the waiting requests.

    Class attributes:
        Options: a frozen dataclass of the policy's settings, whose `__post_init__` refuses invalid values.
            A class that has one is made as `cls(options=Options(...))`, any other as `cls()`.
        sees_prefills: whether siblings of a prefill under way wait for it.  If so, the planner writes
            `coming_len` on an engine that shows a prefix only when its prefill ends (the in-flight gate).

    Instance attributes tell the planner what the policy reads, so that it computes nothing else:

        options: an instance of `Options`.
        reads_cache: whether the policy needs `cached_len`, i.e. a dual-walk.
        reads_tree: whether it needs `score`, `cluster_*` and `head`.
        reads_heads: whether it needs `heads`, and an inferred `session` if a request names none.  The planner
            sets it to False if its driver never calls `answered`, because then nothing can be learned.
        needs_sharing: whether the stock order is as good if nothing is shared.  That is: no two waiting
            requests share a prefix and, if the policy reads the cache, none hits it or a prefill under way.
            The planner then does not call `order`.  A policy may change this between cycles.
        theta: length of the head by which pioneers are told apart, tokens.
    """

    Options: ClassVar[Any] = NoOptions
    sees_prefills: ClassVar[bool] = False

    def __init__(
        self,
        reads_cache: bool = True,
        reads_tree: bool = True,
        needs_sharing: bool = False,
        theta: int = THETA,
        *,
        reads_heads: bool = False,
        options: Any = None,
    ) -> None:
        self.reads_cache = reads_cache
        self.reads_tree = reads_tree
        self.reads_heads = reads_heads
        self.needs_sharing = needs_sharing
        self.theta: i64 = theta
        kind: Any = type(self)
        self.options: Any = kind.Options() if options is None else options

    # For copies and pickles: mypyc's own versions leave out what a subclass in plain Python adds.

    def __getstate__(self) -> dict[str, Any]:
        kind: Any = type(self)
        declared = (*getattr(kind, "__mypyc_attrs__", ()), *getattr(kind, "__slots__", ()))
        names = (*declared, *getattr(self, "__dict__", ()))
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        """Return the admission order of `queue`: a new list of the same requests, first to admit first.

        `queue` is in arrival order (arrival_time, then sequence).  The method must not change it or anything
        else but `section`, which a policy with sections writes.  Equal arguments and histories must give
        equal orders.  A policy keeps its own data about nodes and requests itself, by `uid` or `request_id`.
        """
        # Not abstract: where a subclass lacks an abstract method, a compiled call of it ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to order the queue")

    def stream(self, cycle: Cycle) -> RequestStream | Iterator[PendingRequest] | None:
        """Return the same order one request at a time; None if that costs as much as `order`.

        It is for an engine that admits a few requests, and may be any iterator of requests.  It is asked for
        as many as the engine wants, until the queue changes.  If a subclass overrides `order` but not
        `stream`, the stream of its base class is not used, because it gives another order.
        """
        return None

    def arrived(self, request: PendingRequest) -> None:
        """Called when a request begins to wait, also after it was preempted or held.

        Its key is in the tree.  `cached_len` is not yet known, nor is `num_tokens` if the key has to tell it.
        """

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        """Called when a request waits no more.

        Args:
            how: `ADMITTED`, `WITHDRAWN` or `HELD`.
            cost_tokens: uncached prompt tokens that the engine computes for it; 0 if it was not admitted.
        """

    def generated(self, tenant: str, tokens: int) -> None:
        """Called when `tokens` more tokens were generated for a tenant's requests."""

    def answered(self, request_id: str, tokens: int) -> None:
        """Called when an admitted request's answer has ended after `tokens` tokens, or was cut short there.

        The id is "" if it is not known.
        """

    def served(self) -> dict[str, float]:
        """Tokens that each tenant has been served, if the policy keeps accounts."""
        return {}


def has_stream(policy: AdmissionPolicy) -> bool:
    """Whether the class that defines a policy's `stream` is that of its `order`, or derived from that one."""
    kind: Any = type(policy)
    for each in kind.__mro__:
        if "stream" in each.__dict__:
            return True
        if "order" in each.__dict__:
            return False
    return False
