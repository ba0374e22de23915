"""Sessions and targets on SGLang's own queue: stated in a request, and known to the planner."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sglang_lab import make_request, make_world
from sglang_small import attach

A = [5] * 64
SAYS = {"peek_session": "chat-7", "peek_ttft_target_s": "2.5"}
SAID = ("chat-7", 2.5)


def saying(name: str, tokens: list[int], custom_params: Any, **more: Any) -> Any:
    request = make_request(name, tokens, **more)
    request.sampling_params.custom_params = custom_params
    return request


def known(beside: Any, name: str) -> tuple[str, float | None]:
    """What the planner has of a waiting request."""
    request = beside.adapter.planner.request(name)
    return request.session, request.ttft_target_s


def sgl_session(name: str) -> Any:
    try:
        from sglang.srt.session.session_controller import Session
    except ImportError:
        from sglang.srt.managers.session_controller import Session
    return Session(10**9, name)


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_planner_knows_what_a_request_states(page_size: int) -> None:
    world = make_world(4000, page_size=page_size)
    beside = attach(world)
    both = saying("both", [*A, 1], SAYS)
    both.session, both.routing_key = sgl_session("own"), "key"
    own = saying("own", [*A, 2], {"peek_ttft_target_s": 3})
    own.session, own.routing_key = sgl_session("own"), "key"
    by_id = saying("by id", [*A, 3], None)
    by_id.session_id, by_id.routing_key = "id", "key"
    routed = saying("routed", [*A, 4], None)
    routed.routing_key = "key"
    queue = [both, own, by_id, routed, saying("none", [*A, 5], None)]
    world.policy.calc_priority(queue)
    assert {name: known(beside, name) for name in ("both", "own", "by id", "routed", "none")} == {
        "both": SAID,
        "own": ("own", 3.0),
        "by id": ("id", None),
        "routed": ("key", None),
        "none": ("~none", None),
    }
    assert beside.shield.fallbacks == 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_prompt_that_goes_on_from_another_is_of_its_session(page_size: int) -> None:
    world = make_world(8000, page_size=page_size)
    beside = attach(world)
    turns = [A + [9] * 32]
    queue = []
    for name in ("first", "second", "third"):
        queue.append(make_request(name, turns[-1]))
        turns.append(turns[-1] + [len(turns)] * 300)
    queue.append(make_request("other", A + [8] * 400))
    world.policy.calc_priority(queue)
    sessions = [known(beside, name)[0] for name in ("first", "second", "third", "other")]
    assert sessions == ["~first", "~first", "~first", "~other"]
    assert beside.shield.fallbacks == 0


def test_a_routing_key_that_names_the_tenant_makes_no_session() -> None:
    world = make_world(4000)
    beside = attach(world, tenants="named")
    queue = [make_request(f"r{i}", [*A, i]) for i in range(2)]
    for request in queue:
        request.routing_key = "team"
    world.policy.calc_priority(queue)
    assert known(beside, "r0") == ("~r0", None)
    assert beside.adapter.planner.request("r0").tenant == "team"


def test_a_retracted_request_states_the_same() -> None:
    world = make_world(4000)
    beside = attach(world)
    first, other = saying("first", [*A, 1], SAYS), make_request("other", [*A, 2])
    world.policy.calc_priority([first, other])
    first.output_ids.append(3)  # admitted, generated one token, and was retracted
    world.policy.calc_priority([other])
    assert "first" not in beside.adapter.planner
    world.policy.calc_priority([other, first])
    assert known(beside, "first") == SAID
    assert known(beside, "other") == ("~other", None)


def test_a_value_that_cannot_be_used_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(4000)
    beside = attach(world)
    wrong = {"peek_session": ["chat"], "peek_ttft_target_s": -1}
    queue = [saying(f"r{i}", [*A, i], wrong) for i in range(3)]
    with caplog.at_level(logging.WARNING, "peek"):
        world.policy.calc_priority(queue)
    assert [known(beside, f"r{i}") for i in range(3)] == [(f"~r{i}", None) for i in range(3)]
    told = [message for message in caplog.messages if "is ignored" in message]
    assert len(told) == 2
    assert "peek_session is ['chat']," in told[0]
    assert "peek_ttft_target_s is -1," in told[1]
    assert beside.shield.fallbacks == 0
