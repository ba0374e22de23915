"""Sessions and targets on the real scheduler: stated in a request, and known to the planner."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from test_structured import AnyToken, structured
from vllm_lab import make_request, make_scheduler
from vllm_small import STRICT, A, B, run_out, scheduler, step

from peek.adapters.vllm import PeekScheduler

SAYS = {"peek_session": "chat-7", "peek_ttft_target_s": "2.5"}
SAID = ("chat-7", 2.5)


def saying(name: str, tokens: list[int], extra_args: Any, **more: Any) -> Any:
    request = make_request(name, tokens, **more)
    request.sampling_params.extra_args = extra_args
    return request


def known(engine: Any, name: str) -> tuple[str, float | None]:
    """What the planner has of a waiting request."""
    request = engine.peek.adapter.planner.request(name)
    return request.session, request.ttft_target_s


def busy(**more: Any) -> Any:
    """An engine whose only seat is taken."""
    engine = scheduler(num_blocks=400, max_num_seqs=1, **more)
    engine.add_request(make_request("running", [3] * 40, 60))
    step(engine)
    return engine


def test_the_planner_knows_what_a_request_states() -> None:
    engine = busy()
    engine.add_request(saying("both", [*A, 1], SAYS))
    engine.add_request(saying("number", [*A, 2], {"peek_session": 7, "peek_ttft_target_s": 3}))
    engine.add_request(saying("other", [*A, 3], {"another": 1}))
    engine.add_request(saying("none", [*A, 4], None))
    engine.add_request(make_request("pools", [*A, 5], pooling=True))
    engine.peek.adapter.before_schedule()
    told = {name: known(engine, name) for name in ("both", "number", "other", "none", "pools")}
    assert told == {
        "both": SAID,
        "number": ("7", 3.0),
        "other": ("~other", None),
        "none": ("~none", None),
        "pools": ("~pools", None),
    }
    assert engine.peek.shield.fallbacks == 0


def test_a_prompt_that_goes_on_from_another_is_of_its_session() -> None:
    engine = busy()
    turns = [A + [9] * 5]
    for name in ("first", "second", "third"):
        engine.add_request(make_request(name, turns[-1]))
        turns.append(turns[-1] + [len(turns)] * 300)
    engine.add_request(make_request("other", A + [8] * 400))
    engine.peek.adapter.before_schedule()
    sessions = [known(engine, name)[0] for name in ("first", "second", "third", "other")]
    assert sessions == ["~first", "~first", "~first", "~other"]
    assert engine.peek.shield.fallbacks == 0


def test_under_priority_scheduling_too() -> None:
    engine = make_scheduler(PeekScheduler, options=STRICT, priority=True, num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [3] * 40, 60, priority=-5))
    step(engine)
    for priority in (1, 2):
        engine.add_request(saying(f"p{priority}", [*A, priority], SAYS, priority=priority))
    engine.peek.adapter.before_schedule()
    assert [known(engine, name) for name in ("p1", "p2")] == [SAID, SAID]


def test_they_outlast_a_wait_for_a_grammar() -> None:
    engine = busy()
    request = structured("asks", [*A, 1], ready=False)
    request.sampling_params.extra_args = SAYS
    engine.add_request(request)
    engine.add_request(make_request("other", [*A, 2]))
    planner = engine.peek.adapter.planner
    engine.peek.adapter.before_schedule()
    assert "asks" in planner.held
    assert known(engine, "asks") == SAID
    request.compiling.set_result(AnyToken())
    engine.peek.adapter.before_schedule()
    assert "asks" not in planner.held
    assert known(engine, "asks") == SAID


def test_who_leaves_the_queue_and_comes_back_states_the_same() -> None:
    engine = busy()
    request = saying("asks", [*A, 1], SAYS)
    engine.add_request(request)
    engine.add_request(make_request("other", [*B, 2]))
    engine.peek.adapter.before_schedule()
    engine.waiting.remove_request(request)
    engine.peek.adapter.before_schedule()
    assert "asks" not in engine.peek.adapter.planner
    engine.waiting.add_request(request)
    engine.peek.adapter.before_schedule()
    assert known(engine, "asks") == SAID


def test_a_value_that_cannot_be_used_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = busy()
    with caplog.at_level(logging.WARNING, "peek"):
        for i in range(3):
            engine.add_request(
                saying(f"r{i}", [*A, i], {"peek_session": ["chat"], "peek_ttft_target_s": "soon"})
            )
        engine.peek.adapter.before_schedule()
    assert [known(engine, f"r{i}") for i in range(3)] == [(f"~r{i}", None) for i in range(3)]
    told = [message for message in caplog.messages if "is ignored" in message]
    assert len(told) == 2
    assert "peek_session is ['chat']," in told[0]
    assert "peek_ttft_target_s is 'soon'," in told[1]
    assert sorted(run_out(engine)) == ["r0", "r1", "r2", "running"]
    assert engine.peek.shield.fallbacks == 0


def test_the_virtual_planner_of_a_shadow_knows_them() -> None:
    engine = busy(options={**STRICT, "mode": "shadow"})
    engine.add_request(saying("asks", [*A, 1], SAYS))
    engine.add_request(make_request("other", [*A, 2]))
    step(engine)
    account = engine.peek.foretold.shadow.account
    arrivals = {job.request.session: job.request.ttft_target_s for job in account._engine.jobs.values()}
    offered = {request.session: request.ttft_target_s for *_, request in account._engine._arrivals}
    assert {**arrivals, **offered} == {"chat-7": 2.5, "": None}
