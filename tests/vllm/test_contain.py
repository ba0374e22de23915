"""A request that cannot be translated keeps its own place; the others are planned as if it were not there."""

from __future__ import annotations

import logging
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken import Broken
from vllm_lab import RequestStatus, expected_tokens, free_blocks, make_request, make_scheduler, waiting_names
from vllm_small import A, B, run_out, step

from peek import InvalidKey
from peek.adapters.vllm import PeekScheduler

LENIENT = {"policy": "peek"}


def no_hash_at(position: int, request: Any) -> Any:
    request.block_hashes[position] = None
    return request


def bad_requests(name: str, tokens: list[int]) -> dict[str, Any]:
    """One request a kind of trouble."""
    return {
        "no finite arrival": make_request(name, tokens, 2, arrival_time=nan),
        "endless arrival": make_request(name, tokens, 2, arrival_time=inf),
        "first block has no hash": no_hash_at(0, make_request(name, tokens, 2)),
        "a later block has no hash": no_hash_at(2, make_request(name, tokens, 2)),
    }


KINDS = sorted(bad_requests("x", A))


def seats_taken(options: Any = LENIENT) -> Any:
    engine = make_scheduler(PeekScheduler, num_blocks=400, max_num_seqs=1, options=options)
    engine.add_request(make_request("running", [3] * 40, 30))
    step(engine)
    return engine


def planned_order(names: list[str], bad: dict[int, Any]) -> tuple[Any, list[str]]:
    """The queue after planning, with a bad request in front of the good one of each number."""
    engine = seats_taken()
    for i, name in enumerate(names):
        if i in bad:
            engine.waiting.add_request(bad[i])
        engine.add_request(make_request(name, (A, B)[i % 2] + [20 + i] * 8, 2, arrival_time=float(i)))
    engine.max_num_running_reqs = 2
    engine.peek.adapter.clock = lambda: 100.0
    engine.peek.adapter.before_schedule()
    return engine, waiting_names(engine)


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 7), st.sampled_from(KINDS), max_size=4))
def test_the_order_of_the_others_is_unchanged(kinds: dict[int, str]) -> None:
    names = [f"{'AB'[i % 2]}{i}" for i in range(8)]
    _, undisturbed = planned_order(names, {})
    assert undisturbed != names
    bad = {i: bad_requests(f"bad{i}", [60 + i] * 64)[kind] for i, kind in kinds.items()}
    engine, order = planned_order(names, bad)
    assert [name for name in order if not name.startswith("bad")] == undisturbed
    adapter = engine.peek.adapter
    # shares nothing, so one with a good first hash is known by that alone
    apart = {i for i, kind in kinds.items() if kind != "a later block has no hash"}
    assert {i for i in kinds if f"bad{i}" in adapter.quarantine} == apart
    for rank, i in enumerate(sorted(kinds)):
        if i in apart:
            assert order[i + rank] == f"bad{i}", "out of its place"
    assert (adapter.quarantine.total, engine.peek.shield.fallbacks) == (len(apart), 0)
    assert engine.peek.shield.active


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_it(kind: str) -> None:
    engine = seats_taken()
    for i in range(3):
        bad = bad_requests(f"bad{i}", [*A, i])[kind]
        engine.waiting.add_request(bad)
        engine.requests[bad.request_id] = bad
    engine.add_request(make_request("good", [*A, 9], 2))
    engine.add_request(make_request("better", [*A, 8], 2))
    engine.peek.adapter.before_schedule()
    adapter = engine.peek.adapter
    assert sorted(adapter._keys) == ["better", "good"]
    assert (adapter.quarantine.total, len(adapter.quarantine)) == (3, 3)
    engine.finish_requests([f"bad{i}" for i in range(3)], RequestStatus.FINISHED_ABORTED)
    tokens = run_out(engine)
    assert tokens["good"] == expected_tokens("good", 65, 2)
    assert len(adapter.mirror) == 0 == len(adapter.planner) == len(adapter.quarantine)
    assert adapter.planner.stats.admitted == 3  # with the one that was running
    assert free_blocks(engine) == 399
    assert engine.peek.shield.active


def test_it_is_named_once_and_without_its_prompt(caplog: pytest.LogCaptureFixture) -> None:
    engine = seats_taken()
    with caplog.at_level(logging.WARNING, "peek"):
        for i in range(5):
            engine.add_request(make_request(f"bad{i}", [7] * 40, 2, arrival_time=nan))
        step(engine)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "peek"]
    assert "'bad0' keeps its own place" in line
    assert "InvalidKey" in line
    assert "nan" not in line
    assert engine.peek.adapter.quarantine.total == 5
    assert set(run_out(engine)) >= {f"bad{i}" for i in range(5)}, "served all the same"


def test_strict_raises() -> None:
    engine = seats_taken({"policy": "peek", "strict": True})
    engine.add_request(make_request("bad", A, 2, arrival_time=nan))
    with pytest.raises(InvalidKey, match="arrival_time"):
        engine.schedule()


def test_negative_tokens_are_planned_like_others() -> None:
    # vLLM hashes whatever it is given, and a hash is all that is looked at.
    engine = seats_taken()
    for i in range(4):
        engine.add_request(make_request(f"r{i}", [-1 - i % 2] * 64 + [i], 2))
    engine.max_num_running_reqs = 2
    engine.peek.adapter.before_schedule()
    assert len(engine.peek.adapter.planner) == 4
    assert engine.peek.adapter.planner.tree.has_sharing
    assert engine.peek.adapter.quarantine.total == 0


@pytest.mark.parametrize("method", ["add", "extend", "intern", "intern_all", "alone"])
def test_whatever_fails_in_translating_does_not_trip_the_shield(method: str) -> None:
    engine = make_scheduler(PeekScheduler, num_blocks=100, options=LENIENT)
    adapter = engine.peek.adapter
    if method in ("add", "extend"):
        adapter.planner = Broken(adapter.planner, method, 1)
    else:
        adapter.mirror = Broken(adapter.mirror, method, 1)
        adapter._watch._mirror = adapter.mirror
        adapter._watch._table = None
    for i in range(4):
        for name, tokens in (("a", [*A, i]), ("b", [*B, i]), ("short", [i])):
            engine.add_request(make_request(f"{name}{i}", tokens, 1))
    assert len(run_out(engine)) == 12
    assert adapter.quarantine.total > 0
    assert (engine.peek.shield.active, engine.peek.shield.fallbacks) == (True, 0)
    assert len(adapter.planner) == 0 == len(adapter.mirror)


def test_a_planning_error_still_trips_it() -> None:
    engine = make_scheduler(PeekScheduler, num_blocks=100, options=LENIENT)
    engine.peek.adapter.planner = Broken(engine.peek.adapter.planner, "lazy_plan", 0)
    for i in range(4):
        engine.add_request(make_request(f"r{i}", [*A, i], 1))
    assert len(run_out(engine)) == 4
    assert engine.peek.shield.fallbacks == 1
