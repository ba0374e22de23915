"""Models with several KV cache groups, draft models, sharded blocks: the mirror against vLLM's own answer."""

from __future__ import annotations

import logging
import random
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from support.plays import Play
from vllm_lab import (
    BLOCK,
    LOOKS_AHEAD,
    MambaCacheMode,
    cached_now,
    full_attention,
    hash_lookahead,
    make_request,
    torch,
)
from vllm_plays import INTERLEAVED, perform, plays
from vllm_small import STRICT, A, Comparison, interleaved, matched, run_out, scheduler, step

from peek.trie.keys import unpack


def sliding(window: int, block_size: int = BLOCK) -> Any:
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=window
    )


def wider(block_size: int = BLOCK) -> Any:
    """Full attention of another shape."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=1, dtype=torch.float32)


def mamba(mode: str = "align", block_size: int = BLOCK, drafted: int = 0) -> Any:
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(
        block_size=block_size,
        shapes=((2, 4),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_speculative_blocks=drafted,
    )


LAYOUTS: dict[str, dict[str, Any]] = {
    "window": {"specs": [full_attention(BLOCK), sliding(40)]},
    "window of one block": {"specs": [full_attention(BLOCK), sliding(16)]},
    "windows first": {"specs": [sliding(40), sliding(40), full_attention(BLOCK)]},
    "two windows": {"specs": [full_attention(BLOCK), sliding(33), sliding(80)]},
    "two of full attention": {"specs": [full_attention(BLOCK), wider()]},
    "recurrent": {"specs": [full_attention(BLOCK), mamba()]},
    "window and recurrent": {"specs": [full_attention(BLOCK), sliding(40), mamba()]},
    "draft model": {"eagle": True},
}
if "all" in get_args(MambaCacheMode):  # up to 0.31 or so a state may be kept of every block
    LAYOUTS["recurrent, all states"] = {"specs": [full_attention(BLOCK), mamba("all")]}
if LOOKS_AHEAD:
    AHEAD = {"eagle": True, "ahead": True}
    LAYOUTS["draft model, hashes ahead"] = AHEAD
    LAYOUTS["draft model and window, hashes ahead"] = {"specs": [full_attention(BLOCK), sliding(40)], **AHEAD}
    LAYOUTS["draft model and recurrent, hashes ahead"] = {
        "specs": [full_attention(BLOCK), mamba(drafted=1)],
        **AHEAD,
    }
ALIKE = {"two of full attention", "draft model, hashes ahead"}
"""Layouts in which a match is worth what full attention has."""


class InGroups(Comparison):
    """Now and then vLLM is made to evict free blocks here and there, so that groups keep different parts."""

    def __init__(self) -> None:
        super().__init__()
        self.rnd = random.Random(5)

    def __call__(self, stepper: Any, scheduled: Any) -> None:
        pool = stepper.engine.kv_cache_manager.block_pool
        for block in pool.free_block_queue.get_all_free_blocks() if self.rnd.random() < 0.3 else ():
            if block.block_hash is not None and self.rnd.random() < 0.15:
                pool._maybe_evict_cached_block(block)
        super().__call__(stepper, scheduled)

    def saw(self, adapter: Any, name: str, truth: int) -> None:
        super().saw(adapter, name, truth)
        full = sum(map(adapter.mirror._holds, unpack(adapter.planner.tree.key_of(name))))
        self.seen["less than full attention has"] += truth < full * adapter.mirror.unit_tokens


@pytest.mark.parametrize("policy", ["clpm+gm+dl+pe", "peek"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_mirror_equals_vllms_own_answer(name: str, policy: str) -> None:
    compare = InGroups()
    layout = LAYOUTS[name]
    room = 1 + len(layout.get("specs", ()))

    @settings(max_examples=40)
    @given(plays(talk="eagle" not in layout))  # else the fake worker and stock vLLM part ways
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        perform(play, {"policy": policy, "strict": True}, each_step=compare, room=room, **layout)

    history()
    assert compare.seen["cached"] > 50
    assert compare.seen["cold"] > 50
    if name not in ALIKE:
        assert compare.seen["less than full attention has"] > 5, "full attention alone would do"


# -- literal cases -------------------------------------------------------------------------------------


def waiting_behind(engine: Any, prompts: dict[str, list[int]]) -> dict[str, int]:
    """What the adapter expects in the cache for prompts that wait, each as vLLM itself says."""
    engine.max_num_running_reqs = 0
    for name, tokens in prompts.items():
        engine.add_request(make_request(name, tokens, 1, ahead=hash_lookahead(engine)))
    engine.peek.adapter.sync()
    expected = matched(engine)
    assert expected == {name: cached_now(engine, engine.requests[name]) for name in prompts}
    return expected


def test_a_fork_where_only_the_longer_branch_can_go_on() -> None:
    """A window that has gone from the fork: the sibling starts anew, the next round does not."""
    engine = scheduler(num_blocks=200, specs=[full_attention(BLOCK), sliding(16)])
    trunk, branch = [5] * 64, [6] * 64
    engine.add_request(make_request("first", trunk + branch + [1], 1))
    step(engine)
    pool = engine.kv_cache_manager.block_pool
    for block in pool.free_block_queue.get_all_free_blocks():
        key = block.block_hash
        if key is not None and bytes(key[-4:]) == bytes([0, 0, 0, 1]):
            hashes = make_request("x", trunk + branch + [1]).block_hashes
            if hashes.index(key[:-4]) < 6:
                pool._maybe_evict_cached_block(block)
    prompts = {
        "sibling": [*trunk, *[7] * 64],
        "next round": [*trunk, *branch, *[8] * 64],
        "at the fork": [*trunk, 9],
        "half a branch": [*trunk, *branch[:48], *[9] * 40],
    }
    assert waiting_behind(engine, prompts) == {
        "sibling": 0,
        "next round": 128,
        "at the fork": 0,
        "half a branch": 112,
    }


def test_eight_requests_of_a_model_with_a_window() -> None:
    """The worked check: three tenants take turns, the cache holds one prompt of both groups."""
    cached = []
    for options in (None, STRICT):
        engine = scheduler(
            options=options, num_blocks=42, max_num_seqs=1, specs=[full_attention(BLOCK), sliding(64)]
        )
        for i in range(8):
            engine.add_request(make_request(f"r{i}", [5 + i % 3] * 256 + [100 + i] * 32, 3))
        total = 0
        while engine.has_unfinished_requests():
            total += sum(new.num_computed_tokens for new in step(engine).scheduled_new_reqs)
        cached.append(total)
    assert cached[0] == 0
    assert cached[1] == 1280


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_blocks_that_are_spread_over_ranks(shards: int) -> None:
    """Decode context parallelism: a block holds `shards` times its tokens."""
    engine = scheduler(num_blocks=200, shards=shards)
    prompt = [5] * 256
    engine.add_request(make_request("first", [*prompt, 1], 1, BLOCK * shards))
    step(engine)
    engine.max_num_running_reqs = 0
    for i in range(2):
        engine.add_request(make_request(f"r{i}", [*prompt, 2 + i], 1, BLOCK * shards))
    engine.peek.adapter.sync()
    assert matched(engine) == {"r0": 256, "r1": 256}
    assert [cached_now(engine, engine.requests[name]) for name in ("r0", "r1")] == [256, 256]
    assert engine.peek.adapter.mirror.unit_tokens == BLOCK * shards


# -- where it stands aside -----------------------------------------------------------------------------


def chunked(block_size: int = BLOCK) -> Any:
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec

    return ChunkedLocalAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, attention_chunk_size=64
    )


ASIDE: dict[str, tuple[dict[str, Any], str]] = {
    "window alone": (
        {"specs": [sliding(64)]},
        "none of the model's KV cache groups is one of full attention (SlidingWindowManager)",
    ),
    "local chunks": (
        {"specs": [full_attention(BLOCK), chunked()]},
        "a KV cache group is matched by ChunkedLocalAttentionManager, which the adapter does not know",
    ),
    "draft model and window": (
        {"specs": [full_attention(BLOCK), sliding(64)], "eagle": True},
        "a draft model shares the prefix cache with 2 KV cache groups",
    ),
}


@pytest.mark.parametrize("name", ASIDE)
def test_what_is_not_known_is_left_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    layout, reason = ASIDE[name]
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(num_blocks=200, max_num_seqs=1, **layout)
    assert engine.peek.adapter is None
    (line,) = [record.getMessage() for record in caplog.records if record.name == "peek"]
    assert line.startswith(f"peek: stands aside, stock order: {reason}; vllm ")
    interleaved(engine)
    assert len(run_out(engine)) == 6


def test_prefix_caching_off_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(num_blocks=200, caching=False)
    assert engine.peek.adapter is None
    assert "peek: stands aside, stock order: prefix caching is off; " in caplog.text
    for i in range(4):
        engine.add_request(make_request(f"r{i}", A, 2, hashed=False))
    assert len(run_out(engine)) == 4


def test_blocks_of_different_sizes_are_left_alone() -> None:
    from peek.adapters.vllm.seams import why_not_understood

    engine = scheduler(num_blocks=200, specs=[full_attention(BLOCK), sliding(64)])
    engine.kv_cache_manager.coordinator.single_type_managers[1].block_size = 2 * BLOCK
    assert "blocks of different sizes: 16, 32" in str(why_not_understood(engine))
