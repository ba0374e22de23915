"""What a fleet is made of: the guess at a cache, two views in one, and what is taken over from whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.fleets import ModelReplica, NaiveCacheOf, Prompt, common, tokens_of

from peek import PendingRequest, PendingTree
from peek.fleet import FleetConfig, RoutedHistory
from peek.fleet.replicas import Replica, Ticket
from peek.fleet.stealing import Raid
from peek.fleet.views import CombinedView
from peek.testing import check_cache_view
from peek.trie.keys import pack
from peek.trie.tree_view import TreeView

SPACES = st.sampled_from(["", "lora"])
KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
PROMPTS = st.tuples(SPACES, KEYS)


def held(view: object, prompt: Prompt) -> int:
    namespace, key = prompt
    matched: int = view.advance(view.root(namespace), memoryview(pack(key)).cast("i"), 0)[0]  # type: ignore[attr-defined]
    return matched


def longest(prompts: list[Prompt], asked: Prompt) -> int:
    return max((common(key, asked[1]) for space, key in prompts if space == asked[0]), default=0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, 9), PROMPTS),
        st.tuples(st.just("forget"), st.integers(0, 9), PROMPTS),
        st.tuples(st.just("clear"), st.just(0), PROMPTS),
    ),
    max_size=40,
)


@given(capacity=st.integers(0, 15), steps=STEPS, asked=PROMPTS)
def test_history_holds_the_newest_prompts_that_fit(
    capacity: int, steps: list[tuple[str, int, Prompt]], asked: Prompt
) -> None:
    history = RoutedHistory(capacity)
    twin: dict[str, Prompt] = {}
    for what, number, prompt in steps:
        name = str(number)
        if what == "note":
            history.note(name, pack(prompt[1]), prompt[0])
            twin = {other: key for other, key in twin.items() if other != name and key != prompt}
            twin[name] = prompt
            while tokens_of(twin.values(), 1) > capacity and len(twin) > 1:
                del twin[next(iter(twin))]
        elif what == "forget":
            history.forget(name)
            twin.pop(name, None)
        else:
            history.clear()
            twin.clear()
        assert history.symbols == tokens_of(twin.values(), 1)
        assert len(history) == len(twin)
        assert held(history, asked) == longest(list(twin.values()), asked)


@given(cached=st.lists(PROMPTS, max_size=4), coming=st.lists(PROMPTS, max_size=4), asked=PROMPTS)
def test_the_combined_view_is_the_longer_of_two(
    cached: list[Prompt], coming: list[Prompt], asked: Prompt
) -> None:
    tree = PendingTree()
    for number, (namespace, key) in enumerate(coming):
        tree.insert(str(number), key, namespace)
    view = CombinedView(NaiveCacheOf(cached, 1), TreeView(tree))
    assert held(view, asked) == longest(cached + coming, asked)


def test_history_keeps_the_protocol() -> None:
    history = RoutedHistory(100)
    model: list[Prompt] = []
    for number in range(6):
        key = [number % 2] * 4 + [number]
        history.note(str(number), pack(key), "")
        model.append(("", key))
    check_cache_view(history, lambda key, namespace: longest(model, (namespace, key)))


# -- taking over -----------------------------------------------------------------------------------------

QUEUES = st.lists(st.tuples(PROMPTS, st.integers(0, 30)), min_size=1, max_size=12)


def replica_of(speed: float, cached: list[Prompt]) -> Replica:
    replica = Replica("g", FleetConfig(unit_tokens=10), None, 10_000, speed)
    for number, (namespace, key) in enumerate(cached):
        replica.history.note(f"old {number}", pack(key), namespace)
    return replica


def wait(replica: Replica, queue: list[tuple[Prompt, int]]) -> dict[str, Ticket]:
    tickets = {}
    for number, ((namespace, key), answer) in enumerate(queue):
        request = PendingRequest(f"r{number}", None, float(number), namespace, 10 * len(key))
        ticket = Ticket(request, pack(key), answer, 0)
        replica.hold(ticket, replica.added_tokens(request, ticket.key))
        tickets[request.request_id] = ticket
    return tickets


@given(
    queue=QUEUES,
    speeds=st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 2.0])),
    cached=st.tuples(st.lists(PROMPTS, max_size=2), st.lists(PROMPTS, max_size=2)),
    stickiness=st.sampled_from([1.0, 4.0]),
)
def test_help_never_makes_the_longest_backlog_longer(
    queue: list[tuple[Prompt, int]],
    speeds: tuple[float, float],
    cached: tuple[list[Prompt], list[Prompt]],
    stickiness: float,
) -> None:
    victim, thief = replica_of(speeds[0], cached[0]), replica_of(speeds[1], cached[1])
    tickets = wait(victim, queue)
    before = victim.backlog
    taken = Raid(victim, thief, tickets, stickiness).choose()
    assert len(set(taken)) == len(taken)
    for request_id in taken:
        ticket = tickets[request_id]
        victim.release(ticket)
        thief.hold(ticket, thief.added_tokens(ticket.request, ticket.key))
    slack = len(taken) / thief.speed  # each counts with a token at least
    assert thief.backlog <= before + slack
    assert victim.backlog <= before


@given(queue=QUEUES, cached=st.lists(PROMPTS, max_size=2))
def test_who_takes_nothing_would_have_paid_too_much_for_each(
    queue: list[tuple[Prompt, int]], cached: list[Prompt]
) -> None:
    victim, thief = replica_of(1.0, []), replica_of(1.0, cached)
    tickets = wait(victim, queue)
    if Raid(victim, thief, tickets, 1.0).choose():
        return
    model = ModelReplica(1.0, 100, NaiveCacheOf(cached, 10))
    for prompt, answer in queue:
        assert model.cold_tokens(prompt, [], 10) + max(1, answer) > victim.backlog / 2


def test_a_whole_branch_goes_before_a_part_of_one() -> None:
    victim, thief = replica_of(1.0, []), replica_of(1.0, [])
    queue: list[tuple[Prompt, int]] = [(("", [1] * 30 + [2] * number), 0) for number in range(1, 40)]
    queue += [(("", [5] * 20), 0), (("", [6] * 20), 0)]
    tickets = wait(victim, queue)
    assert sorted(Raid(victim, thief, tickets, 4.0).choose()) == ["r39", "r40"]


def test_of_one_hot_branch_the_thief_takes_a_part() -> None:
    victim, thief = replica_of(1.0, [("", [1] * 30)]), replica_of(1.0, [])
    tickets = wait(victim, [(("", [1] * 30 + [number] * 20), 0) for number in range(2, 40)])
    taken = Raid(victim, thief, tickets, 1.0).choose()
    assert 1 < len(taken) < 19
