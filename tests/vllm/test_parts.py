"""Prefills in parts (`--long-prefill-token-threshold`): beside one, others are admitted."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from vllm_lab import RequestStatus, Scheduler, make_request, make_vllm_config
from vllm_small import STRICT, run_out, scheduler, step

from peek.adapters.vllm import PeekScheduler
from peek.adapters.vllm.shadow import why_no_shadow

PREFIX, OWN, FAMILIES, EACH = 1024, 64, 8, 4
HEADS = [[Random(n).randrange(9, 9999) for _ in range(PREFIX)] for n in range(FAMILIES)]


def engine_with(part: int, cls: Any = PeekScheduler, priority: bool = False, **sizes: int) -> Any:
    """An engine that computes at most `part` tokens of a prompt in a step, 0 for as many as fit."""
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 1024, **sizes}
    config = make_vllm_config(**sizes, priority=priority, options=STRICT if cls is PeekScheduler else None)
    config.scheduler_config.long_prefill_token_threshold = part
    return scheduler(cls, config=config, num_blocks=500)


def ask(engine: Any, name: str, family: int, own: int = 1) -> None:
    engine.add_request(make_request(name, HEADS[family] + [10_000 + own] * OWN, 4))


def found(engine: Any) -> float:
    """The share of the prompts of mixed families that is found in the cache."""
    order = [n % FAMILIES for n in range(FAMILIES * EACH)]
    Random(1).shuffle(order)
    for n, family in enumerate(order):
        ask(engine, f"r{n}", family, n)
    hit = 0
    while engine.has_unfinished_requests():
        hit += sum(new.num_computed_tokens for new in step(engine).scheduled_new_reqs)
    return hit / (len(order) * (PREFIX + OWN))


@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("part", [32, 128, 256])
def test_siblings_do_not_compute_their_prefix_side_by_side(part: int, priority: bool) -> None:
    assert found(engine_with(part, priority=priority)) > 1.1 * found(engine_with(part, Scheduler))


def test_a_part_that_holds_the_whole_prefix_keeps_no_sibling_waiting() -> None:
    assert found(engine_with(PREFIX)) == found(engine_with(0))


def test_a_sibling_of_a_lone_prefill_that_comes_later_goes_behind_a_stranger() -> None:
    engine = engine_with(128, max_num_batched_tokens=256)
    ask(engine, "pioneer", 0)
    ask(engine, "other", 1)
    step(engine)  # both alone so far
    engine.finish_requests("other", RequestStatus.FINISHED_ABORTED)
    ask(engine, "sibling", 0, 2)
    ask(engine, "stranger", 2)
    came = [new.req_id for _ in range(40) for new in step(engine).scheduled_new_reqs]
    assert came == ["stranger", "sibling"]
    assert engine.requests.keys() <= {"pioneer", "sibling", "stranger"}


def test_a_shadow_foretells_no_hits() -> None:
    """Its virtual engine computes prompts as far as a step has room."""
    assert "long prompts are computed in parts" in str(why_no_shadow(engine_with(128).peek.adapter))
    assert why_no_shadow(engine_with(0).peek.adapter) is None


def test_nothing_is_kept_of_a_prefill_that_has_ended_or_was_broken_off() -> None:
    engine = engine_with(64, max_num_batched_tokens=256)
    adapter = engine.peek.adapter
    for n in range(8):
        ask(engine, f"r{n}", n % 2, n)
    step(engine)
    assert adapter._in_parts.keys() == {request.request_id for request in engine.running}
    engine.finish_requests("r0", RequestStatus.FINISHED_ABORTED)
    ask(engine, "r0", 3)  # the id once more, with another prompt
    run_out(engine)
    engine.schedule()
    assert not adapter._in_parts
    assert len(adapter.mirror) == 0
    assert len(adapter.planner) == 0
