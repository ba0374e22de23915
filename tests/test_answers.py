"""What is expected of answers and of turns to come: what is learned, and that the order follows."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Arrival, Fact, Scene, cache_of, rows_of, scenes
from test_priority_index import Definition

from peek import InvalidKey, PeekConfig, PeekPolicy, PendingRequest, Planner
from peek.policy.default import PeekOptions
from peek.policy.default.expectations import MEMORY, MOST_TURNS, Expectations, Kind, Mean, Turns
from peek.trie.keys import HEADS, heads_of, pack
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import TreeView

INDEX = PeekConfig()

Told = tuple[str, tuple[str, ...], int]
"""Namespace and heads of a request that has ended, and the tokens of its answer."""

SPACES = st.sampled_from(["", "lora"])
PATHS = st.sampled_from([(), ("a",), ("a", "b"), ("a", "c"), ("d",)])
TOLD = st.tuples(SPACES, PATHS, st.integers(1, 4096))


def named(row: Arrival) -> PendingRequest:
    """Its first symbol names its kind."""
    key, heads = list(row.symbols), (row.symbols[:1],)
    return PendingRequest(row.request_id, key, row.arrival_time, row.namespace, row.num_tokens, heads=heads)


def learned_of(planner: Planner, name: str) -> float:
    """The expected ratio of a request that waits."""
    policy = planner.policy
    assert isinstance(policy, PeekPolicy)
    return policy.expectations.waiting[name].ratio


def lengths_after(history: Sequence[Told], most: float) -> Expectations:
    """Those who ended came and went one after another."""
    lengths = Expectations(most)
    for number, (space, heads, tokens) in enumerate(history):
        teach(lengths, f"past{number}", space, heads, tokens)
    return lengths


def expected_by_hand(history: Sequence[Told], space: str, heads: tuple[str, ...]) -> Fraction | None:
    """The mean of each wider kind counts as one answer more in the next narrower one."""
    own = [tokens for where, _, tokens in history if where == space]
    found = Fraction(sum(own), len(own)) if own else None
    for end in range(1, len(heads) + 1):
        seen = [t for where, path, t in history if where == space and path[:end] == heads[:end]]
        if seen:
            assert found is not None
            found = (sum(seen) + found) / (len(seen) + 1)
    return found


@given(history=st.lists(TOLD, max_size=32), space=SPACES, heads=PATHS, most=st.sampled_from([1.2, 2.0, inf]))
def test_what_is_expected_of_a_new_request(
    history: list[Told], space: str, heads: tuple[str, ...], most: float
) -> None:
    """Of the namespace's own answers alone, over their mean, within the bounds."""
    request = PendingRequest("new", [1], 0.0, space)
    lengths = lengths_after(history, most)
    lengths.arrived(request, heads)
    told = lengths.waiting["new"].ratio
    expected, mean = expected_by_hand(history, space, heads), expected_by_hand(history, space, ())
    if expected is None or mean is None:
        assert told == 1.0
    else:
        assert told == pytest.approx(min(max(float(expected / mean), 1.0 / most), most), rel=1e-9)


@given(
    scene=scenes(max_size=7), told=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3000)), max_size=12)
)
def test_the_order_is_that_of_the_definition_with_what_was_learned(
    scene: Scene, told: list[tuple[int, int]]
) -> None:
    """Orders in between, so that the pieces are kept and renewed and not made anew."""
    policy = PeekPolicy()
    planner = Planner(policy=policy)
    names = [row.request_id for row in scene.rows]
    for number, row in enumerate(scene.rows):
        planner.add(named(row))
        planner.add(named(replace(row, request_id=f"past{number}")))
    for number in range(len(names)):
        planner.remove(f"past{number}")
    for number, tokens in told:
        planner.plan(scene.cache(), scene.now)
        planner.answered(tokens, f"past{number}")
    plan = planner.plan(scene.cache(), scene.now)
    learned = {name: learned_of(planner, name) for name in names}
    assert plan == Definition(scene, policy, learned).order(False)[0]


@given(scene=scenes(max_size=7), tokens=st.integers(1, 5000), answers=st.integers(1, 40))
def test_answers_of_one_length_change_nothing(scene: Scene, tokens: int, answers: int) -> None:
    plans = []
    for told in (0, answers):
        planner = Planner(INDEX)
        for row in scene.rows:
            planner.add(named(row))
        for number in range(told):
            planner.add(named(replace(scene.rows[number % len(scene.rows)], request_id=f"past{number}")))
            planner.remove(f"past{number}")
            planner.answered(tokens, f"past{number}")
        plans.append(planner.plan(scene.cache(), scene.now))
    assert plans[0] == plans[1]


