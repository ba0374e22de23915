"""What a request states of itself: its session and its target, read alike beside both engines."""

from __future__ import annotations

import logging
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attached import ToyEngine, toy_attachment
from support.fixtures import Patch

from peek import PendingRequest
from peek.adapters import lifecycle
from peek.adapters.engine_adapter import Stated, Statements
from peek.adapters.vllm.scheduler import scheduler_class
from peek.adapters.vllm.seams import parameters_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def session(value: object) -> str:
    return Statements().of({"peek_session": value}).session


def target(value: object) -> float | None:
    return Statements().of({"peek_ttft_target_s": value}).ttft_target_s


@pytest.mark.parametrize(
    ("value", "text"),
    [("chat-7", "chat-7"), (7, "7"), (-0.5, "-0.5"), (" ", " "), ("", ""), (None, ""), ("s" * 256,) * 2],
)
def test_a_session_is_a_text_or_a_number(value: object, text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert session(value) == text
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("value", "seconds"), [(2, 2.0), (0.5, 0.5), ("2.5", 2.5), ("1e-3", 0.001), (None, None)]
)
def test_a_target_is_a_number_or_the_text_of_one(
    value: object, seconds: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = target(value)
    assert made == seconds
    assert made is None or type(made) is float
    assert caplog.messages == []


@pytest.mark.parametrize(
    "value",
    [True, nan, inf, "s" * 257, 10**400, pytest.param(10**5000, id="unwritable"), b"chat", ["chat"], {}],
)
def test_a_session_that_cannot_be_used(value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert session(value) == ""
    (line,) = caplog.messages
    assert line.startswith("peek: a request's peek_session is ")
    assert line.endswith(
        ", which is ignored; need a text of at most 256 characters or a finite number; "
        "others are ignored in silence"
    )


@pytest.mark.parametrize(
    "value",
    [
        True,
        0,
        0.0,
        -1,
        nan,
        inf,
        10**400,
        pytest.param(10**5000, id="unwritable"),
        "",
        "soon",
        "nan",
        "inf",
        "-1",
        "1e999",
        b"2",
        [2.0],
        {},
    ],
)
def test_a_target_that_cannot_be_used(value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert target(value) is None
    (line,) = caplog.messages
    assert line.startswith("peek: a request's peek_ttft_target_s is ")
    assert "; need a finite number of seconds above 0; " in line


def test_each_name_is_told_of_once_and_with_the_value(caplog: pytest.LogCaptureFixture) -> None:
    statements = Statements()
    both = {"peek_session": ["a\n"], "peek_ttft_target_s": "so" * 500}
    for _ in range(3):
        assert statements.of(both) == ("", None)
        assert statements.of({"peek_session": [1], "peek_ttft_target_s": 2}) == ("", 2.0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    first, second = caplog.messages
    assert "peek_session is ['a\\n']," in first
    assert "peek_ttft_target_s is 'sososo" in second
    assert len(second) < 200


@pytest.mark.parametrize("parameters", [None, {}, [], "peek_session", 7, {"peek_tenant": "a"}])
def test_without_a_statement_there_is_none(parameters: object, caplog: pytest.LogCaptureFixture) -> None:
    assert Statements().of(parameters) == ("", None)
    assert caplog.messages == []


@pytest.mark.parametrize("named", [{}, {"peek_session": None}, {"peek_session": ""}, {"peek_session": ["a"]}])
def test_the_engines_own_session_counts_where_none_is_named(named: dict[str, Any]) -> None:
    assert Statements().of(named, (None, "", 7, "theirs", "other")).session == "theirs"
    assert Statements().of(None, (None, "theirs")).session == "theirs"
    assert Statements().of({"peek_session": 7}, ("theirs",)).session == "7"
    assert Statements().of(None, ("s" * 257, "other")).session == "other"


@given(one=JSON, other=JSON)
def test_whatever_json_says_the_planner_takes_what_is_read(one: object, other: object) -> None:
    stated = Statements().of({"peek_session": one, "peek_ttft_target_s": other})
    made = PendingRequest("r", [1], 0.0, session=stated.session, ttft_target_s=stated.ttft_target_s)
    assert (made.session, made.ttft_target_s) == stated


def test_vllm_has_them_among_the_extra_arguments() -> None:
    named = {"peek_session": "s", "peek_ttft_target_s": "2"}
    generates = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=named))
    assert Statements().of(parameters_of(generates)) == Stated("s", 2.0)
    for sampling in (None, SimpleNamespace(extra_args=None)):  # None: it pools
        assert Statements().of(parameters_of(SimpleNamespace(sampling_params=sampling))) == Stated()


class StockScheduler:
    """As much of vLLM's as is recorded."""

    def __init__(self, vllm_config: Any) -> None:
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request


def test_a_trace_of_vllm_tells_of_a_statement_once(
    tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "forward_log", lambda _: None)  # it would outlive this test
    options = {"policy": "off", "trace_file": str(tmp_path / "t.jsonl")}
    engine = scheduler_class("Traced", StockScheduler)(SimpleNamespace(additional_config={"peek": options}))
    sampling = SimpleNamespace(extra_args={"peek_session": ["a"]})
    for number in range(3):
        engine.add_request(
            SimpleNamespace(
                request_id=str(number), arrival_time=1.0, prompt_token_ids=[1, 2], sampling_params=sampling,
                lora_request=None, cache_salt=None, client_index=0, mm_features=[],
            )
        )  # fmt: skip
    assert len(engine.requests) == 3
    assert sum("peek_session is ['a']" in line for line in caplog.messages) == 1


def test_a_trace_and_the_adapters_of_an_engine_tell_of_a_statement_once(tmp_path: Path) -> None:
    control = tmp_path / "control"
    attachment = toy_attachment(ToyEngine(), control_file=str(control), control_every=1)
    adapters = []
    for word in ("on", "off", "on"):
        control.write_text(word)
        adapters.append(attachment.working)
    first, _, second = adapters
    assert first is not None
    assert second is not None
    assert first is not second
    assert first.statements is second.statements is attachment.recording.statements
