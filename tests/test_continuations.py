"""Sessions inferred from prompts, against a naive twin and in the planner."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import PeekConfig, PeekPolicy, PendingRequest, Planner
from peek.fleet import FleetPlanner
from peek.trie.continuations import (
    MOST_ALIKE,
    MOST_NEXT,
    MOST_PROMPTS,
    REACH_TOKENS,
    STEP_TOKENS,
    Continuations,
)
from peek.trie.keys import pack


def text(name: str, tokens: int) -> bytes:
    """A text whose tokens no other text has in this order."""
    rng = Random(name)
    return array("i", [rng.randrange(2**31 - 1) for _ in range(tokens)]).tobytes()


class Twin:
    """Every prompt that came, by its whole text, and how many have gone on from it."""

    def __init__(self) -> None:
        self.prompts: list[tuple[str, bytes, str]] = []
        self.next: list[int] = []

    def session_of(self, request_id: str, key: bytes, namespace: str) -> str:
        if len(key) < 4 * STEP_TOKENS:
            return ""
        before = [
            (len(prompt) // 4 // STEP_TOKENS, -self.next[place], place)
            for place, (space, prompt, session) in enumerate(self.prompts)
            if space == namespace
            and key.startswith(prompt)
            and len(key) > len(prompt)
            and self.next[place] < MOST_NEXT
        ]
        session = f"~{request_id}"
        if before:
            place = max(before)[2]
            session = self.prompts[place][2]
            self.next[place] += 1
        self.prompts.append((namespace, key, session))
        self.next.append(0)
        return session


@given(
    turns=st.lists(
        st.tuples(
            st.integers(0, 5),  # the prompt that it goes on from, if there is one
            st.booleans(),
            st.integers(0, 200),
            st.sampled_from(["", "lora"]),
        ),
        max_size=MOST_ALIKE,
    )
)
def test_a_prompt_belongs_to_the_session_that_it_goes_on_from(
    turns: list[tuple[int, bool, int, str]],
) -> None:
    continuations, twin = Continuations(), Twin()
    prompts = [b""]
    for number, (parent, goes_on, tokens, namespace) in enumerate(turns):
        start = prompts[-1 - parent % len(prompts)] if goes_on else b""
        key = start + text(f"{number}", tokens)
        prompts.append(key)
        expected = twin.session_of(f"r{number}", key, namespace)
        assert continuations.session_of(f"r{number}", key, namespace) == expected


@pytest.mark.parametrize(
    ("added", "found"),
    [
        (1, True),
        (STEP_TOKENS - 1, True),
        (REACH_TOKENS - STEP_TOKENS, True),
        (REACH_TOKENS + STEP_TOKENS, False),
    ],
)
def test_a_turn_may_add_as_much_as_the_reach(added: int, found: bool) -> None:
    continuations = Continuations()
    first = text("first", 1000)
    continuations.session_of("first", first)
    assert (continuations.session_of("next", first + text("more", added)) == "~first") == found


def test_the_last_symbols_of_a_prompt_are_enough() -> None:
    whole, part = Continuations(), Continuations()
    key = b""
    for turn in range(30):
        key += text(f"{turn}", 700)
        skipped = max(0, len(key) // 4 - REACH_TOKENS - STEP_TOKENS)
        assert whole.session_of(f"r{turn}", key) == "~r0"
        assert part.session_of(f"r{turn}", key[4 * skipped :], "", skipped) == "~r0"


def test_symbols_may_stand_for_pages() -> None:
    continuations = Continuations(unit_tokens=512)
    rows = text("conversation", 40)
    assert continuations.session_of("a", rows[:80]) == "~a"
    assert continuations.session_of("b", rows[:100]) == "~a"
    assert continuations.session_of("c", rows[:160]) == "~c", "ten symbols are more than the reach"


def test_a_template_that_was_sent_alone_makes_no_session_of_all_who_use_it() -> None:
    continuations = Continuations()
    template = text("template", 1024)
    continuations.session_of("warm-up", template)
    found = [continuations.session_of(f"r{i}", template + text(f"{i}", 300)) for i in range(3 * MOST_NEXT)]
    assert found.count("~warm-up") == MOST_NEXT
    assert found[-1] == f"~r{3 * MOST_NEXT - 1}"


def test_short_questions_to_a_template_are_told_apart() -> None:
    continuations = Continuations()
    template = text("template", 1024)
    questions = [template + text(f"{i}", 9) for i in range(MOST_ALIKE)]
    for number, question in enumerate(questions):
        assert continuations.session_of(f"r{number}", question) == f"~r{number}"
    for number, question in enumerate(questions):
        assert continuations.session_of(f"n{number}", question + text("more", 500)) == f"~r{number}"


def test_memory_is_bounded() -> None:
    continuations = Continuations()
    words = text("words", 63)
    for number in range(MOST_PROMPTS + 1):
        continuations.session_of(f"r{number}", words + number.to_bytes(4, "little"))
        assert len(continuations) <= MOST_PROMPTS
    for number, known in ((0, False), (2, True), (MOST_PROMPTS, True)):  # the first turn pushes number 1 out
        turn = words + number.to_bytes(4, "little") + text("more", 9)
        assert continuations.session_of("next", turn) == (f"~r{number}" if known else "~next")


def test_prompts_that_end_alike_are_counted_each() -> None:
    """A flood of `MOST_ALIKE` questions to each of many templates keeps no more than one to each."""
    continuations = Continuations()
    words = text("words", 63)
    for number in range(MOST_PROMPTS + MOST_ALIKE):
        template = words + (number // MOST_ALIKE).to_bytes(4, "little")
        continuations.session_of(f"r{number}", template + number.to_bytes(4, "little"))
    assert sum(map(len, continuations._ends.values())) == len(continuations)
    assert MOST_PROMPTS - MOST_ALIKE < len(continuations) <= MOST_PROMPTS


def test_another_namespace_makes_nobody_forget() -> None:
    continuations = Continuations()
    prompt = text("prompt", 640)
    continuations.session_of("ours", prompt, "ours")
    for number in range(2 * MOST_ALIKE):
        continuations.session_of(f"r{number}", prompt, "other")
    assert continuations.session_of("next", prompt + text("more", 9), "ours") == "~ours"


def test_a_request_that_arrives_again_has_its_session_and_counts_once() -> None:
    """Of two conversations that begin alike its own one, however often it was preempted."""
    continuations = Continuations()
    prompt = text("prompt", 640)
    turn = prompt + text("more", 300)
    for name in ("one", "two"):
        continuations.session_of(name, prompt)
    for _ in range(2 * MOST_NEXT):
        assert continuations.session_of("turn", turn) == "~two"
    assert len(continuations) == 3
    assert continuations.session_of("other", prompt + text("other", 300)) == "~one"


def test_a_long_id_or_namespace_is_not_kept() -> None:
    continuations = Continuations()
    prompt = text("prompt", 640)
    names = {continuations.session_of(letter * 100_000, text(letter, 640)) for letter in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 200
    first = continuations.session_of("x" * 100_000, prompt, "salt" * 100_000)
    assert continuations.session_of("next", prompt + text("more", 9), "salt" * 100_000) == first
    assert continuations.session_of("other", prompt + text("other", 9), "salt" * 99_999) == "~other"
    assert max(map(len, continuations._ends)) < 200


def test_a_planner_knows_the_next_turn_of_a_session_without_a_name() -> None:
    planner = Planner(PeekConfig())
    first, other = text("first", 500), text("other", 800)
    planner.add(PendingRequest("first turn", first, 0.0))
    planner.remove("first turn")
    planner.add(PendingRequest("other", other, 100.0))
    planner.add(PendingRequest("second turn", first + text("more", 300), 101.0))
    policy = planner.policy
    assert isinstance(policy, PeekPolicy)
    assert [policy.expectations.waiting[name].turn for name in ("other", "second turn")] == [0, 1]


def test_a_fleet_knows_the_next_turn_of_a_session_without_a_name() -> None:
    fleet = FleetPlanner()
    for name in ("one", "other"):
        fleet.join(name, cache_tokens=100_000)
    first = text("first", 500)
    for turn in range(5):
        request = PendingRequest(f"turn {turn}", first + text("more", 300 * turn), float(turn))
        fleet.place(request, at="one" if turn < 4 else "other")
        assert request.session == "~turn 0"
        assert fleet.stats.sessions_moved == (turn == 4)


def test_a_name_that_is_given_stays() -> None:
    planner = Planner(PeekConfig())
    request = PendingRequest("r", pack(list(range(100))), 0.0, session="talk")
    planner.add(request)
    assert request.session == "talk"