def test_those_who_wait_are_told() -> None:
    """Two templates, equal in all but the answers that the first of each turn out to have."""
    rows = rows_of([1] * 80 + [1], [2] * 80 + [1], [1] * 80 + [2], [2] * 80 + [2], step=0.0)
    planner = Planner(INDEX)
    for row in rows:
        planner.add(row.request())
    cache = cache_of([("", (1,) * 80), ("", (2,) * 80)])
    assert planner.plan(cache, NOW) == ["r0", "r1", "r2", "r3"]
    planner.remove("r0")
    planner.remove("r1")
    planner.answered(130, "r0")
    planner.answered(70, "r1")
    assert learned_of(planner, "r2") == 1.0  # nothing is worked out before it is needed
    assert planner.plan(cache, NOW) == ["r3", "r2"]
    assert learned_of(planner, "r2") == pytest.approx((130 + 100) / 2 / 100)
    assert learned_of(planner, "r3") == pytest.approx((70 + 100) / 2 / 100)


def test_an_answer_of_nobody_teaches_nothing() -> None:
    planner = Planner(INDEX)
    planner.answered(100)
    planner.answered(300, "unknown")
    planner.add(PendingRequest("r", [1] * 100, 0.0))
    assert learned_of(planner, "r") == 1.0


def test_a_withdrawn_request_teaches_nothing() -> None:
    planner = Planner(INDEX)
    for name in ("gone", "served", "other"):
        planner.add(PendingRequest(name, [len(name)] * 100, 0.0))
    planner.remove("gone", admitted=False)
    planner.remove("served")
    planner.remove("other")
    planner.answered(9000, "gone")
    planner.answered(10, "served")
    planner.answered(12, "other")
    for name in ("gone", "served"):
        planner.add(PendingRequest("next " + name, [len(name)] * 100, 0.0))
    assert learned_of(planner, "next gone") == 1.0
    assert learned_of(planner, "next served") == pytest.approx(10.5 / 11)


def test_memory_is_bounded() -> None:
    lengths = Expectations(inf)
    kept = PendingRequest("kept", [1], 0.0)
    lengths.arrived(kept, ("kept",))
    for number in range(70_000):
        request = PendingRequest(f"r{number}", [1], 0.0)
        lengths.arrived(request, (number,))
        lengths.admitted(request)
    assert lengths.kinds == 0, "who comes teaches nothing"
    assert lengths.running == 16_384
    for number in range(65_000, 70_000):
        lengths.answered(7, f"r{number}")
    assert 1024 <= lengths.kinds <= 2048
    assert lengths.running == 16_384 - 5000


def test_long_names_are_not_kept() -> None:
    """A client may send a salt or a session of any length with each request."""
    planner, cache = Planner(), TreeView(PendingTree())
    tracemalloc.start()
    try:
        for number in range(3000):
            name = f"{number}{'x' * 20_000}"
            planner.add(PendingRequest(name, [number] * 80, 0.0, name, session=name[: number % 2 * 20_000]))
            assert list(planner.plan(cache, now=1.0)) == [name]
            planner.remove(name)
            planner.answered(9, name)
        assert tracemalloc.get_traced_memory()[0] < 10_000_000
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_over_all_namespaces() -> None:
    """Whoever has most forgets first: a flood in some namespaces does not make a small one forget."""
    lengths = Expectations(inf)
    ours = taught(lengths, "ours", [("ours",)], 500)
    for number in range(12):
        taught(lengths, f"salt{number}", [(number, i) for i in range(1500)], 9)
    assert lengths.kinds <= 16_384
    taught(lengths, "salt0", [("more", i) for i in range(16_384 - lengths.kinds)], 9)
    assert lengths.kinds == 16_384, "so many are kept"
    lengths.arrived(ours, ("ours",))
    assert lengths.waiting[ours.request_id].ratio == pytest.approx((500 + 250.5) / 2 / 250.5)
    lengths.withdrawn(ours.request_id)
    for number in range(9000):
        taught(lengths, f"user{number}", [("any",)], 9)
    assert lengths.namespaces <= 4096
    assert lengths.kinds == lengths.namespaces, "a namespace that is forgotten takes its kinds along"


def test_room_for_a_thousand_kinds_is_made_at_once() -> None:
    """Each user has a cache salt: a look at all namespaces for each kind held a scheduler up for a second."""
    lengths, calls = Expectations(inf), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for number in range(5_500):
        lengths.arrived(PendingRequest(f"waits{number}", [1], 0.0, f"salt{number}"), ())
        if lengths.kinds > 16_384 - 3:
            sys.setprofile(count)
        try:
            teach(lengths, f"ended{number}", f"salt{number}", ("a", "b", "c"), 9)
        finally:
            sys.setprofile(None)
    assert 15_360 <= lengths.kinds <= 16_384
    assert calls < 10 * 5_500, "on the interpreted build, which alone tells of its calls"


