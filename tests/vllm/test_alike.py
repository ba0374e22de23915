"""The behaviours that both engines have in common, on vLLM's real scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from support import alike
from support.alike import Ask, Played
from support.own_policies import module
from vllm_lab import BLOCK, Scheduler, free_blocks, make_request, make_scheduler
from vllm_small import assert_stock_objects, busy_run, pressed, sabotage, step

from peek.adapters.vllm import PeekScheduler

__all__ = ["module"]

# What fails for one request alone, in translating it, is in test_contain.py.
PLANNER = ("remove", "lazy_plan", "eviction_score")
MIRROR = ("pop_outgrown", "release", "block_cached")


class Lab:
    """Plays on a scheduler with blocks of 16 tokens."""

    plan = "lazy_plan"
    engine: Any

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
        blocks = tokens // BLOCK
        given = None if label is None else {"policy": label, "strict": True, **options}
        cls = Scheduler if label is None else PeekScheduler
        engine = make_scheduler(cls, num_blocks=blocks + 1, max_num_seqs=seats, options=given)
        found: list[tuple[str, int]] = []
        for group in (warm or [], asks):
            for ask in group:
                request = make_request(ask.name, ask.tokens, ask.output)
                if ask.tenant is not None:
                    request.sampling_params.extra_args = {"peek_tenant": ask.tenant}
                engine.add_request(request)
            found = []
            while engine.has_unfinished_requests():
                found += [(new.req_id, new.num_computed_tokens) for new in step(engine).scheduled_new_reqs]
        assert free_blocks(engine) == blocks
        return Played([name for name, _ in found], dict(found), getattr(engine, "peek", None))

    def busy(self, label: str | None, method: str = "", after: int = 0, strict: bool = True) -> Played:
        if label is None:
            return Played(busy_run(make_scheduler(num_blocks=26, max_num_seqs=3)), {}, None)
        engine = self.engine = pressed(strict)
        sabotage(engine, method, after)
        order = busy_run(engine)
        assert free_blocks(engine) == 25
        return Played(order, {}, engine.peek)

    def check_stock_objects(self) -> None:
        assert_stock_objects(self.engine)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture(params=[*PLANNER, *MIRROR])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["add", "remove", "lazy_plan", "eviction_score", "intern", "release"])
def strict_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestAlike(alike.Alike):
    """On vLLM."""
