"""Why a request stands where it stands: by its id, of the last admissions, and in the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import EmptyCache, ToyEngine, toy

from peek import InvalidConfig, PendingRequest, Plan, Planner
from peek.adapters.activation import Settings
from peek.adapters.observed import LINES_A_SECOND, Decisions, Observations, ObservedPlanner, facts
from peek.planner.plan import NOTHING_TO_GAIN
from peek.policy.lanes import FAIR_LANE
from peek.trie.pending_tree import Cluster

SECRET = 424242


def waiting_engine(**options: Any) -> tuple[ToyEngine, Any]:
    engine, attachment = toy(**options)
    engine.arrive("alone", [SECRET, 1, 2])
    for i in range(3):
        engine.arrive(f"sibling{i}", [SECRET + 1, 7, 7, i])
    attachment.call(attachment.adapter.before)
    return engine, attachment


def test_of_one_that_waits() -> None:
    engine, attachment = waiting_engine()
    places = {name: attachment.explain(name)["place"] for name in engine.queue}
    assert list(places.values()) == [1, 2, 3, 4]
    told = attachment.explain("sibling2")
    assert told == {
        "request_id": "sibling2",
        "place": places["sibling2"],
        "place_by_arrival": 4,
        "waited_s": 0.0,
        "num_tokens": 4,
        "cached_len": 0,
        "coming_len": 0,
        "cluster_size": 3,
        "cluster_depth": 3,
        "lane": "none",
        "reason": "it shares a prefix with 2 others that wait",
        "shadow": False,
        "uncached": None,
    }
    assert (
        "shares nothing" in attachment.explain("alone")["reason"]
        or attachment.explain("alone")["lane"] == "fair"
    )
    assert attachment.explain("nobody") is None


def test_the_last_admissions_are_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine, attachment = waiting_engine(explain=2)
    with caplog.at_level(logging.INFO, "peek"):
        for _ in range(4):
            engine.step(attachment)
    kept = list(attachment.seen.decisions.last)
    assert [decision["request_id"] for decision in kept] == engine.admitted[-2:]
    assert attachment.explain(engine.admitted[-1]) == kept[-1]
    assert kept[-1]["uncached"] == 1
    assert attachment.explain(engine.admitted[0]) is None
    lines = [
        r.getMessage().removeprefix("peek: admitted ") for r in caplog.records if "admitted" in r.getMessage()
    ]
    assert [json.loads(line)["request_id"] for line in lines] == engine.admitted
    assert str(SECRET) not in caplog.text, "nothing of a prompt"


def test_a_second_in_which_lines_are_counted_ends_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    at = 100.0
    decisions = Decisions(3, lambda: at)
    with caplog.at_level(logging.INFO, logger="peek"):
        for _ in range(LINES_A_SECOND + 1):
            decisions.note({})
        at = 101.0
        decisions.note({})
    assert len(caplog.messages) == LINES_A_SECOND + 2
    assert "1 admissions before the next" in caplog.messages[LINES_A_SECOND]


@given(st.lists(st.floats(0.0, 0.7), max_size=200))
def test_the_log_has_a_sample_and_says_how_many_are_left_out(pauses: list[float]) -> None:
    """No second has more lines than it may, and lines and those left out are all admissions."""
    at = 100.0
    decisions = Decisions(3, lambda: at)
    logged: list[tuple[float, str]] = []
    listener = logging.Handler()
    listener.emit = lambda record: logged.append((at, record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("peek")
    level = log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    try:
        for number, pause in enumerate([*pauses, 5.0]):
            at += pause
            decisions.note({"request_id": str(number)})
    finally:
        log.removeHandler(listener)
        log.setLevel(level)
    shown = [(when, line) for when, line in logged if line.startswith("peek: admitted ")]
    left_out = [int(line.split()[1]) for _, line in logged if "not in the log" in line]
    assert len(shown) + sum(left_out) == len(pauses) + 1
    assert len(shown) + len(left_out) == len(logged)
    for when, _ in shown:
        assert sum(when <= other < when + 1.0 for other, _ in shown) <= 2 * LINES_A_SECOND
    assert len(shown) >= min(len(pauses), LINES_A_SECOND)
    assert len(decisions.last) == min(3, len(pauses) + 1)


def test_by_default_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    engine, attachment = waiting_engine()
    with caplog.at_level(logging.DEBUG, "peek"):
        for _ in range(4):
            engine.step(attachment)
    assert not attachment.seen.decisions.last
    assert caplog.records == []


def test_what_was_decided_is_told_after_the_adapter_is_gone() -> None:
    engine, attachment = waiting_engine(explain=5)
    engine.step(attachment)
    attachment._turn("off")
    assert attachment.explain(engine.admitted[0])["request_id"] == engine.admitted[0]


def request(**signals: int) -> PendingRequest:
    made = PendingRequest("r", [1, 2, 3], 1.0, num_tokens=100)
    for name, value in signals.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("signals", "plan", "reason"),
    [
        ({}, None, "no plan has been made since it came"),
        ({}, Plan(["other"]), "no plan has been made since it came"),
        ({"cluster_size": 5}, Plan(["r"], reason=NOTHING_TO_GAIN), NOTHING_TO_GAIN),
        ({"lane": FAIR_LANE, "cached_len": 9}, Plan(["r"]), "the fair lane's turn: it is the oldest there"),
        ({"cached_len": 64, "cluster_size": 5}, Plan(["r"]), "64 of its 100 prompt tokens are cached"),
        ({"coming_len": 32}, Plan(["r"]), "a prefill under way will have cached 32 of its tokens"),
        ({"cluster_size": 5}, Plan(["r"]), "it shares a prefix with 4 others that wait"),
        ({}, Plan(["r"]), "it shares nothing with anybody that waits, and nothing of it is cached"),
    ],
)
def test_reasons(signals: dict[str, int], plan: Plan | None, reason: str) -> None:
    size = signals.pop("cluster_size", 1)
    cluster = Cluster(1, 2, size) if size > 1 else None
    told = facts(request(**signals), cluster, plan, 3.5, 7)
    assert told["reason"] == reason
    assert (told["waited_s"], told["place_by_arrival"]) == (2.5, 8)
    assert told["place"] == (1 if plan is not None and "r" in plan else None)


@given(families=st.lists(st.integers(0, 2), min_size=1, max_size=12), shadow=st.booleans())
def test_places_are_those_of_the_plan_and_of_arrival(families: list[int], shadow: bool) -> None:
    planner = ObservedPlanner(Planner(), Observations())
    planner.shadow = shadow
    for i, family in enumerate(families):
        planner.add(PendingRequest(f"r{i}", [family, family, i], float(i), num_tokens=3))
    planner.plan(EmptyCache(), 50.0)
    wanted = planner.observed.plan(EmptyCache(), 50.0)
    for i in range(len(families)):
        told = planner.explain(f"r{i}")
        assert told is not None
        assert told["place"] == wanted.index(f"r{i}") + 1
        assert told["place_by_arrival"] == i + 1
        assert told["shadow"] == shadow
        json.dumps(told)


@pytest.mark.parametrize("value", [-1, True, "5", 2.0, 10**9])
def test_mistakes_in_the_option(value: object) -> None:
    with pytest.raises(InvalidConfig, match="explain is"):
        Settings.from_dict({"policy": "peek", "explain": value})
