"""`--enable-priority-scheduling`: what the operator set stands, and each priority has turns of its own."""

from __future__ import annotations

from typing import Any

import pytest
from bench_cost import cache_prompt
from sglang_lab import CORES, World, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

from peek.planner import Planner

HOT = [7] * 1000
IMPATIENT = "peek:grace_tokens=2000"
"""Whoever waits for more than this work is overdue."""


def lab(label: str, core: str | None = None, low_first: bool = False, **more: Any) -> tuple[World, Stepper]:
    world = make_world(40_000, priority=True, core=core, **more)
    world.policy.priority_sign = 1 if low_first else -1
    stepper = Stepper(world, max_running=2)
    attach(world, label, stepper)
    cache_prompt(world, HOT)
    return world, stepper


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("low_first", [False, True])
def test_a_cold_request_has_its_turn_whatever_waits_below(low_first: bool, core: str | None) -> None:
    """Hits of its own priority keep coming; those of another are older and never run."""
    _, stepper = lab(IMPATIENT, core, low_first)
    high, low = (0, 1) if low_first else (1, 0)
    for number in range(30):
        stepper.add(make_request(f"low{number}", [100 + number] * 3000, 1, priority=low, arrival=1.0))
    stepper.add(make_request("cold", [9] * 3000, 1, priority=high, arrival=2.0))
    for turn in range(30):
        for number in (2 * turn, 2 * turn + 1):
            text = [*HOT, *[1000 + number] * 100]
            stepper.add(make_request(f"hit{number}", text, 1, priority=high, arrival=3.0 + number))
        stepper.step()
    order = [admission.rid for admission in stepper.admissions]
    assert 15 < order.index("cold") < 30  # 2,000 tokens are ten turns
    assert not [rid for rid in order if rid.startswith("low")]
    assert isinstance(stepper.policy.peek.adapter.planner.observed._planners[0], Planner)


def test_a_sibling_waits_for_a_pioneer_of_another_priority() -> None:
    _, stepper = lab("peek", max_running=4)
    stepper.max_running = stepper.max_running_requests = 4
    stepper.chunk = stepper.chunked_prefill_size = 600
    stepper.add(make_request("pioneer", [5] * 1000, 1, priority=1))
    stepper.step()
    stepper.add(make_request("sibling", [*[5] * 1000, 6], 1, priority=0, arrival=1.0))
    stepper.add(make_request("stranger", [8] * 1000, 1, priority=0, arrival=2.0))
    stepper.run_out()
    assert [admission.rid for admission in stepper.admissions] == ["pioneer", "stranger", "sibling"]
    assert stepper.records["sibling"].admissions[0].cached >= 999
