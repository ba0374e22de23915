"""A policy in a module of somebody's own orders SGLang's real queue, named as he would name it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_lab import CORES, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

from peek.adapters.metrics import snapshot

MODULE = """
from peek import AdmissionPolicy

class MostCachedFirst(AdmissionPolicy):
    def order(self, queue, cycle):
        return sorted(queue, key=lambda request: -request.cached_len)

class Forgets(AdmissionPolicy):
    def order(self, queue, cycle):
        return queue[1:]
"""
A, B = list(range(100, 164)), list(range(200, 264))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "anybodys_policies.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "anybodys_policies", raising=False)
    return "anybodys_policies"


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