def test_kinds_that_are_used_again_take_no_room_of_another_namespace() -> None:
    lengths = Expectations(inf)
    ours = taught(lengths, "ours", [("ours",)], 500)
    number = 0
    for _ in range(20):
        while lengths.kinds < 1 + 2048:
            teach(lengths, f"r{number}", "", (number,), 9)
            number += 1
        request = PendingRequest("again", [1], 0.0)
        lengths.arrived(request, (number - 1025,))
        lengths.withdrawn("again")
        assert lengths.kinds == 1 + 1025, "the rest of the older half is forgotten"
    lengths.arrived(ours, ("ours",))
    assert lengths.waiting[ours.request_id].ratio > 1.4


def taught(lengths: Expectations, space: str, kinds: list[tuple[object, ...]], tokens: int) -> PendingRequest:
    """One answer of each kind, and one of a token; another request of the namespace."""
    teach(lengths, f"{space}short", space, (), 1)
    for number, heads in enumerate(kinds):
        teach(lengths, f"{space}{number}", space, heads, tokens)
    return PendingRequest(f"{space} new", [1], 0.0, space)


def teach(lengths: Expectations, name: str, space: str, heads: tuple[object, ...], tokens: int) -> None:
    request = PendingRequest(name, [1], 0.0, space)
    lengths.arrived(request, heads)
    lengths.admitted(request)
    lengths.answered(tokens, name)


def test_another_namespace_makes_nobody_forget() -> None:
    """2,100 one-off prompts, served or withdrawn, of a namespace that is not ours, or ours and withdrawn."""
    for space, served in (("other", True), ("other", False), ("", False)):
        lengths = Expectations(inf)
        ours = taught(lengths, "", [("ours",)], 500)
        for number in range(2100):
            request = PendingRequest(f"r{number}", [1], 0.0, space)
            lengths.arrived(request, tuple((number, i) for i in range(3)))
            if served:
                lengths.admitted(request)
                lengths.answered(1, f"r{number}")
            else:
                lengths.withdrawn(request.request_id)
        lengths.arrived(ours, ("ours",))
        assert lengths.waiting[ours.request_id].ratio > 1.4, (space, served)


@pytest.mark.parametrize("answers", [8, 40, 4000])
def test_one_tenant_has_half_of_what_a_kind_learns(answers: int) -> None:
    """However many answers are his, once the others have had `MEMORY`."""
    kind = Kind(1.0, MEMORY)
    for _ in range(int(MEMORY)):
        kind.learn(100.0, "others")
    for _ in range(answers):
        kind.learn(4000.0, "poisons")
    assert kind.mean <= 2050.0
    assert kind.mean == pytest.approx(
        (100 * MEMORY + 4000 * min(answers, MEMORY)) / (MEMORY + min(answers, MEMORY))
    )


@given(answers=st.lists(st.tuples(st.integers(1, 5000), st.sampled_from("abcdefghij")), max_size=80))
def test_a_kind_is_the_mean_of_its_tenants(answers: list[tuple[int, str]]) -> None:
    """Of the eight who answered last, each as if he were alone, and weighed by his answers."""
    kind, alone = Kind(1.0, MEMORY), dict[str, Mean]()
    for tokens, tenant in answers:
        own = alone.pop(tenant, None) or Mean(MEMORY)
        own.add(tokens)
        alone[tenant] = own
        while len(alone) > 8:
            del alone[next(iter(alone))]
        kind.learn(tokens, tenant)
        total = sum(each.answers for each in alone.values())
        assert kind.answers == total
        assert kind.mean == pytest.approx(sum(each.answers * each.mean for each in alone.values()) / total)


@given(
    seen=st.lists(st.integers(0, 20), max_size=40),
    turn=st.integers(0, 20),
    wider=st.floats(0.0, 9.0),
    prior=st.sampled_from([0.0, 1.0]),
)
def test_the_turns_that_follow_are_the_later_ones_over_those_like_it(
    seen: list[int], turn: int, wider: float, prior: float
) -> None:
    turns = Turns()
    for each in seen:
        turns.add(each)
    told = [min(each, 15) for each in seen]
    like_it, later = told.count(min(turn, 15)), sum(each > turn for each in told)
    expected = (later + prior * wider) / (like_it + prior) if like_it else wider
    assert turns.after(turn, wider, prior) == pytest.approx(expected)


def test_old_turns_count_for_less() -> None:
    turns = Turns()
    for number in range(2000):
        turns.add(1 if number % 2 else 0)
    assert turns.after(0, 0.0, 0.0) == pytest.approx(1.0, abs=0.01)
    for _ in range(2000):
        turns.add(0)
    assert turns.after(0, 0.0, 0.0) < 0.1


