"""A policy in a module of its author's own orders SGLang's real queue, named as its author would name it."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_lab import CORES, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper
from support.own_policies import module

from peek.adapters.metrics import snapshot

__all__ = ["module"]

A, B = list(range(100, 164)), list(range(200, 264))


def busy(core: str | None, label: str, **more: Any) -> tuple[list[str], Any]:
    """B's prefix is cached; A and B wait in turns, A first.  The order of admission, and the attachment."""
    world = make_world(1000, core=core, max_running=1)
    beside = attach(world, label, **more)
    stepper = Stepper(world, max_running=1)
    stepper.add(make_request("first", [*B, 1], 1, arrival=1.0))
    stepper.run_out()
    for i in range(6):
        stepper.add(make_request(f"{'AB'[i % 2]}{i}", (A, B)[i % 2] + [300 + i] * 8, 1, arrival=2.0 + i))
    stepper.run_out()
    assert leaked(world) == 0
    return [admission.rid for admission in stepper.admissions][1:], beside


@pytest.mark.parametrize("core", CORES)
def test_it_orders_the_real_queue(core: str | None, module: str) -> None:
    order, _ = busy(core, f"{module}:MostCachedFirst")
    assert order == ["B1", "B3", "B5", "A0", "A2", "A4"]


@pytest.mark.parametrize("core", CORES)
def test_one_that_fails_leaves_arrival_order_and_is_seen(core: str | None, module: str) -> None:
    order, beside = busy(core, f"{module}:Forgets", strict=False)
    assert order == ["A0", "B1", "A2", "B3", "A4", "B5"]
    assert snapshot(beside.adapter)["peek_policy_faults"] >= 5
    assert (beside.shield.active, beside.shield.fallbacks) == (True, 0)
