"""The mirror of cached blocks against vLLM's own `get_computed_blocks`, request by request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from support.plays import Play
from vllm_lab import RequestStatus, cached_now, make_request, make_scheduler, waiting_names
from vllm_plays import INTERLEAVED, perform, plays
from vllm_small import Comparison, matched, run_out, step

from peek.adapters.vllm import PeekScheduler

STRICT = {"policy": "clpm+gm+dl+pe", "strict": True}


ASIDE = {"policy": "peek", "unshared": "arrival"}
"""It leaves a queue alone in which nothing is shared."""


def scheduler(**more: Any) -> Any:
    return make_scheduler(PeekScheduler, options=STRICT, **more)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", ["clpm+gm+dl+pe", "peek:unshared=arrival"])
def test_mirror_equals_the_pool(asynchronous: bool, policy: str) -> None:
    compare = Comparison()

    @settings(max_examples=60)
    @given(plays(priority=True))
    @example(INTERLEAVED)
    def history(play: Play) -> None:
        perform(play, {"policy": policy, "strict": True}, overlap=asynchronous, each_step=compare)

    history()
    assert compare.seen["cached"] > 50
    assert compare.seen["cold"] > 50


def test_version_stands_still_when_nothing_relevant_changes() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [9] * 40, 200))
    step(engine)
    for name in ("a", "b"):
        engine.add_request(make_request(name, [7] * 48 + [ord(name)] * 8, 4))
    step(engine)
    version = engine.peek.adapter.mirror.version
    for _ in range(60):  # the running request fills blocks of its own
        step(engine)
    assert engine.peek.adapter.mirror.version == version
    engine.finish_requests("running", RequestStatus.FINISHED_ABORTED)
    step(engine)  # "a" is admitted, its blocks are those of "b"
    assert engine.peek.adapter.mirror.version > version


def test_symbols_are_released_and_used_again() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [9] * 40, 500))
    step(engine)
    mirror = engine.peek.adapter.mirror
    for i in range(50):
        engine.add_request(make_request(f"x{i}", [100 + i] * 64, 1))
        step(engine)
        assert len(mirror) == 1  # nobody shares it, nothing of it is cached
        engine.add_request(make_request(f"y{i}", [100 + i] * 64, 1))
        step(engine)
        assert len(mirror) == 3  # the block that ends a prompt is of no use
        for name in (f"x{i}", f"y{i}"):
            engine.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    step(engine)
    assert len(mirror) == 0
    assert len(mirror._keys) <= 8, "numbers are not used again"


def standing_aside() -> Any:
    return make_scheduler(PeekScheduler, num_blocks=200, max_num_seqs=2, options=ASIDE)


def add(engine: Any, name: str, tokens: list[int], most: int = 1) -> None:
    engine.add_request(make_request(name, tokens, most))


def test_what_changes_while_nothing_is_shared() -> None:
    engine = standing_aside()
    for name in ("a", "b"):  # takes the seats, is the prefix of nobody waiting
        add(engine, name, [ord(name)] * 100, 60)
        add(engine, f"{name}2", [ord(name)] * 100)
    for _ in range(3):
        step(engine)
    engine.finish_requests("b2", RequestStatus.FINISHED_ABORTED)
    for _ in range(10):
        step(engine)
    assert not engine.peek.adapter.planner.tree.has_sharing
    add(engine, "later", [7] * 100)
    step(engine)
    engine.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    step(engine)
    step(engine)
    add(engine, "again", [7] * 100)
    for i in (3, 4):
        add(engine, f"a{i}", [ord("a")] * 100 + [i])
    engine.peek.adapter.sync()
    cached = matched(engine)
    assert cached == {name: cached_now(engine, engine.requests[name]) for name in cached}
    assert cached["a3"] == cached["a4"] == 96


def test_while_nothing_is_shared_an_arrival_that_hits_is_noticed() -> None:
    engine = standing_aside()
    for name, tokens in (("a", 20), ("b", 60)):
        add(engine, name, [ord(name)] * 100, tokens)
    for _ in range(6):
        step(engine)
    add(engine, "new", [7] * 100)  # shares nothing, hits nothing
    step(engine)
    add(engine, "next round", [ord("a")] * 100 + [1] * 20)  # shares nothing, hits
    assert not engine.peek.adapter.planner.tree.has_sharing
    engine.peek.adapter.sync()
    assert matched(engine) == {"new": 0, "next round": 96}
    for _ in range(60):
        if "next round" not in waiting_names(engine):
            break
        step(engine)
    assert waiting_names(engine) == ["new"]
    run_out(engine)


def test_a_reset_of_the_prefix_cache_makes_a_new_table() -> None:
    engine = standing_aside()
    for name in ("a1", "a2", "b"):
        add(engine, name, [ord(name[0])] * 100, 3)
    run_out(engine)
    assert engine.reset_prefix_cache()
    step(engine)
    add(engine, "a3", [ord("a")] * 100, 30)
    step(engine)
    add(engine, "a4", [ord("a")] * 100)
    engine.peek.adapter.sync()
    assert matched(engine) == {"a4": 96} == {"a4": cached_now(engine, engine.requests["a4"])}


def test_pooling_requests() -> None:
    engine = scheduler(num_blocks=200, max_num_seqs=8)
    engine.add_request(make_request("first", [5] * 97, 1))
    step(engine)
    engine.add_request(make_request("reads", [5] * 97, pooling=True))
    engine.add_request(make_request("skips", [5] * 97, pooling=True, skip_reading=True))
    engine.add_request(make_request("other", [6] * 97, pooling=True))
    engine.peek.adapter.before_schedule()
    cached = matched(engine)
    assert cached == {"reads": 96, "skips": 0, "other": 0}
    assert cached == {name: cached_now(engine, engine.requests[name]) for name in cached}
    output = engine.schedule()
    assert {new.req_id for new in output.scheduled_new_reqs} == set(cached)
    assert engine.peek.adapter.planner.stats.admitted == 4


def test_an_id_that_comes_back_with_another_prompt() -> None:
    # compares ids only.  Mirror and tree then speak of the old prompt.
    engine = scheduler(num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("running", [9] * 96, 100))
    step(engine)
    engine.add_request(make_request("x", [5] * 96, 1))
    engine.add_request(make_request("y", [5] * 96, 1))
    step(engine)
    engine.finish_requests("x", RequestStatus.FINISHED_ABORTED)
    engine.add_request(make_request("x", [9] * 97, 1))
    engine.peek.adapter.before_schedule()
    cached = matched(engine)
    assert cached["x"] == cached_now(engine, engine.requests["x"]) == 96