def session(lengths: Expectations, name: str, turns: int, heads: tuple[object, ...]) -> None:
    for turn in range(turns):
        request = PendingRequest(f"{name}/{turn}", [1], 0.0, session=name)
        lengths.arrived(request, heads)
        lengths.admitted(request)
        lengths.answered(10, request.request_id)


def test_a_first_turn_is_larger_by_the_turns_to_come_and_a_last_one_is_not() -> None:
    """Three turns of one kind, one of the other: of all first turns half go on, and 2/3 of the second."""
    lengths = Expectations(inf)
    for number in range(300):
        session(lengths, f"three{number}", 3, ("three",))
        session(lengths, f"one{number}", 1, ("one",))
    found = {}
    for kind, admitted in (("three", 0), ("three", 1), ("three", 2), ("one", 0)):
        name = f"new {kind} {admitted}"
        for turn in range(admitted + 1):
            request = PendingRequest(f"{name}/{turn}", [1], 0.0, session=name)
            lengths.arrived(request, (kind,))
            found[kind, admitted] = lengths.waiting[request.request_id].ratio
            lengths.admitted(request)
    assert found["three", 0] == pytest.approx(3.0, rel=0.01)
    assert found["three", 1] == pytest.approx(2.0, rel=0.01)
    assert found["three", 2] == pytest.approx(1.0, rel=0.01)
    assert found["one", 0] == pytest.approx(1.0, rel=0.01)


def test_no_number_of_turns_makes_a_request_larger_than_the_bound() -> None:
    lengths = Expectations(inf)
    for number in range(9):
        session(lengths, f"s{number}", 40, ())
    request = PendingRequest("new", [1], 0.0, session="new")
    lengths.arrived(request, ())
    assert lengths.waiting["new"].ratio == MOST_TURNS


@dataclass
class Judged(Definition):
    """Each choice that is made would be made without answers, too, by one who is four times as old."""

    def pieces(self, waiting: list[Fact]) -> list[tuple[tuple[float, int], list[Fact]]]:
        found = super().pieces(waiting)
        blind = copy(self)
        blind.learned = {}
        plain = [-key[0] for key, _ in Definition.pieces(blind, waiting)]
        chosen = min(range(len(found)), key=lambda place: found[place][0])
        assert 4.0000001 * plain[chosen] >= max(plain)
        return found


@given(
    scene=scenes(max_size=7),
    told=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 10, 4000, 2**40])), max_size=40),
)
def test_answers_are_worth_a_factor_of_four_in_age_at_most(scene: Scene, told: list[tuple[int, int]]) -> None:
    policy = PeekPolicy(PeekOptions(grace_tokens=inf))
    planner = Planner(policy=policy)
    for row in scene.rows:
        planner.add(named(row))
    for place, (number, tokens) in enumerate(told):
        past = replace(scene.rows[number % len(scene.rows)], request_id=f"past{place}")
        planner.add(named(past))
        planner.remove(past.request_id)
        planner.answered(tokens, past.request_id)
    plan = planner.plan(scene.cache(), scene.now)
    learned = {row.request_id: learned_of(planner, row.request_id) for row in scene.rows}
    assert plan == Judged(scene, policy, learned).order(False)[0]


def test_a_kind_in_use_is_not_forgotten() -> None:
    lengths = Expectations(inf)
    last = taught(lengths, "", [("ours",)], 500)
    for number in range(10_000):
        request = PendingRequest(f"r{number}", [1], 0.0)
        lengths.arrived(request, (number,) if number % 500 else ("ours",))
        lengths.withdrawn(request.request_id)
    lengths.arrived(last, ("ours",))
    assert lengths.waiting[last.request_id].ratio == pytest.approx((500 + 250.5) / 2 / 250.5)


def test_heads_are_the_beginnings_that_a_prompt_has() -> None:
    one, other = pack([7] * 300 + [1]), pack([7] * 300 + [2])
    assert len(heads_of(one)) == 2
    assert heads_of(one) == heads_of(other)
    assert heads_of(one, 16) == heads_of(other, 16)
    assert len(heads_of(one, 16)) == len(HEADS)
    assert heads_of(pack([7] * 63)) == ()
    assert len(heads_of(pack([7]), 512)) == 1  # 64 and 256 tokens are less than one symbol, and so one
    assert heads_of(pack([7] * 64)) != heads_of(pack([8] * 64))


@pytest.mark.parametrize("heads", ["abc", 3, None, ([1],), {"a": 1}])
def test_heads_that_are_none(heads: object) -> None:
    with pytest.raises(InvalidKey, match=r"heads of 'r' is .*; need a tuple of what can be hashed"):
        PendingRequest("r", [1], 0.0, heads=heads)
