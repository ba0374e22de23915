"""`check_policy` must catch every policy below, each wrong in one way, and say so on a small queue."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from peek import AdmissionPolicy, Cycle, FirstCome, LongestPrefix, PendingRequest, ShortestPrefill
from peek.testing import check_policy
from peek.trie.node import next_preorder

Queue = list[PendingRequest]
Order = Callable[[AdmissionPolicy, Queue, Cycle], object]

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


# -- what is returned -----------------------------------------------------------------------------------


def loses_one(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return queue[:-1]


def lists_one_twice(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return queue + queue[:1]


def returns_copies(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return [PendingRequest(request.request_id, [1], request.arrival_time) for request in queue]


def returns_ids(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return [request.request_id for request in queue]


def returns_a_tuple(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return tuple(queue)


def returns_nothing(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return None


def returns_its_argument(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return queue


def needs_somebody(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return [queue[0], *queue[1:]]


def divides_by_what_is_left(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: 1 / (request.num_tokens - request.cached_len))


# -- what is touched ------------------------------------------------------------------------------------


def sorts_in_place(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    queue.sort(key=lambda request: -request.cached_len)
    return list(queue)


def empties_the_queue(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return [queue.pop() for _ in list(queue)]


def writes_a_signal(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    for request in queue:
        request.score += request.cached_len
    return sorted(queue, key=lambda request: -request.score)


def writes_the_lane(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    for request in queue:
        request.lane = 0
    return list(queue)


def changes_the_tree(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    for request in queue:
        cycle.tree.remove(request.request_id)
    return list(queue)


def changes_the_clock(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    cycle.now += 1.0
    return list(queue)


# -- what it depends on -----------------------------------------------------------------------------------


def by_name(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: (-request.cached_len, request.request_id))


def by_node_id(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: request.cluster_id)


def as_the_tree_lies(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
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


def shuffles(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return random.sample(queue, len(queue))


def throws_dice(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return DICE.sample(queue, len(queue))


def shares_a_global(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    SEEN.append(len(queue))
    return queue[:: (-1) ** len(SEEN)]


def takes_turns(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    policy.count += 1  # type: ignore[attr-defined]
    return queue[:: (-1) ** policy.count]  # type: ignore[attr-defined]


def tires(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    """Longest prompt first, until it has ordered three requests."""
    policy.count += len(queue)  # type: ignore[attr-defined]
    return sorted(queue, key=lambda request: -request.num_tokens) if policy.count < 3 else list(queue)  # type: ignore[attr-defined]


def reads_the_section(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: request.section)


def reads_the_cache(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: -request.cached_len)


def reads_the_tree(policy: AdmissionPolicy, queue: Queue, cycle: Cycle) -> object:
    return sorted(queue, key=lambda request: -request.cluster_size)


MUTANTS: dict[str, tuple[Callable[[], AdmissionPolicy], str]] = {
    "loses one": (made(loses_one), "order lost r0"),
    "lists one twice": (made(lists_one_twice), "order returned r0 twice"),
    "returns copies": (made(returns_copies), "which is no request of the queue"),
    "returns ids": (made(returns_ids), "order returned 'r0', which is no request of the queue"),
    "returns a tuple": (made(returns_a_tuple), "order returned a tuple, not a list"),
    "returns nothing": (made(returns_nothing), "order returned a NoneType, not a list"),
    "returns its argument": (made(returns_its_argument), "the very list it was given"),
    "needs somebody": (made(needs_somebody), "order raised IndexError: list index out of range"),
    "divides by zero": (made(divides_by_what_is_left), "order raised ZeroDivisionError"),
    "sorts in place": (made(sorts_in_place), "order changed the list it was given"),
    "empties the queue": (made(empties_the_queue), "order changed the list it was given"),
    "writes a signal": (made(writes_a_signal), "order changed score of a request from"),
    "writes the lane": (made(writes_the_lane), "order changed lane of a request from -1 to 0"),
    "changes the tree": (made(changes_the_tree), "order changed the cycle or its tree"),
    "changes the clock": (made(changes_the_clock), "order changed the cycle or its tree"),
    "by name": (made(by_name), "it depends on request ids"),
    "by node id": (made(by_node_id), "it depends on how the tree came about"),
    "as the tree lies": (made(as_the_tree_lies), "it depends on how the tree came about"),
    "shuffles": (made(shuffles), "a copy of the policy orders the same queue differently"),
    "throws dice": (made(throws_dice), ""),  # whichever check it fails first
    "shares a global": (made(shares_a_global), "a copy of the policy orders the same queue differently"),
    "takes turns": (made(takes_turns), "it remembers what it ordered before"),
    "tires": (made(tires), "it remembers"),
    "reads the section": (made(reads_the_section), "it reads section or lane"),
    "lies about the cache": (made(reads_the_cache, reads_cache=False), "it says reads_cache=False and reads"),
    "lies about the tree": (made(reads_the_tree, reads_tree=False), "it says reads_tree=False and reads"),
}


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
    assert len(queue_of(message)) <= 4, "a small queue"


def test_the_message_shows_the_smallest_queue() -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(made(loses_one), examples=200)
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
            self.weights = list(weights)

        def order(self, queue: Queue, cycle: Cycle) -> Queue:
            assert self.weights == [1.0, 2.0]
            return list(queue)

    check_policy(Limited([1.0, 2.0]), examples=5)


# -- bounds ---------------------------------------------------------------------------------------------


class OldestIfLate(ShortestPrefill):
    """Shortest first, but whoever has waited ten seconds goes before, in arrival order."""

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
