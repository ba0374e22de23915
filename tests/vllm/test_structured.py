"""Requests with structured output: planned like others, whether their grammar is ready or not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alike import SAID, SAYS, stated
from support.lab import Ask
from vllm_lab import (
    RequestStatus,
    Scheduler,
    StructuredOutputGrammar,
    expected_tokens,
    free_blocks,
    make_request,
    queued,
)
from vllm_small import STRICT, A, B, VllmLab, lab, run_out, scheduler, step

from peek.adapters.vllm import PeekScheduler

__all__ = ["lab"]

BLOCKED = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


@StructuredOutputGrammar.register  # vLLM 0.28 and others assert that it is one
class AnyToken:
    """A compiled grammar that allows everything."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


def structured(name: str, tokens: list[int], max_tokens: int = 3, ready: bool = True) -> Any:
    """vLLM's own request, its grammar compiled or under way."""
    request = make_request(name, tokens, max_tokens, grammar=True)
    assert request.status == BLOCKED
    compiling: Future[Any] = Future()
    request.structured_output_request.grammar = compiling
    if ready:
        compiling.set_result(AnyToken())
    request.compiling = compiling
    return request


def tenants() -> dict[str, list[int]]:
    """Eight prompts of 288 tokens, of three tenants in turns."""
    return {
        f"{tenant}{i}": [5 + "ABC".index(tenant)] * 256 + [100 + i * 3 + "ABC".index(tenant)] * 32
        for i, tenant in [(i, tenant) for i in range(3) for tenant in "ABC"][:8]
    }


def run(cls: Any, ready_after: dict[str, int]) -> tuple[dict[str, int], Any]:
    """Cached tokens by name, in an engine whose cache holds one prompt; grammars become ready at steps."""
    engine = scheduler(cls, options=STRICT, num_blocks=20, max_num_seqs=1)
    pending = {}
    for name, tokens in tenants().items():
        request = structured(name, tokens, ready=name not in ready_after)
        engine.add_request(request)
        pending[name] = request
    cached: dict[str, int] = {}
    for at in range(400):
        for name, due in ready_after.items():
            if due <= at and not pending[name].compiling.done():
                pending[name].compiling.set_result(AnyToken())
        for new in step(engine).scheduled_new_reqs:
            assert pending[new.req_id].compiling.done(), "admitted without its grammar"
            cached[new.req_id] = new.num_computed_tokens
        if not engine.has_unfinished_requests():
            break
    assert sorted(cached) == sorted(pending), "somebody is lost"
    assert free_blocks(engine) == 19
    return cached, engine


def test_eight_structured_requests() -> None:
    stock, _ = run(Scheduler, {})
    assert sum(stock.values()) == 0
    cached, engine = run(PeekScheduler, {})
    assert sum(cached.values()) == 5 * 256 == 1280
    adapter = engine.peek.adapter
    assert adapter.planner.stats.plans > 0
    assert adapter.planner.stats.admitted == 8
    assert adapter.cached_real == 1280


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(tenants())), st.integers(0, 120)))
def test_whoever_is_not_ready_is_passed_over(ready_after: dict[str, int]) -> None:
    _, engine = run(PeekScheduler, ready_after)
    adapter = engine.peek.adapter
    assert adapter.planner.stats.admitted == 8
    assert len(adapter.planner) == 0 == len(adapter.mirror)
    assert adapter.planner.stats.withdrawn == 0


def test_a_grammar_that_is_not_ready_blocks_nobody() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    late = structured("late", [*A, 1], ready=False)
    engine.add_request(late)
    for i in range(3):
        engine.add_request(structured(f"A{i}", [*A, 2 + i]))
        engine.add_request(make_request(f"B{i}", [*B, 2 + i], 3))
    order = [new.req_id for _ in range(18) for new in step(engine).scheduled_new_reqs]
    assert sorted(order) == ["A0", "A1", "A2", "B0", "B1", "B2"]
    assert late in queued(engine)
    assert "late" in engine.peek.adapter.planner
    late.compiling.set_result(AnyToken())
    assert run_out(engine)["late"] == expected_tokens("late", 65, 3)


def test_what_a_request_states_outlasts_a_wait_for_a_grammar(lab: VllmLab) -> None:
    lab.start_busy()
    request = structured("asks", [*A, 1], ready=False)
    request.sampling_params.extra_args = SAYS
    lab.scheduler.add_request(request)
    lab.add(Ask("other", [*A, 2]))
    for is_held in (True, False):
        lab.plan()
        assert ("asks" in lab.adapter.planner.held) == is_held
        assert stated(lab, "asks") == SAID
        if is_held:
            request.compiling.set_result(AnyToken())


def test_a_grammar_that_cannot_be_compiled() -> None:
    """vLLM ends the request when its scan comes by; 0.19.1 and 0.24.0 let the error out, as stock does."""
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    if not hasattr(engine, "grammar_compile_error_reqs"):
        pytest.skip("this vLLM lets the error end the engine")
    bad = structured("bad", [*A, 1], ready=False)
    engine.add_request(bad)
    for i in range(3):
        engine.add_request(structured(f"A{i}", [*A, 2 + i]))
    bad.compiling.set_exception(ValueError("no such grammar"))
    for _ in range(30):
        step(engine)
    assert not engine.requests
    stats = engine.peek.adapter.planner.stats
    assert (stats.admitted, stats.withdrawn) == (3, 1)
