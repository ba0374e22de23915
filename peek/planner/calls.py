"""Every call into a policy, and what happens when one fails.

A policy, a user's or the library's own, may raise, forget a request, return one twice or return something
that is no list.  Each of these becomes a `PolicyFault` here, before it reaches an engine.  The library's own
policies pass the same checks.  They cost two native loops over the queue for an order, and one look-up in the
tree for each request of a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

from mypy_extensions import i64

from peek.errors import InvalidConfig, PolicyFault, a_kind
from peek.planner.stats import PlannerStats
from peek.policy.base import AdmissionPolicy, Cycle, Iterated, Listed, RequestStream, has_stream
from peek.policy.lanes import Lanes
from peek.request import PendingRequest
from peek.settings import require_whole
from peek.trie.continuations import Continuations
from peek.trie.keys import MAX_SYMBOL, heads_of
from peek.trie.pending_tree import PendingTree


@final
class PolicyCalls:
    """Calls one policy, and its lanes if it has any, and checks their answers.

    The arguments are those of `Planner`; `stats` counts faults.

    Raises `InvalidConfig` if `policy` or `lanes` is of another type, and for impossible `unit_tokens`.
    """

    def __init__(
        self, policy: object, lanes: object, stats: PlannerStats, strict: bool, unit_tokens: int, learns: bool
    ) -> None:
        if not isinstance(policy, AdmissionPolicy):
            raise InvalidConfig(f"policy is {policy!r}; need an instance of a subclass of AdmissionPolicy")
        if lanes is not None and not isinstance(lanes, Lanes):
            raise InvalidConfig(f"lanes is {lanes!r}; need an instance of a subclass of Lanes, or None")
        if not hasattr(policy, "reads_heads"):
            raise InvalidConfig(f"{type(policy).__name__}.__init__ did not call super().__init__()")
        require_whole("unit_tokens", unit_tokens, 1, MAX_SYMBOL)
        if not learns:
            policy.reads_heads = False
        self.policy: AdmissionPolicy = policy
        self.lanes: Lanes | None = lanes
        self._has_stream: bool = lanes is None and has_stream(policy)
        self._stats = stats
        self._strict = strict
        self._placed: i64 = 0
        self._unit: int = unit_tokens
        self._continuations = Continuations(unit_tokens)

    # -- events ------------------------------------------------------------------------------------

    def arrived(self, request: PendingRequest, tree: PendingTree) -> None:
        """Tell the policy that a request of `tree` begins to wait.

        O(1) besides the policy's own cost; O(len(key)) if the policy reads `heads` and the request has none.
        """
        policy = self.policy
        if policy.reads_heads and not request.heads and not tree.chained and request.request_id in tree:
            key = tree.key_of(request.request_id)
            request.heads = heads_of(key, self._unit)
            if not request.session:
                request.session = self._continuations.session_of(request.request_id, key, request.namespace)
        try:
            policy.arrived(request)
        except Exception as error:
            self.count(policy, error)

    def left(self, request: PendingRequest, how: str, cost_tokens: i64) -> None:
        """Tell the policy that a request waits no more.  O(1) besides the policy's own cost."""
        try:
            self.policy.left(request, how, cost_tokens)
        except Exception as error:
            self.count(self.policy, error)

    def charge(self, request: PendingRequest, cost_tokens: i64) -> None:
        """Tell the lanes that a request was admitted and what it cost.  O(1)."""
        lanes = self.lanes
        if lanes is None:
            return
        try:
            lanes.charge(request, cost_tokens)
        except Exception as error:
            self.count(lanes, error)

    def generated(self, tenant: str, tokens: int) -> None:
        """Tell the policy of tokens generated for a tenant.  O(1) besides the policy's own cost."""
        try:
            self.policy.generated(tenant, tokens)
        except Exception as error:
            self.count(self.policy, error)

    def answered(self, request_id: str, tokens: int) -> None:
        """Tell the policy that an answer is complete.  O(1) besides the policy's own cost."""
        try:
            self.policy.answered(request_id, tokens)
        except Exception as error:
            self.count(self.policy, error)

    def served(self) -> dict[str, float]:
        """Ask the policy for its tenants' accounts; none if it fails."""
        try:
            return self.policy.served()
        except Exception as error:
            self.count(self.policy, error)
            return {}

    def count(self, part: object, error: Exception) -> None:
        """Count a failure of policy or lanes; if `strict`, raise it as a `PolicyFault`."""
        self._stats.policy_faults += 1
        if self._strict:
            _raise_fault(part, error)

    # -- orders ------------------------------------------------------------------------------------

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        """Ask for the admission order of `queue`.  O(n) besides the policy's cost.

        `queue` is in arrival order and is not changed.  Raises `PolicyFault` if policy or lanes fail.
        """
        part: object = self.policy
        try:
            ask: Any = self.policy.order
            ordered = self._checked(ask(list(queue), cycle), queue, cycle.tree, part)
            if self.lanes is not None:
                part = self.lanes
                merge: Any = self.lanes.interleave
                ordered = self._checked(merge(ordered, list(queue), cycle), queue, cycle.tree, part)
        except Exception as error:
            _raise_fault(part, error)
        return ordered

    def stream(self, cycle: Cycle) -> RequestStream | None:
        """Ask for the policy's order as a stream; None if it has none, or there are lanes.

        Raises `PolicyFault` if the policy fails.
        """
        if not self._has_stream:
            return None
        ask: Any = self.policy.stream
        try:
            stream = ask(cycle)
            if stream is None or isinstance(stream, RequestStream):
                return stream
            return Iterated(iter(stream))
        except Exception as error:
            _raise_fault(self.policy, error)

    def _checked(
        self, answer: object, queue: list[PendingRequest], tree: PendingTree, part: object
    ) -> list[PendingRequest]:
        """Return `answer` if it is a list of exactly the requests of `queue`; else raise.  O(n).

        Each request of the answer is marked with the number of this check.  If the answer has n requests, all
        unmarked before, and no request of the queue is left unmarked, it is a permutation.
        """
        if not isinstance(answer, list):
            raise PolicyFault(f"{_name(part)} returned {a_kind(answer)}, not a list of requests")
        number: i64 = self.new_number()
        for item in answer:
            if not isinstance(item, PendingRequest) or item.placed == number:
                self._misplaced(answer, queue, tree, part)
            item.placed = number
        if len(answer) != len(queue):
            self._misplaced(answer, queue, tree, part)
        for request in queue:
            if request.placed != number:
                self._misplaced(answer, queue, tree, part)
        return answer

    def next_of(self, stream: RequestStream, tree: PendingTree, number: i64) -> PendingRequest | None:
        """Return and mark a stream's next request, which must wait and not be marked with `number` yet.

        Raises `PolicyFault`.  O(1) besides the stream's own cost.
        """
        try:
            request: object = stream.item() if isinstance(stream, Iterated) else stream.next()
        except Exception as error:
            _raise_fault(self.policy, error)
        return None if request is None else self._place(request, tree, number, self.policy)

    def _place(self, item: object, tree: PendingTree, number: i64, part: object) -> PendingRequest:
        """Mark a waiting request with `number`; `PolicyFault` if it has that mark or is none.  O(1)."""
        if not isinstance(item, PendingRequest):
            raise PolicyFault(f"{_name(part)} returned {a_kind(item)} among the requests")
        name = item.request_id
        if name not in tree or tree.request(name) is not item:
            raise PolicyFault(f"{_name(part)} returned request {name!r}, which is not the one that waits")
        if item.placed == number:
            raise PolicyFault(f"{_name(part)} returned request {name!r} twice")
        item.placed = number
        return item

    def _misplaced(
        self, answer: list[Any], queue: list[PendingRequest], tree: PendingTree, part: object
    ) -> NoReturn:
        """Raise what is wrong with a list that is not exactly the requests of `queue`.  O(n)."""
        number: i64 = self.new_number()
        for item in answer:
            self._place(item, tree, number, part)
        for request in queue:
            if request.placed != number:
                raise PolicyFault(f"{_name(part)} left out request {request.request_id!r}")
        raise PolicyFault(f"{_name(part)} changed the tree")

    def new_number(self) -> int:
        """A new number for the marks of one order or stream."""
        self._placed += 1
        return self._placed


