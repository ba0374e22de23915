"""`check_policy` must catch every policy below, each wrong in one way, and say so on a small queue."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import cycle as endlessly
from math import inf
from typing import Any

import pytest

from peek import (
    AdmissionPolicy,
    Cycle,
    FirstCome,
    LongestPrefix,
    PeekPolicy,
    PendingRequest,
    ShortestPrefill,
)
from peek.policy.base import HELD, Listed, RequestStream
from peek.testing import check_policy
from peek.trie.node import next_preorder

Queue = list[PendingRequest]
Order = Callable[[Any, Queue, Cycle], object]

DICE = random.SystemRandom()
SEEN: list[int] = []


def made(order: Order, **options: bool) -> Callable[[], AdmissionPolicy]:
    """A class of policies with this `order`; `self.count` is theirs to use."""

    class Mutant(AdmissionPolicy):
        def __init__(self) -> None:
            super().__init__(**options)
            self.count = 0

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            return order(self, queue, cycle)  # type: ignore[return-value]

    return Mutant


def divides_by_what_is_left(policy: Any, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: 1 / (request.num_tokens - request.cached_len))


def as_the_tree_lies(policy: Any, queue: Queue, cycle: Cycle) -> object:
    ordered = []
    for _, root in cycle.tree.roots():
        node = next_preorder(root)
        while node is not None:
            end = node.terminator
            while end is not None:
                ordered.append(end.request)
                end = end.next
            node = next_preorder(node)
    return ordered


def writes(queue: Queue, name: str, change: Callable[[PendingRequest], int]) -> Queue:
    for request in queue:
        setattr(request, name, change(request))
    return queue


def shares_a_global(policy: Any, queue: Queue, cycle: Cycle) -> object:
    SEEN.append(len(queue))
    return queue[:: (-1) ** len(SEEN)]


def takes_turns(policy: Any, queue: Queue, cycle: Cycle) -> object:
    policy.count += 1
    return queue[:: (-1) ** policy.count]


def tires(policy: Any, queue: Queue, cycle: Cycle) -> object:
    """Longest prompt first, until it has ordered three requests."""
    policy.count += len(queue)
    return sorted(queue, key=lambda request: -request.num_tokens) if policy.count < 3 else list(queue)


def changes_the_tree(policy: Any, queue: Queue, cycle: Cycle) -> object:
    for request in queue:
        cycle.tree.remove(request.request_id)
    return list(queue)


def changes_the_clock(policy: Any, queue: Queue, cycle: Cycle) -> object:
    cycle.now += 1.0
    return list(queue)


def sorted_by(key: Callable[[PendingRequest], Any]) -> Order:
    return lambda policy, queue, cycle: sorted(queue, key=key)


MUTANTS: dict[str, tuple[Callable[[], AdmissionPolicy], str]] = {
    # what is returned
    "loses one": (made(lambda p, queue, c: queue[:-1]), "order lost r0"),
    "lists one twice": (made(lambda p, queue, c: queue + queue[:1]), "order returned r0 twice"),
    "returns copies": (
        made(lambda p, queue, c: [PendingRequest(r.request_id, [1], r.arrival_time) for r in queue]),
        "which is no request of the queue",
    ),
    "returns ids": (
        made(lambda p, queue, c: [request.request_id for request in queue]),
        "order returned 'r0', which is no request of the queue",
    ),
    "returns a tuple": (made(lambda p, queue, c: tuple(queue)), "order returned a tuple, not a list"),
    "returns nothing": (made(lambda p, queue, c: None), "order returned a NoneType, not a list"),
    "returns its argument": (made(lambda p, queue, c: queue), "the very list it was given"),
    "needs a request": (
        made(lambda p, queue, c: [queue[0], *queue[1:]]),
        "order raised IndexError: list index out of range",
    ),
    "divides by zero": (made(divides_by_what_is_left), "order raised ZeroDivisionError"),
    # what is touched
    "sorts in place": (
        made(lambda p, queue, c: [queue.sort(key=lambda request: -request.cached_len), *queue][1:]),
        "order changed the list it was given",
    ),
    "empties the queue": (
        made(lambda p, queue, c: [queue.pop() for _ in list(queue)]),
        "order changed the list it was given",
    ),
    "writes a signal": (
        made(
            lambda p, queue, c: sorted(
                writes(queue, "score", lambda r: r.score + r.cached_len), key=lambda r: -r.score
            )
        ),
        "order changed score of a request from",
    ),
    "writes the lane": (
        made(lambda p, queue, c: list(writes(queue, "lane", lambda request: 0))),
        "order changed lane of a request from -1 to 0",
    ),
    "changes the tree": (made(changes_the_tree), "order changed the cycle or its tree"),
    "changes the clock": (made(changes_the_clock), "order changed the cycle or its tree"),
    # what it depends on
    "by name": (
        made(sorted_by(lambda request: (-request.cached_len, request.request_id))),
        "it depends on request ids",
    ),
    "by node id": (
        made(sorted_by(lambda request: request.cluster_id)),
        "it depends on how the tree came about",
    ),
    "as the tree lies": (made(as_the_tree_lies), "it depends on how the tree came about"),
    "shuffles": (
        made(lambda p, queue, c: random.sample(queue, len(queue))),
        "a copy of the policy orders the same queue differently",
    ),
    "throws dice": (made(lambda p, queue, c: DICE.sample(queue, len(queue))), ""),  # whatever fails first
    "shares a global": (made(shares_a_global), "a copy of the policy orders the same queue differently"),
    "takes turns": (made(takes_turns), "it remembers what it ordered before"),
    "tires": (made(tires), "it remembers"),
    "reads the section": (made(sorted_by(lambda request: request.section)), "it reads section or lane"),
    "lies about the cache": (
        made(sorted_by(lambda request: -request.cached_len), reads_cache=False),
        "it says reads_cache=False and reads",
    ),
    "lies about the tree": (
        made(sorted_by(lambda request: -request.cluster_size), reads_tree=False),
        "it says reads_tree=False and reads",
    ),
}


def marks_the_tree(policy: Any, queue: Queue, cycle: Cycle) -> Queue:
    for _, root in cycle.tree.roots():
        root.walk_matched += 1
    return list(queue)


MUTANTS |= {
    "marks the tree": (made(marks_the_tree), "order changed the cycle or its tree"),
    "knows one tenant": (
        made(lambda p, queue, c: [request for request in queue if request.tenant != "t2"]),
        "order lost r",
    ),
    "divides by targets": (
        made(sorted_by(lambda request: 1 / ((request.ttft_target_s or 1.0) - 90.0))),
        "ZeroDivisionError",
    ),
}


class LosesWhoWasHeld(AdmissionPolicy):
    """Takes those that were held for gone."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        if how == HELD:
            self.gone.add(request.request_id)

    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        return [request for request in queue if request.request_id not in self.gone]


