"""The behaviours that both engines have in common, on SGLang's real cache and policy."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_lab import CORES, World, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper
from support import alike
from support.alike import A, Ask, B, Played
from support.broken import Broken
from support.own_policies import module

__all__ = ["module"]

PLANNER = ("remove", "lazy_plan", "prefilled", "eviction_score")
VIEW = ("root", "advance", "node_id")


class Lab:
    """Plays on a world with one of SGLang's tree cores."""

    plan = "lazy_plan"

    def __init__(self, core: str | None) -> None:
        self.core = core
        self.world: World

    def play(
        self,
        asks: list[Ask],
        label: str | None = "peek",
        *,
        warm: list[Ask] | None = None,
        tokens: int = 1600,
        seats: int = 1,
        **options: Any,
    ) -> Played:
        beside = self._start(label, tokens, seats, **options)
        stepper = Stepper(self.world, max_running=seats)
        for group in (warm or [], asks):
            self._add(stepper, group)
            stepper.run_out()
        return self._played(stepper, beside, len(warm or []))

    def busy(self, label: str | None, method: str = "", after: int = 0, **options: Any) -> Played:
        beside = self._start(label, 420, 4, **options)
        if method:
            target = "view" if method in VIEW else "planner"
            setattr(beside.adapter, target, Broken(getattr(beside.adapter, target), method, after))
        stepper = Stepper(self.world, max_running=4)
        self._add(stepper, [Ask(f"r{i}", (A, B)[i % 2] + [300 + i] * 20, 12) for i in range(12)])
        for _ in range(3):
            stepper.step()
        stepper.abort("r11")
        stepper.run_out()
        return self._played(stepper, beside)

    def _start(self, label: str | None, tokens: int, seats: int, **options: Any) -> Any:
        self.world = make_world(tokens, core=self.core, max_running=seats)
        return attach(self.world, label, **options) if label else None

    def _add(self, stepper: Stepper, asks: list[Ask]) -> None:
        for ask in asks:
            arrival = 1.0 + len(stepper.records)
            request = make_request(ask.name, ask.tokens, ask.output, arrival=arrival)
            request.routing_key = ask.tenant
            stepper.add(request)

    def _played(self, stepper: Stepper, beside: Any, first: int = 0) -> Played:
        assert leaked(self.world) == 0
        assert all(record.finished or record.aborted for record in stepper.records.values())
        records = stepper.records.items()
        cached = {rid: int(r.admissions[0].prefix_len) for rid, r in records if r.admissions}
        return Played([admission.rid for admission in stepper.admissions][first:], cached, beside)

    def check_stock_objects(self) -> None:
        self.world.policy.calc_priority([])
        strategy = getattr(self.world.tree, "tree_core", self.world.tree).eviction_strategy
        assert type(strategy).__module__.startswith("sglang")


@pytest.fixture(params=CORES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(request.param)


@pytest.fixture(params=[*PLANNER, *VIEW])
def method(request: pytest.FixtureRequest, lab: Lab) -> str:
    if lab.core == "rust":
        pytest.skip("this core shows neither its nodes nor its strategy")
    return str(request.param)


@pytest.fixture(params=["add", "remove", "lazy_plan", "advance"])  # add: not put in quarantine
def strict_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestAlike(alike.Alike):
    """On SGLang."""