@final
class Drawn:
    """Draws ids from a policy's stream one after another, until queue or cache change.

    A failure of the stream is counted, and the requests that it has not placed follow in arrival order.
    """

    def __init__(
        self,
        stream: RequestStream,
        tree: PendingTree,
        calls: PolicyCalls,
        in_arrival_order: Callable[[PendingTree], list[PendingRequest]],
    ) -> None:
        self._stream = stream
        self._tree = tree
        self._calls = calls
        self._in_arrival_order = in_arrival_order
        self._left: i64 = len(tree)
        self._number: i64 = calls.new_number()
        self._version: i64 = tree.version
        self._reads_cache: bool = calls.policy.reads_cache
        self._walks: i64 = tree.walks

    def next_id(self) -> str | None:
        """The next request's id; None at the end or after a change.  Cost of the stream's own `next`."""
        walked = self._reads_cache and self._walks != self._tree.walks
        if walked or self._version != self._tree.version:
            return None
        try:
            request = self._calls.next_of(self._stream, self._tree, self._number)
            if request is None and self._left > 0:
                raise PolicyFault(f"{type(self._calls.policy).__name__} left out {self._left} requests")
        except PolicyFault as fault:
            return self._fallen_back(fault)
        if request is None:
            return None
        self._left -= 1
        return request.request_id

    def _fallen_back(self, fault: PolicyFault) -> str | None:
        """Go on in arrival order with all requests that have not been placed.  O(n)."""
        queue = self._in_arrival_order(self._tree)
        self._stream = Listed([request for request in queue if request.placed != self._number])
        self._calls.count(self._calls.policy, fault)
        return self.next_id()


def _name(part: object) -> str:
    return type(part).__name__


def _raise_fault(part: object, error: Exception) -> NoReturn:
    """Raise a `PolicyFault` that says what went wrong, with its cause (compiled `raise from` sets none)."""
    if isinstance(error, PolicyFault):
        raise error
    try:
        told = str(error)
    except Exception:  # a policy's own error may be broken, too
        told = "an error without a text"
    fault = PolicyFault(f"{_name(part)} raised {type(error).__name__}: {told}")
    fault.__cause__ = error
    raise fault
