"""A prefix that the queue needs survives a burst of other prompts."""

from __future__ import annotations

from vllm_lab import BLOCK, make_request
from vllm_small import run_out, scheduler, step


def squeeze(prefix: int, planned: bool) -> int:
    """Cached tokens of a request that waits while a burst passes, with one other prompt to evict."""
    needed = [5] * prefix
    engine = scheduler(options={"policy": "fcfs+pe", "strict": True}, num_blocks=40, max_num_seqs=1)
    engine.add_request(make_request("first", [*needed, 1], 1))
    if not planned:  # two never wait at once
        run_out(engine)
    engine.add_request(make_request("other", [8] * 160 + [1], 1))
    run_out(engine)
    room = 39 - prefix // BLOCK
    engine.add_request(make_request("burst", [3] * 160, (room - 10) * BLOCK - 8))
    step(engine)
    engine.add_request(make_request("last", [*needed, 2], 1))
    before = engine.peek.adapter.cached_real
    run_out(engine)
    return int(engine.peek.adapter.cached_real - before)


def test_a_waiting_request_protects_its_prefix() -> None:
    assert squeeze(32, planned=True) == 32


def test_one_waiting_request_protects_a_long_prefix() -> None:
    # with one waiting request after 4, so that a prefix of more than 4 blocks is evicted while blocks
    # without demand lie right behind it.
    assert squeeze(128, planned=True) == 128


def test_one_waiting_request_protects_its_prefix_before_the_first_plan() -> None:
    # `eviction_score` is 0.0 for every block.
    assert squeeze(32, planned=False) == 32
