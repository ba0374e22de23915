"""Where the adapter stands aside, and says so once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from vllm_lab import BLOCK, full_attention, make_request
from vllm_small import A, interleaved, run_out, scheduler, step


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split("; ")[0] for record in caplog.records if record.name == "peek"]


def test_priority_policy_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(priority=True, num_blocks=200, max_num_seqs=1)
    assert engine.peek.adapter is None
    assert said(caplog) == ["peek: stands aside, stock order: the scheduling policy is by priority"]
    for i, urgency in enumerate((5, 1, 3)):
        engine.add_request(make_request(f"p{i}", [*A, i], 1, priority=urgency))
    order = [new.req_id for _ in range(3) for new in step(engine).scheduled_new_reqs]
    assert order == ["p1", "p2", "p0"]


def sliding(block_size: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=64
    )


@pytest.mark.parametrize(
    "specs", [[full_attention(BLOCK), sliding(BLOCK)], [sliding(BLOCK)]], ids=["two", "sliding"]
)
def test_models_with_other_kv_groups_are_left_alone(
    specs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(num_blocks=200, specs=specs, max_num_seqs=1)
    assert engine.peek.adapter is None
    (line,) = said(caplog)
    assert f"{len(specs)} KV cache groups" in line
    interleaved(engine)
    order = [new.req_id for _ in range(20) for new in step(engine).scheduled_new_reqs]
    assert order == ["A0", "B1", "A2", "B3", "A4", "B5"]


def test_prefix_caching_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(num_blocks=200, caching=False)
    assert engine.peek.adapter is None
    assert said(caplog) == ["peek: stands aside, stock order: prefix caching is off"]
    for i in range(4):
        engine.add_request(make_request(f"r{i}", A, 2, hashed=False))
    assert len(run_out(engine)) == 4
