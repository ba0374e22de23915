"""Policy and lanes, asked for an order and held to it.

The library's own are trusted: its tests show that they return permutations.  Anybody else's may raise,
forget a request, return one twice or return something that is no list; each is a `PolicyFault` here, before
anything of it reaches an engine.
"""

from __future__ import annotations

from typing import Any, final

from mypy_extensions import i64

from peek.errors import InvalidConfig, PolicyFault
from peek.policy.answers import heads_of
from peek.policy.base import AdmissionPolicy, Cycle
from peek.policy.deferral import siblings_last
from peek.policy.lanes import Lanes
from peek.policy.overdue import OverdueLane
from peek.policy.priority_index import PriorityIndex
from peek.policy.stream import RequestStream, everybody
from peek.request import PendingRequest
from peek.trie.pending_tree import PendingTree


@final
class Ordering:
    """One policy and its lanes, if it has any.

    Args:
        policy: orders the queue.
        lanes: merges that order with a fair one, None for none.

    Raises `InvalidConfig` for objects of another kind.

    Attributes:
        overdue: the lanes, if they are an `OverdueLane`, which wants to know who comes and goes.
    """

    __slots__ = (
        "_index",
        "_lanes",
        "_policy",
        "_trusted",
        "needs_sharing",
        "overdue",
        "reads_cache",
        "reads_tree",
        "theta",
    )

    def __init__(self, policy: object, lanes: object) -> None:
        if not isinstance(policy, AdmissionPolicy):
            raise InvalidConfig(f"policy is {policy!r}; need an instance of a subclass of AdmissionPolicy")
        if lanes is not None and not isinstance(lanes, Lanes):
            raise InvalidConfig(f"lanes is {lanes!r}; need an instance of a subclass of Lanes, or None")
        self._policy: AdmissionPolicy = policy
        self._lanes: Lanes | None = lanes
        self.overdue: OverdueLane | None = lanes if isinstance(lanes, OverdueLane) else None
        self._index: PriorityIndex | None = policy if isinstance(policy, PriorityIndex) else None
        self._trusted: bool = _is_ours(policy) and (lanes is None or _is_ours(lanes))
        self.reads_cache: bool = policy.reads_cache or self.overdue is not None
        self.reads_tree: bool = policy.reads_tree or (lanes is not None and self.overdue is None)
        self.needs_sharing: bool = policy.needs_sharing
        self.theta: i64 = policy.theta

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        """The admission order of `queue` (in arrival order, left as it is).

        Raises `PolicyFault` where a policy or lanes of somebody else fail; O(n) more for these.
        """
        if not self._trusted:
            return self._checked(queue, cycle)
        if self._index is not None and self.overdue is not None:
            return siblings_last(everybody(self._merged(self._index, cycle, len(queue))), cycle)
        ordered = self._policy.order(queue, cycle)
        return ordered if self._lanes is None else self._lanes.interleave(ordered, queue, cycle)

    def _checked(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        given = [(request.request_id, request.namespace, request.arrival_time) for request in queue]
        order: Any = self._policy.order
        part: object = self._policy
        try:
            answer = order(list(queue), cycle)
            ordered = checked_order(answer, queue, cycle.tree, type(part).__name__)
            if self._lanes is not None:
                part = self._lanes
                interleave: Any = self._lanes.interleave
                answer = interleave(ordered, list(queue), cycle)
                ordered = checked_order(answer, queue, cycle.tree, type(part).__name__)
        except PolicyFault:
            raise
        except Exception as error:
            raise PolicyFault(_what_raised(part, error)) from error
        finally:
            restore(queue, given)
        return ordered

    def stream(self, cycle: Cycle) -> RequestStream | None:
        """The same order one by one, where that is cheaper; None where it is not."""
        if self._index is None or cycle.defers_siblings or not self._trusted:
            return None
        if self._lanes is not None and self.overdue is None:
            return None
        return self._merged(self._index, cycle, 0)

    def _merged(self, index: PriorityIndex, cycle: Cycle, most: i64) -> RequestStream:
        stream: RequestStream = index.stream(cycle, most)
        return stream if self.overdue is None else self.overdue.merge(stream, cycle.tree)

    def arrived(self, request: PendingRequest, tree: PendingTree) -> None:
        """A request began to wait in a tree.  O(len(key)) at most."""
        if self._index is not None:
            heads = request.heads
            if not heads and not tree.chained:
                heads = heads_of(tree.key_of(request.request_id))
            self._index.answers.arrived(request, heads)
        if self.overdue is not None:
            self.overdue.arrived(request)

    def withdrawn(self, request: PendingRequest) -> None:
        """A request left without being served.  O(1)."""
        if self._index is not None:
            self._index.answers.withdrawn(request)
        if self.overdue is not None:
            self.overdue.withdrawn(request)

    def answered(self, tokens: int, request_id: str) -> None:
        """The answer of a request is complete.  O(1)."""
        if self._index is not None:
            self._index.answers.answered(tokens, request_id)
        if self.overdue is not None:
            self.overdue.answered(tokens)

    def charge(self, request: PendingRequest, uncached_tokens: i64) -> None:
        """A request was admitted, and cost so much.  O(1); `PolicyFault` as in `order`."""
        lanes = self._lanes
        if self._index is not None:
            self._index.answers.admitted(request)
        if lanes is None:
            return
        if self._trusted:
            lanes.charge(request, uncached_tokens)
            return
        try:
            lanes.charge(request, uncached_tokens)
        except Exception as error:
            raise PolicyFault(_what_raised(lanes, error)) from error


def checked_order(
    answer: object, queue: list[PendingRequest], tree: PendingTree, author: str
) -> list[PendingRequest]:
    """`answer`, if it is a list of exactly the requests of `queue`; else a `PolicyFault`.  O(n)."""
    if not isinstance(answer, list):
        raise PolicyFault(f"{author} returned a {type(answer).__name__}, not a list of requests")
    seen: set[str] = set()
    for item in answer:
        if not isinstance(item, PendingRequest):
            raise PolicyFault(f"{author} returned a {type(item).__name__} among the requests")
        name = item.request_id
        if name not in tree or tree.request(name) is not item:
            raise PolicyFault(f"{author} returned request {name!r}, which is not the one that waits")
        if name in seen:
            raise PolicyFault(f"{author} returned request {name!r} twice")
        seen.add(name)
    for request in queue:
        if request.request_id not in seen:
            raise PolicyFault(f"{author} left out request {request.request_id!r}")
    return answer


def restore(queue: list[PendingRequest], given: list[tuple[str, str, float]]) -> None:
    """Put back what the caller of the planner has given, whatever a policy has written there.  O(n)."""
    for request, (request_id, namespace, arrival_time) in zip(queue, given, strict=True):
        request.request_id = request_id
        request.namespace = namespace
        request.arrival_time = arrival_time


def _is_ours(part: object) -> bool:
    return type(part).__module__.startswith("peek.policy.")


def _what_raised(part: object, error: Exception) -> str:
    return f"{type(part).__name__} raised {type(error).__name__}: {error}"