class FailsAtAnswers(AdmissionPolicy):
    def answered(self, request_id: str, tokens: int) -> None:
        raise KeyError(request_id)

    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        return list(queue)


def in_order(cycle: Cycle) -> Queue:
    """The waiting requests by arrival, as a policy is given them."""
    return sorted(cycle.tree.requests(), key=lambda request: (request.arrival_time, request.sequence))


class StreamsOtherwiseLater(AdmissionPolicy):
    """Its stream goes backwards once a request was admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.later = False

    def left(self, request: PendingRequest, how: str, cost_tokens: int) -> None:
        self.later = True

    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        return list(queue)

    def stream(self, cycle: Cycle) -> RequestStream | None:
        return Listed(in_order(cycle)[:: -1 if self.later else 1])


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (LosesWhoWasHeld, "order lost r"),
        (FailsAtAnswers, "arrived, left, generated or answered"),
        (StreamsOtherwiseLater, "its stream is another order"),
    ],
)
def test_what_goes_wrong_after_an_event_is_caught(policy: type[AdmissionPolicy], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_policy(policy, examples=300, stateful=True)


def test_a_limit_that_only_a_long_queue_meets_is_found() -> None:
    with pytest.raises(AssertionError, match="order lost r100, ") as caught:
        check_policy(made(lambda p, queue, c: queue[:100]), examples=5)
    assert "r11: arrived" in str(caught.value)
    assert "and 138 more" in str(caught.value)


def queue_of(message: str) -> list[str]:
    """The lines of a message that show a waiting request."""
    return [line for line in message.splitlines() if ": arrived at " in line or "arrives r" in line]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bad_policy_is_caught(name: str) -> None:
    make, fault = MUTANTS[name]
    with pytest.raises(AssertionError) as caught:
        check_policy(make, examples=200)
    message = str(caught.value)
    assert message.startswith("Mutant: ")
    assert fault in message
    assert len(queue_of(message)) <= 8, "shrunk, though not always to the smallest there is"


def test_the_message_shows_the_smallest_queue() -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(MUTANTS["loses one"][0], examples=200)
    assert str(caught.value) == (
        "Mutant: order lost r0\n  queue at 64, symbols cached in brackets:\n    r0: arrived at 0, [1] (0)"
    )


def test_a_cause_stays_with_the_message() -> None:
    with pytest.raises(AssertionError, match=r"test_testing_policies\.py:\d+\)"):
        check_policy(made(divides_by_what_is_left), examples=200)


# -- good ones ------------------------------------------------------------------------------------------


class MostCachedFirst(AdmissionPolicy):
    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        return sorted(queue, key=lambda request: -request.cached_len)


class Generations(AdmissionPolicy):
    """Those that were here last time go first: it means to remember."""

    def __init__(self) -> None:
        super().__init__(reads_cache=False, reads_tree=False)
        self.known: set[str] = set()

    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        ordered = sorted(queue, key=lambda request: request.request_id not in self.known)
        self.known = {request.request_id for request in queue}
        return ordered


@pytest.mark.parametrize(
    "policy", [MostCachedFirst, MostCachedFirst(), lambda: LongestPrefix(4), FirstCome()]
)
def test_a_good_policy_passes(policy: Callable[[], AdmissionPolicy] | AdmissionPolicy) -> None:
    check_policy(policy, examples=30)


def test_a_policy_that_remembers_says_so() -> None:
    with pytest.raises(AssertionError, match="it remembers"):
        check_policy(Generations, examples=200)
    check_policy(Generations, stateful=True, examples=50)


@pytest.mark.parametrize(
    "name", ["loses one", "shuffles", "by name", "shares a global", "lies about the cache"]
)
def test_memory_excuses_nothing_else(name: str) -> None:
    with pytest.raises(AssertionError):
        check_policy(MUTANTS[name][0], stateful=True, examples=200)


def test_the_policy_given_is_not_used_up() -> None:
    policy = Generations()
    policy.known.add("r0")
    check_policy(policy, stateful=True, examples=5)
    assert policy.known == {"r0"}


def test_a_policy_with_settings_is_copied_with_them() -> None:
    class Limited(FirstCome):
        def __init__(self, weights: Sequence[float]) -> None:
            super().__init__()
            self.weights = self.same = list(weights)
            self.own = self.order

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            assert self.weights == [1.0, 2.0]
            assert self.same is self.weights
            assert self.own.__self__ is self
            return list(queue)

    check_policy(Limited([1.0, 2.0]), examples=5)


def test_a_policy_inside_a_policy_is_copied_with_its_settings() -> None:
    class Inner(FirstCome):
        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            return queue[:: self.step]

    class Outer(AdmissionPolicy):
        def __init__(self, inner: AdmissionPolicy) -> None:
            super().__init__()
            self.inner = inner

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            return self.inner.order(queue, cycle)

    check_policy(Outer(Inner(-1)), examples=5)


def test_a_policy_that_is_not_set_up_is_told_apart() -> None:
    class Careless(AdmissionPolicy):
        def __init__(self) -> None:
            self.weight = 2

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            return list(queue)

    for policy in (Careless, Careless()):
        with pytest.raises(AssertionError, match=r"^Careless.__init__ did not call super\(\).__init__\(\)$"):
            check_policy(policy)


def test_a_policy_that_cannot_be_copied_says_what_to_give() -> None:
    policy = FirstCome()
    policy.options = (each for each in ())
    with pytest.raises(TypeError, match=r"^FirstCome cannot be copied .*: give its class, or a function"):
        check_policy(policy)


# -- bounds ---------------------------------------------------------------------------------------------


def newest_first(_: Any, queue: Queue, cycle: Cycle) -> object:
    return queue[::-1]


def largest_first(_: Any, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: request.cached_len - request.num_tokens)


class OldestIfLate(ShortestPrefill):
    """Shortest first, but requests that have waited ten seconds go before, in arrival order."""

    def order(self, queue: Queue, cycle: Cycle) -> Queue:
        late = [request for request in queue if cycle.now - request.arrival_time >= 10.0]
        return late + [request for request in super().order(queue, cycle) if request not in late]


def test_a_bound_that_holds() -> None:
    check_policy(FirstCome, bound=lambda ahead_s, largest_s: ahead_s, examples=60)
    # The last of those before it is late by 10 s at the latest; then at most one prompt more overtakes.
    check_policy(OldestIfLate, bound=lambda ahead_s, largest_s: 10.0 + ahead_s + largest_s, examples=60)


@pytest.mark.parametrize("policy", [ShortestPrefill, OldestIfLate])
def test_a_bound_that_does_not_hold(policy: Callable[[], AdmissionPolicy]) -> None:
    with pytest.raises(AssertionError, match=r"r\d waited [\d.]+ s, the bound allows [\d.]+ s"):
        check_policy(policy, bound=lambda ahead_s, largest_s: ahead_s, examples=300)


STARVING = [ShortestPrefill, lambda: LongestPrefix(queue_limit=None), made(newest_first), made(largest_first)]


@pytest.mark.parametrize("policy", STARVING)
def test_a_bound_that_a_flood_breaks(policy: Callable[[], AdmissionPolicy]) -> None:
    """None of nine requests waits for a minute more than it may, whatever the order."""
    with pytest.raises(AssertionError, match=r"(old|r\d+) waited [\d.]+ s, the bound allows"):
        check_policy(policy, bound=lambda ahead_s, largest_s: 60.0 + ahead_s + largest_s, examples=5)


def test_a_bound_that_is_no_number_does_not_hold() -> None:
    with pytest.raises(AssertionError, match="the bound allows nan s"):
        check_policy(FirstCome, bound=lambda ahead_s, largest_s: inf - inf, examples=5)


# -- wrong usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (42, "not 42"),
        (dict, r"made \{\}, which is not an AdmissionPolicy"),
        ((lambda shared: lambda: shared)(FirstCome()), "made the same policy twice"),
    ],
)
def test_what_is_no_policy_is_refused(given: object, fault: str) -> None:
    with pytest.raises(TypeError, match=fault):
        check_policy(given)  # type: ignore[arg-type]


class Streams(AdmissionPolicy):
    """A right order, and a stream that is another one."""

    def __init__(self, change: Callable[[list[PendingRequest]], Any]) -> None:
        super().__init__()
        self.change = change

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return list(queue)

    def stream(self, cycle: Cycle) -> Any:
        return self.change(in_order(cycle))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (reversed, "its stream is another order"),
        (lambda queue: queue[:-1], "stream lost"),
        (endlessly, "stream returned r0 twice"),
        (lambda queue: iter(writes(queue, "score", lambda r: r.score + 1)), "stream changed score of"),
        (lambda queue: 1 / 0, "stream raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_stream_is_the_order(change: Callable[[list[PendingRequest]], Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_policy(lambda: Streams(change), examples=40)


def test_a_policy_that_streams_its_order_is_right() -> None:
    check_policy(lambda: Streams(iter), examples=40)
    check_policy(PeekPolicy, stateful=True, examples=40)
