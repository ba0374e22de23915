"""The interface of an admission policy: one method that orders the waiting requests, and optional hooks.

`AdmissionPolicy` is the base class of every policy, the library's own and a user's alike.  Only `order` is
required.  A policy that keeps state overrides the hooks; the planner calls them in the order of events.
Everything that a policy may look at comes in as an argument: requests with their signals, and a `Cycle` with
the clock, the tree and the work admitted so far.  A `RequestStream` is an order that is worked out only as
far as it is asked for.
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
    """All requests that are left in a stream, in order."""
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
`arrived` is called again once it can run, or right before it leaves the queue while it is held."""


@final
class Cycle:
    """The circumstances of one scheduling cycle.

    Attributes:
        tree: the pending tree; its nodes carry the marks of this cycle's dual-walk.
        now: seconds on the caller's clock.
        unit_tokens: tokens per symbol.
        work_done: uncached prompt tokens that the engine has admitted so far.
        defers_siblings: whether the engine shows a prefix to others only when its prefill ends, or in parts.
        shown_tokens: of a prefill under way, what it shows in this step besides what is cached.
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
    """Whether a request has cached tokens or, if `gated`, a prefix under way.  O(n)."""
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
        Options: a frozen dataclass of the policy's settings, whose `__post_init__` refuses what is invalid.
            A class that has one is made as `cls(options=Options(...))`, any other as `cls()`.
        sees_prefills: whether siblings of a prefill under way wait for it.  On an engine that shows a prefix
            only when its prefill ends, the planner then writes `coming_len` (the in-flight gate).

    Instance attributes tell the planner what the policy reads, so that nothing is computed in vain:

        options: an instance of `Options`.
        reads_cache: whether the policy needs `cached_len`, i.e. a dual-walk.
        reads_tree: whether it needs `score`, `cluster_*` and `head`.
        reads_heads: whether it needs `heads`, and a `session` inferred where a request names none.  The
            planner sets it to False where no answers are told: then there is nothing to learn by them.
        needs_sharing: whether the stock order is as good where nothing is shared: no two waiting requests
            share a prefix and, if the policy reads the cache, no request hits it or a prefill under way.  The
            planner then does not call `order`.  A policy may change it between cycles.
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

    # For copies and pickles.  Those that mypyc writes leave out what a subclass in plain Python adds.

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

        `queue` comes in arrival order (arrival_time, then sequence).  The method changes neither it nor
        anything else, and equal arguments and histories give equal orders.  A policy that uses sections
        writes `section`.  Whatever else it works out about nodes and requests it keeps itself, by `uid` or
        `request_id`.
        """
        # Not abstract: where a subclass lacks an abstract method, a compiled call of it ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to order the queue")

    def stream(self, cycle: Cycle) -> RequestStream | Iterator[PendingRequest] | None:
        """Return the same order one request at a time; None if that costs as much as `order`.

        It is for an engine that admits a few requests.  Any iterator of requests will do.  It is asked for as
        many requests as the engine wants, as long as the queue does not change.  A subclass that overrides
        `order` and not `stream` has no stream: that of its base class gives another order.
        """
        return None

    def arrived(self, request: PendingRequest) -> None:
        """Called when a request begins to wait, also after it was preempted or held.

        Its key is in the tree; `cached_len` is not yet known, nor is `num_tokens` if it is left to the key.
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
        """Called when an admitted request's answer has ended, `tokens` long; its id is "" if unknown.

        An answer that was cut short has ended, too: else a policy would take its request for a running one.
        """

    def served(self) -> dict[str, float]:
        """What each tenant has been served, in tokens, where the policy keeps accounts."""
        return {}


def has_stream(policy: AdmissionPolicy) -> bool:
    """Whether the `stream` of a policy is of the class that its `order` is of, or of one derived from it."""
    kind: Any = type(policy)
    for each in kind.__mro__:
        if "stream" in each.__dict__:
            return True
        if "order" in each.__dict__:
            return False
    return False
