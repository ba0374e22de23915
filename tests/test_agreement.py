"""What contains a wrong idea of an engine: the judge of expected hits, and the guard of versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment

from peek import EngineMismatch
from peek.adapters.containment import EVERY, FIRST, LASTING, WINDOW, Agreement, require

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=80)


@given(pairs=PAIRS, slack=st.integers(0, 2))
def test_it_lasts_once_most_of_the_last_ones_differ(pairs: list[tuple[int, int]], slack: int) -> None:
    agreement = Agreement(slack)
    told = [abs(a - b) > slack for a, b in pairs if a or b]
    for foretold, found in pairs:
        agreement.note(foretold, found)
    windows = [told[max(0, end - WINDOW) : end] for end in range(1, len(told) + 1)]
    assert agreement.lasting is any(sum(window) >= LASTING for window in windows)
    assert (agreement.compared, agreement.differed) == (len(told), sum(told))


@given(agreeing=st.integers(0, 500), nothing=st.integers(0, 500))
def test_a_change_is_noticed_whatever_went_before(agreeing: int, nothing: int) -> None:
    agreement = Agreement()
    for _ in range(agreeing):
        agreement.note(64, 64)
    for _ in range(nothing):
        agreement.note(0, 0)
    assert not agreement.lasting
    for _ in range(LASTING):
        agreement.note(64, 0)
    assert agreement.lasting
    agreement.note(64, 64)
    assert agreement.lasting, "it does not come back by itself"


def test_the_first_ones_and_then_one_in_so_many() -> None:
    agreement = Agreement()
    wanted = [number for number in range(1, 1001) if agreement.wants()]
    assert wanted == [*range(1, FIRST + 1), *range(EVERY, 1001, EVERY)]


def test_it_says_what_it_saw() -> None:
    agreement = Agreement()
    agreement.note(128, 64)
    agreement.note(64, 64)
    assert str(agreement) == (
        "in 1 of 2 admissions compared it found another number of cached tokens than foretold,"
        " 128 in place of 192 in all"
    )


def test_an_adapter_that_disagrees_is_taken_away_for_good(caplog: pytest.LogCaptureFixture) -> None:
    engine = ToyEngine()
    attachment = toy_attachment(engine)
    adapter: Any = attachment.adapter
    adapter.agreement = Agreement()
    for number in range(30):
        engine.arrive(f"r{number}", [1, 2, 3])
        adapter.agreement.note(64, 0)
        engine.step(attachment)
    assert (attachment.adapter, engine.owned_by, attachment.shield.fallbacks) == (None, None, 0)
    assert attachment.state == attachment.aside
    assert engine.made == 1, "not tried again"
    (line,) = [record.message for record in caplog.records if "stands aside" in record.message]
    assert "12 of 12 admissions" in line
    assert "tested on no version" in line


# -- the guard of versions ----------------------------------------------------------------------------------

ENGINE = SimpleNamespace(pool=SimpleNamespace(table=SimpleNamespace(insert=1)), queue=None)


@pytest.mark.parametrize("path", ["waiting", "pool.queue", "pool.table.pop", "queue.append"])
def test_what_is_missing_is_named(path: str) -> None:
    with pytest.raises(EngineMismatch, match=f"this engine's SimpleNamespace has no {path};"):
        require(ENGINE, ["queue", "pool.table.insert", path], "engine")
