"""What the mirror foretells is what vLLM finds; where it is not, `peek` stands aside."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from vllm_lab import BLOCK, full_attention, make_request, vllm
from vllm_plays import Play, check_outcome, perform, plays
from vllm_small import STRICT, run_out, scheduler, step

from peek.adapters.containment import LASTING
from peek.adapters.engine_adapter import TESTED


def sixty(engine: Any) -> None:
    for i in range(60):
        engine.add_request(make_request(f"r{i}", [10 + i % 6] * 128 + [100 + i] * 16, 4))


@pytest.mark.parametrize("seats", [1, 8, 60])
@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
def test_shared_in_one_step_is_foretold_exactly(seats: int, priority: bool) -> None:
    """The plan of a step knows nothing of what is admitted in it; the look before each admission does."""
    engine = scheduler(num_blocks=800, max_num_seqs=seats, priority=priority)
    sixty(engine)
    run_out(engine)
    adapter = engine.peek.adapter
    totals = adapter.planner.totals()
    assert totals["cached_expected"] == adapter.cached_real == 54 * 128
    assert engine.peek.seen.surprises.sum == 0
    assert (adapter.agreement.compared, adapter.agreement.differed) == (54, 0)


@settings(max_examples=25)
@given(play=plays())
def test_random_plays_are_foretold_exactly(play: Play) -> None:
    outcome = perform(play, STRICT)
    check_outcome(play, outcome)
    agreement = outcome.scheduler.peek.adapter.agreement
    assert agreement.differed == 0, str(agreement)


def shortened(stock: Any, blocks: int) -> classmethod[Any, Any, Any]:
    """vLLM's own prefix match, with the last blocks left out."""

    def shorter(cls: Any, *args: Any, **more: Any) -> Any:
        answer = stock(cls, *args, **more)
        found = answer[0] if isinstance(answer[-1], int) else answer
        left = max(0, len(found[0]) - blocks)
        for group in found:
            del group[left:]
        return (found, min(answer[1], left * BLOCK)) if isinstance(answer[-1], int) else answer

    return classmethod(shorter)


def test_a_match_that_means_something_else_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    caplog.set_level(logging.INFO, logger="peek")
    stock = FullAttentionManager.find_longest_cache_hit.__func__
    monkeypatch.setattr(FullAttentionManager, "find_longest_cache_hit", shortened(stock, 4))
    engine = scheduler(options={"policy": "peek"}, num_blocks=60, max_num_seqs=2)
    sixty(engine)
    while not engine.peek.aside:
        assert engine.has_unfinished_requests(), "it was not noticed"
        step(engine)
    assert engine.peek.adapter is None
    assert (engine.peek.active, engine.peek.shield.fallbacks) == (False, 0)
    assert type(engine.waiting).__name__ == "FCFSRequestQueue"
    (line,) = [r.message for r in caplog.records if "stands aside" in r.message]
    assert f"in {LASTING} of {LASTING} admissions" in line
    assert all(number in line for number in TESTED["vllm"])
    run_out(engine)


def test_the_versions_it_names_are_those_it_is_tested_on() -> None:
    assert vllm.__version__.split("+")[0] in TESTED["vllm"]
    assert full_attention(BLOCK).block_size == BLOCK
