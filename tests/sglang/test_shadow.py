"""What shadow mode foretells comes true over SGLang's own parts, and it changes nothing there."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang_lab import CORES, World, make_request, make_world, token_at
from sglang_plays import INTERLEAVED, Play, check_outcome, perform, plays
from sglang_small import attach
from sglang_stepper import STEP_S, Stepper
from sglang_virtual import VirtualSglang
from support.followed import (
    check_answers_are_found_where_they_are_repeated,
    check_foretold_comes_true,
    check_nothing_is_foretold_where_nothing_is_shared,
    hit,
)

from peek.adapters.sglang.requests import SWEEP_EVERY
from peek.adapters.sglang.shadow import SglangShadow, why_no_shadow
from peek.simulation.cost import CostModel
from peek.simulation.workload import Workload


def played(workload: Workload, mode: str, page: int = 1, core: str | None = None) -> tuple[float, Any]:
    """The hit, and the account of the shadow if there is one."""
    world = make_world(
        workload.arena_tokens, max_running=workload.max_running, context=4096, page_size=page, core=core
    )
    beside = attach(world, "peek", mode=mode)
    rate = hit(VirtualSglang(workload, CostModel(), world).run())
    shadow = beside.foretold.shadow
    return rate, None if shadow is None else shadow.account


@pytest.mark.parametrize(("seed", "page"), [(1, 1), (2, 1), (3, 16)])
def test_foretold_is_what_comes_true(seed: int, page: int) -> None:
    check_foretold_comes_true(partial(played, page=page, core=CORES[-1]), seed)


def test_nothing_is_foretold_where_nothing_is_shared() -> None:
    check_nothing_is_foretold_where_nothing_is_shared(played)


def test_answers_are_found_where_they_are_repeated() -> None:
    check_answers_are_found_where_they_are_repeated(played, token_at)


def shadow_of(world: World) -> SglangShadow:
    found: SglangShadow = world.policy.peek.foretold.shadow
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_random_schedules(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang decides as it would alone, and the account is over those it admitted."""
    monkeypatch.setattr("peek.simulation.cost.ENOUGH", 4)
    monkeypatch.setattr("peek.simulation.cost._SOLVE_EVERY", 1)
    seen = {"requests": 0, "aborted": 0}

    def beside(stepper: Stepper) -> Any:
        made = attach(stepper.world, "peek", mode="shadow")
        made.foretold.shadow.clock = lambda: stepper.at * STEP_S
        return made

    @settings(max_examples=40)
    @given(plays())
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        alone = perform(play, overlap=overlap)
        outcome = perform(play, beside, overlap=overlap)
        check_outcome(play, outcome)
        assert outcome.batches == alone.batches
        shadow = shadow_of(outcome.world)
        for _ in range(SWEEP_EVERY):
            shadow.turned(outcome.stepper, None, None)
        assert not shadow._followed.here
        account = shadow.account
        if account is None:  # everybody was aborted at once
            return
        for later in range(1, 200):
            account.step(outcome.steps + 10.0 * later)
        firsts = [record.admissions[0] for record in outcome.records.values() if record.admissions]
        if account.steps.known:
            assert not account._pairs
            assert account.requests == len(firsts)
            assert account.stock_hit_tokens == sum(first.prefix_len for first in firsts)
        seen["requests"] += account.requests
        seen["aborted"] += sum(record.aborted for record in outcome.records.values())

    random_schedule()
    assert min(seen.values()) > 0


def test_who_arrives_is_seen_wherever_the_policy_puts_them() -> None:
    """`lpm` sorts the queue, a retracted request stands at its end, and nobody is told of twice."""
    world = make_world(2000, policy="lpm")
    attach(world, "peek", mode="shadow")
    stepper = Stepper(world)
    stepper.add(make_request("first", [1] * 40, 1))
    stepper.step()
    shadow = shadow_of(world)
    for number in range(5):
        stepper.add(make_request(f"r{number}", [1] * (10 + number), 1))
        if number % 2:
            shadow.looked_at(stepper.waiting_queue)
            stepper.waiting_queue.sort(key=lambda request: -len(request.origin_input_ids))
    shadow.looked_at(stepper.waiting_queue)
    assert {name for name in shadow._followed.here if name != "first"} == {
        f"r{number}" for number in range(5)
    }
    assert shadow.account is not None
    assert shadow.account._count == 6


def test_who_is_not_followed() -> None:
    """`peek_state` says so: counters that stand still look like nothing to gain."""
    world = make_world(2000, priority=True)
    beside = attach(world, "peek", mode="shadow")
    assert beside.foretold.shadow is None
    assert beside.state == "shadow, foretells no hits: requests are scheduled by priority"
    stock = [
        make_request(f"r{i}", [7] * 64 + [i] if i else [9] * 1000, priority=0, arrival=1.0 + i)
        for i in range(4)
    ]
    queue = list(stock)
    world.policy.calc_priority(queue)
    assert queue == stock
    assert beside.seen.shadow_reordered == 1, "what is counted without a virtual engine still is"
    beside._turn("on")
    assert beside.state == "on"


def test_streaming_sessions_are_not_followed() -> None:
    world = make_world(2000)
    for enabled in (False, True):
        scheduler = SimpleNamespace(server_args=SimpleNamespace(enable_streaming_session=enabled))
        assert bool(why_no_shadow(world.policy, scheduler)) is enabled
