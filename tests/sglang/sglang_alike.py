"""The lab of the behaviours that both engines have in common."""

from __future__ import annotations

import copy
from itertools import count
from typing import Any

import pytest
from sglang_lab import CORES, VERSION, World, make_request, make_world
from sglang_plays import perform, plays
from sglang_small import attach
from sglang_stepper import Stepper
from sglang_virtual import VirtualSglang
from support.followed import hit
from support.lab import Ask, Lab
from support.plays import Play

from peek.adapters.sglang.requests import SWEEP_EVERY
from peek.simulation.cost import CostModel


class SglangLab(Lab):
    """On one of SGLang's tree cores, in pages of so many tokens."""

    engine, version, view, low_first = "sglang", VERSION, "view", False
    caches_at_once = False
    pressed, answer = {"tokens": 420, "seats": 4}, 12

    def __init__(self, core: str | None, page: int) -> None:
        self.core = core
        self.page = page
        self._numbers = count()

    def make(self, label: str | None, tokens: int, seats: int, priority: bool, options: Any) -> Stepper:
        world = make_world(tokens, core=self.core, page_size=self.page, max_running=seats, priority=priority)
        stepper = Stepper(world, max_running=seats)
        return self._beside(stepper, label, **options)

    def _beside(self, stepper: Stepper, label: str | None, **options: Any) -> Stepper:
        if label is not None:
            foretold = attach(stepper.world, label, stepper, **options).foretold
            if foretold.shadow is not None:
                foretold.shadow.clock = lambda: stepper.now
        return stepper

    @property
    def world(self) -> World:
        return self.stepper.world  # type: ignore[attr-defined,no-any-return]

    def request(self, ask: Ask) -> Any:
        made = make_request(
            ask.name,
            ask.tokens,
            ask.output,
            cache_salt=ask.salt,
            priority=ask.priority,
            arrival=1.0 + next(self._numbers),
        )
        made.routing_key = ask.tenant
        made.sampling_params.custom_params = ask.says
        return made

    def spoil(self, request: Any) -> str:
        request.origin_input_ids[5] = -7
        return "-7"

    def in_order(self, stepper: Any) -> list[Any]:
        queue = list(stepper.waiting_queue)
        if queue:
            stepper.policy.calc_priority(queue)
        return queue

    def plan(self) -> list[str]:
        queue = self.stepper.waiting_queue  # type: ignore[attr-defined]
        self.world.policy.calc_priority(queue)
        return [request.rid for request in queue]

    def withdraw(self, request: Any) -> None:
        request.output_ids.append(3)  # admitted, generated one token, and was retracted
        self.stepper.waiting_queue.remove(request)  # type: ignore[attr-defined]

    def come_back(self, request: Any) -> None:
        self.stepper.waiting_queue.append(request)  # type: ignore[attr-defined]

    def misread(self, patch: pytest.MonkeyPatch) -> None:
        kind = type(make_world(100, core=self.core).tree)
        stock = kind.match_prefix
        inserting = False

        def half(tree: Any, params: Any) -> Any:
            if inserting:  # the cache looks for what it has just put there
                return stock(tree, params)
            shorter = copy.copy(params)
            shorter.key = params.key[: len(params.key) // 2]
            return stock(tree, shorter)

        def insert(tree: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inserting
            inserting = True
            try:
                return stock_insert(tree, *args, **kwargs)
            finally:
                inserting = False

        patch.setattr(kind, "match_prefix", half)
        stock_insert: Any = getattr(kind, "cache_unfinished_req", None)  # until 0.5.17
        if stock_insert is not None:
            patch.setattr(kind, "cache_unfinished_req", insert)

    def check_stock_objects(self) -> None:
        self.world.policy.calc_priority([])
        if self.core != "rust":
            strategy = getattr(self.world.tree, "tree_core", self.world.tree).eviction_strategy
            assert type(strategy).__module__.startswith("sglang")
        assert "waiting_queue_prefix_matched" not in vars(self.world.policy)

    def plays(self, **kinds: Any) -> Any:
        return plays(**kinds)

    def perform(
        self, play: Play, label: str | None, overlap: bool = False, each_step: Any = None, **options: Any
    ) -> Stepper:
        def beside(stepper: Stepper) -> Stepper:
            return self._beside(stepper, label, **options)

        return perform(play, beside, core=self.core, overlap=overlap, each_step=each_step)

    def account_at_the_end(self, stepper: Any) -> Any:
        shadow = stepper.beside.foretold.shadow
        for _ in range(SWEEP_EVERY):
            shadow.turned(stepper, None, None)
        assert not shadow._followed.here
        return shadow.account

    def simulate(self, workload: Any, mode: str) -> tuple[float, Any]:
        seats = workload.max_running
        world = make_world(
            workload.arena_tokens, max_running=seats, context=4096, page_size=self.page, core=self.core
        )
        beside = attach(world, "peek", mode=mode)
        rate = hit(VirtualSglang(workload, CostModel(), world).run())
        shadow = beside.foretold.shadow
        return rate, None if shadow is None else shadow.account


KINDS = [(core, 1) for core in CORES] + [(CORES[-1], 16)]


@pytest.fixture(params=KINDS, ids=str)
def lab(request: pytest.FixtureRequest) -> SglangLab:
    return SglangLab(*request.param)
