"""What shadow mode foretells comes true on vLLM's own scheduler, and it changes nothing there."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import example, given, settings
from simulated_worker import RealScheduler
from support.followed import (
    check_answers_are_found_where_they_are_repeated,
    check_foretold_comes_true,
    check_nothing_is_foretold_where_nothing_is_shared,
    hit,
)
from vllm_lab import make_request, token_at
from vllm_plays import INTERLEAVED, Play, check_outcome, essence, perform, plays
from vllm_small import run_out, scheduler

from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload

SHADOW: dict[str, Any] = {"policy": "peek", "strict": True, "mode": "shadow"}


def played(workload: Workload, mode: str) -> tuple[float, Any]:
    """The hit, and the account of the shadow if there is one."""
    real = RealScheduler(workload, "peek", CostModel(), mode=mode)
    rate = hit(real.run())
    shadow = real.scheduler.peek.foretold.shadow
    return rate, None if shadow is None else shadow.account


@pytest.mark.parametrize("seed", [1, 2])
def test_foretold_is_what_comes_true(seed: int) -> None:
    check_foretold_comes_true(played, seed)


def test_nothing_is_foretold_where_nothing_is_shared() -> None:
    check_nothing_is_foretold_where_nothing_is_shared(played)


def test_answers_are_found_where_they_are_repeated() -> None:
    check_answers_are_found_where_they_are_repeated(played, token_at)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_random_schedules(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM decides as it would alone, and the account is over those it admitted."""
    monkeypatch.setattr("peek.simulation.cost.ENOUGH", 4)
    monkeypatch.setattr("peek.simulation.cost._SOLVE_EVERY", 1)
    seen = {"requests": 0, "aborted": 0}

    @settings(max_examples=40)
    @given(plays())
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        alone = perform(play, None, asynchronous=asynchronous, stock=True)
        outcome = perform(play, SHADOW, asynchronous=asynchronous)
        check_outcome(play, outcome)
        assert [essence(one) for one in outcome.outputs] == [essence(one) for one in alone.outputs]
        engine = outcome.scheduler
        engine.schedule()  # tells who has finished
        shadow = engine.peek.foretold.shadow
        assert not shadow._here
        for later in range(1, 200):
            shadow.account.step(outcome.steps + 10.0 * later)
        account = shadow.account
        admitted: dict[str, int] = {}
        for output in outcome.outputs:
            for new in output.scheduled_new_reqs:
                admitted.setdefault(new.req_id, int(new.num_computed_tokens))
        if account.steps.known:
            assert not account._pairs
            assert account.requests == len(admitted)
            assert account.stock_hit_tokens == sum(admitted.values())
        seen["requests"] += account.requests
        seen["aborted"] += len(outcome.aborted)

    random_schedule()
    assert min(seen.values()) > 0


def test_switched_on_while_requests_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The shadow takes over who waits; who runs is not its own."""
    engine = scheduler(options={**SHADOW, "mode": "on"}, num_blocks=20, max_num_seqs=1)
    for number in range(4):
        engine.add_request(make_request(f"r{number}", [number] * 40, 3))
    engine.schedule()
    assert engine.peek.foretold.shadow is None
    engine.peek._turn("shadow")
    assert sorted(engine.peek.foretold.shadow._here) == ["r1", "r2", "r3"]
    engine.peek._turn("on")
    assert engine.peek.foretold.shadow is None
    engine.peek._turn("shadow")
    with caplog.at_level(logging.INFO, "peek"):
        engine.peek._turn("off")
    assert "the shadow ends: the shadow has seen no request through yet" in caplog.text


def test_who_is_not_followed() -> None:
    engine = scheduler(options={**SHADOW, "strict": False}, priority=True)
    assert engine.peek.foretold.shadow is None
    assert engine.peek.adapter is not None
    engine.add_request(make_request("a", [1] * 40, 3))
    assert len(run_out(engine)["a"]) == 3
