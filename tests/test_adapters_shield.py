"""A failed adapter leaves the engine its own order, and is made anew after a back-off counted in calls."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy, toy_attachment

from peek import EngineMismatch
from peek.adapters import lifecycle as shields
from peek.adapters.containment import Quarantine, Shield
from peek.adapters.lifecycle import BackOff


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shields, "FIRST_WAIT", 10)
    monkeypatch.setattr(shields, "LONGEST_WAIT", 40)


def steps_until_made(engine: ToyEngine, attachment: object, made: int, most: int = 1000) -> int:
    for count in range(1, most):
        engine.step(attachment)  # type: ignore[arg-type]
        if engine.made == made:
            return count
    raise AssertionError("not made anew")


def fill(engine: ToyEngine) -> None:
    for i in range(6):
        engine.arrive(f"r{i}", [7, 7, 7, i] if i % 2 else [i, 1, 1, i])


def test_what_cannot_be_translated_is_kept_apart_or_told_where_tests_want_it() -> None:
    def fails() -> None:
        raise ValueError("no")

    lenient = Quarantine(strict=False)
    assert not lenient.accepts("a", fails)
    assert ("a" in lenient, len(lenient), lenient.total) == (True, 1, 1)
    lenient.let_go("a")
    assert (len(lenient), lenient.total) == (0, 1)
    with pytest.raises(ValueError, match="no"):
        Quarantine(strict=True).accepts("a", fails)


def test_after_an_error_the_adapter_is_made_anew_with_nothing_left_of_the_old() -> None:
    engine, attachment = toy()
    fill(engine)
    engine.fails_in = {"plan"}
    first = attachment.adapter
    engine.step(attachment)
    assert (attachment.shield.active, attachment.shield.fallbacks) == (False, 1)
    old_shield = attachment.shield
    engine.fails_in = set()
    assert steps_until_made(engine, attachment, 2) == 11  # one that detaches, ten of back-off
    assert attachment.adapter is not None
    assert attachment.adapter is not first
    assert attachment.shield is not old_shield
    assert attachment.shield.fallbacks == 1
    assert old_shield.call(lambda: "called") is None, "callbacks of the old adapter stay dead"
    assert engine.admitted == ["r0", "r1", "r2", "r3", "r4", "r5"], "the engine's own order meanwhile"


def test_the_wait_doubles_up_to_a_cap_and_halves_while_it_works(caplog: pytest.LogCaptureFixture) -> None:
    engine, attachment = toy()
    engine.fails_in = {"plan"}
    with caplog.at_level(logging.INFO, "peek"):
        waits = [steps_until_made(engine, attachment, made) for made in range(2, 7)]
        # the first attempt fails in its first step, the others in the step they are made in
        assert waits == [12, 21, 41, 41, 41]
        engine.fails_in = set()
        steps_until_made(engine, attachment, 7)
        for _ in range(10):
            engine.step(attachment)
    assert attachment.back_off.recoveries == 1
    for wait in (40, 20, 10, 10):
        assert attachment.back_off.wait == wait
        for _ in range(40):
            engine.step(attachment)
        assert attachment.shield.then == attachment.back_off.then
    lines = [record.getMessage() for record in caplog.records]
    assert sum("tries again after 10 calls" in line for line in lines) == 1
    assert sum("tries again after 40 calls" in line for line in lines) == 4
    assert lines.count("peek: tries again after an internal error") == 6
    assert lines[-1] == "peek: has recovered from an internal error"


def test_an_error_while_it_is_made_is_tried_again() -> None:
    engine = ToyEngine()
    engine.fails_in = {"make"}
    attachment = toy_attachment(engine)
    assert attachment.adapter is None
    assert attachment.shield.fallbacks == 1
    engine.fails_in = set()
    assert steps_until_made(engine, attachment, 1) == 10


def test_what_stands_aside_or_lacks_a_seam_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = ToyEngine()
    engine.aside = "prefix caching is off"
    attachment = toy_attachment(engine)
    engine.aside = None
    for _ in range(200):
        engine.step(attachment)
    assert attachment.adapter is None
    assert attachment.aside == "prefix caching is off"
    assert attachment.shield.fallbacks == 0


def test_a_mismatch_is_a_reason_and_an_error_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise EngineMismatch("this toy has no bell")

    monkeypatch.setattr("support.attached.ToyAdapter.__init__", lacks)
    attachment = toy_attachment(ToyEngine())
    assert attachment.aside == "this toy has no bell"
    assert attachment.shield.fallbacks == 0
    with pytest.raises(EngineMismatch, match="bell"):
        toy_attachment(ToyEngine(), strict=True)


def test_strict_raises() -> None:
    engine, attachment = toy(strict=True)
    engine.fails_in = {"plan"}
    with pytest.raises(RuntimeError, match="injected into plan"):
        engine.step(attachment)


def test_an_error_while_it_detaches_does_not_end_the_attempts() -> None:
    engine, attachment = toy()
    engine.fails_in = {"plan", "detach"}
    engine.step(attachment)
    engine.step(attachment)
    engine.fails_in = set()
    assert steps_until_made(engine, attachment, 2) == 10


@pytest.mark.parametrize("period", [1, 10, 11, 25, 39, 41, 100])
def test_an_error_that_comes_back_for_ever_comes_ever_less_often(period: int) -> None:
    """Attempts that recover and then fail: each error is a traceback in the log."""
    engine, attachment = toy()
    calls, worked = 4000, 0
    for _ in range(calls):
        worked = worked + 1 if attachment.adapter is not None else 0
        engine.fails_in = {"plan"} if worked >= period else set()
        engine.step(attachment)
    assert 0 < attachment.shield.fallbacks <= 4 + calls / 40


@given(errors=st.lists(st.booleans(), max_size=400))
def test_the_back_off_against_its_definition(errors: list[bool]) -> None:
    """Each item is one call; True: whatever is attached fails in it."""
    shields.FIRST_WAIT, shields.LONGEST_WAIT = 5, 20
    back_off = BackOff()
    shield: Shield | None = Shield(strict=False)
    wait = waiting = 5
    idle, good, proving = 0, 0, False
    for fails in errors:
        if shield is None:
            idle += 1
            assert back_off.due() == (idle == waiting)
            if idle == waiting:
                shield, good, proving = Shield(strict=False), 0, True
        else:
            good += 1
            recovers = proving and good == 5
            assert back_off.worked() == recovers
            if recovers:
                proving = False
            if good % 20 == 0:
                wait = max(5, wait // 2)
        if shield is not None and fails:
            assert str(wait) in back_off.then
            back_off.failed()
            waiting, wait, idle, shield = wait, min(2 * wait, 20), 0, None
    assert back_off.wait == wait
