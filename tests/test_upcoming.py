"""Who is up soon: the first of a plan, told again only where something has changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment
from support.queues import Scene, planner_of, scenes

from peek import InvalidKey, Planner
from peek.adapters.observed import Announcer
from peek.planner import Upcoming


@given(scene=scenes(max_size=6), k=st.integers(0, 7), lazily=st.booleans(), left=st.integers(0, 6))
def test_they_are_the_first_that_still_wait(scene: Scene, k: int, lazily: bool, left: int) -> None:
    planner = planner_of(scene.rows)
    assert planner.upcoming(k) == [], "no plan yet"
    cache = scene.cache()
    order = list(planner_of(scene.rows).plan(cache, scene.now))
    plan = (planner.lazy_plan if lazily else planner.plan)(cache, scene.now)
    requests = [planner.request(name) for name in order]
    expected = [
        Upcoming(each.request_id, each.cached_len, each.num_tokens - each.cached_len) for each in requests
    ]
    assert planner.upcoming(k) == expected[:k]
    assert list(plan) == order, "and who looks changes nothing"
    for name in order[:left]:
        planner.remove(name)
    assert planner.upcoming(k) == expected[left:][:k]


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidKey, match=r"k is -1; need 0 \.\. 2\*\*53"):
        Planner().upcoming(-1)
    with pytest.raises(InvalidKey, match=r"k is -2; need 0 \.\. 2\*\*53"):
        toy_attachment(ToyEngine()).announce(-2, print)


STATES = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), max_size=8)


@given(states=STATES)
def test_what_is_told_adds_up(states: Sequence[dict[str, int]]) -> None:
    known: dict[str, Upcoming] = {}
    calls = 0

    def tell(news: list[Upcoming], gone: list[str]) -> None:
        nonlocal calls
        calls += 1
        assert news or gone
        assert all(known.get(each.request_id) != each for each in news), "that was known"
        for request_id in gone:
            del known[request_id]
        known.update((each.request_id, each) for each in news)

    announcer = Announcer(4, tell)
    before: dict[str, Upcoming] = {}
    changes = 0
    for state in states:
        now = {name: Upcoming(name, cached, 9 - cached) for name, cached in state.items()}
        announcer.note(list(now.values()))
        assert known == now
        changes += now != before
        before = now
    assert calls == changes


def engine_with(count: int) -> ToyEngine:
    engine = ToyEngine()
    for i in range(count):
        engine.arrive(f"r{i}", [i % 2] * 8 + [100 + i])
    return engine


def test_an_engine_tells_of_its_next_ones_before_they_go() -> None:
    engine = engine_with(6)
    attachment = toy_attachment(engine)
    soon: dict[str, Upcoming] = {}

    def tell(news: list[Upcoming], gone: list[str]) -> None:
        for request_id in gone:
            del soon[request_id]
        soon.update((each.request_id, each) for each in news)

    attachment.announce(2, tell)
    for _ in range(6):
        engine.step(attachment)
        assert engine.admitted[-1] in soon
        assert len(soon) <= 2
    assert len(engine.admitted) == 6
    assert soon[engine.admitted[-1]].cached_len == 8, "its template was computed for others"


def test_nothing_is_told_in_shadow() -> None:
    engine = engine_with(4)
    attachment = toy_attachment(engine, mode="shadow")
    attachment.announce(2, lambda news, gone: pytest.fail("its order is not in force"))
    engine.step(attachment)
    assert attachment.adapter is not None


def test_a_listener_that_fails_is_asked_no_more(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(4)
    attachment = toy_attachment(engine)
    attachment.announce(2, lambda news, gone: 1 / 0)
    with caplog.at_level(logging.ERROR, "peek"):
        for _ in range(4):
            engine.step(attachment)
    assert [record.getMessage() for record in caplog.records] == ["peek: who is up soon is told no more"]
    assert (len(engine.admitted), attachment.shield.fallbacks) == (4, 0)
