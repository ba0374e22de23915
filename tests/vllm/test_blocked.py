"""Requests that cannot run, whatever their place: in no plan, passed over in one go, back when they can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_structured import AnyToken, structured
from vllm_lab import RequestStatus, Scheduler, expected_tokens, fake_output, free_blocks, make_request, queued
from vllm_small import STRICT, run_out, scheduler, step

from peek.adapters.vllm import PeekScheduler

ROWS = st.lists(
    st.tuples(st.sampled_from(["runs", "runs", "grammar", "lora"]), st.integers(0, 2), st.integers(0, 3)),
    min_size=1,
    max_size=24,
)
"""What it waits for, its shared prefix, the step in which it comes."""


def engine_of(cls: Any = PeekScheduler, options: Any = STRICT, **more: Any) -> Any:
    """One LoRA adapter fits, and a request of that called `en` runs for long."""
    engine = scheduler(cls, options=options, **{"num_blocks": 300, "max_num_seqs": 3, **more})
    engine.lora_config = SimpleNamespace(max_loras=1)
    engine.add_request(make_request("runs on", [7] * 20, 400, lora="en"))
    step(engine)
    return engine


def request_of(kind: str, prefix: int, number: int) -> Any:
    name, tokens = f"{kind}{number}", [5 + prefix] * 64 + [100 + number] * 8
    if kind == "grammar":
        return structured(name, tokens, ready=False)
    return make_request(name, tokens, 3, lora="de" if kind == "lora" else None, arrival_time=float(number))


def admitted(engine: Any, rows: list[tuple[int, Any]], steps: int, now: list[float]) -> list[tuple[str, int]]:
    """Who is admitted, and how many tokens are found in the cache for it."""
    found = []
    if engine.peek.adapter is not None:
        engine.peek.adapter.clock = lambda: now[0]
    for at in range(steps):
        now[0] = 100.0 + at
        for due, request in rows:
            if due == at:
                engine.add_request(request)
        scheduled = engine.schedule()
        found += [(new.req_id, new.num_computed_tokens) for new in scheduled.scheduled_new_reqs]
        engine.update_from_output(scheduled, fake_output(engine, scheduled))
    return found


@settings(max_examples=25)
@given(rows=ROWS, policy=st.sampled_from(["peek", "clpm+gm", "fcfs+pe"]))
def test_those_that_can_run_go_as_if_the_others_were_not_there(
    rows: list[tuple[str, int, int]], policy: str
) -> None:
    worlds = []
    for with_blocked in (True, False):
        engine = engine_of(options={**STRICT, "policy": policy})
        made = [
            (due, request_of(kind, prefix, number))
            for number, (kind, prefix, due) in enumerate(rows)
            if with_blocked or kind == "runs"
        ]
        worlds.append((admitted(engine, made, 60, [0.0]), engine, made))
    (found, engine, made), (expected, _, _) = worlds
    assert found == expected
    blocked = {request.request_id for _, request in made if not request.request_id.startswith("runs")}
    assert (
        {request.request_id for request in queued(engine)} == blocked == set(engine.peek.adapter.planner.held)
    )
    assert len(engine.peek.adapter.mirror) == 0, "nothing is translated for those that cannot run"
    for _, request in made:
        if request.request_id.startswith("grammar"):
            request.compiling.set_result(AnyToken())
    engine.finish_requests("runs on", RequestStatus.FINISHED_ABORTED)
    tokens = run_out(engine)
    assert tokens.keys() == blocked
    assert all(tokens[name] == expected_tokens(name, 72, 3) for name in blocked)
    adapter = engine.peek.adapter
    assert (len(adapter.planner), len(adapter.mirror), len(adapter._blocked._held)) == (0, 0, 0)
    assert free_blocks(engine) == 299


@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
@settings(max_examples=20)
@given(
    loras=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=24
    ),
    slots=st.integers(1, 3),
    aborts=st.sets(st.integers(0, 23), max_size=4),
)
def test_adapters_take_turns_and_nobody_is_lost(
    loras: list[tuple[int, int, int]], slots: int, aborts: set[int], priority: bool
) -> None:
    """More LoRA adapters than slots, with room to run for all: everybody gets all of its tokens."""
    engine = scheduler(num_blocks=300, max_num_seqs=8, priority=priority)
    engine.lora_config = SimpleNamespace(max_loras=slots)
    tokens: dict[str, list[int]] = {}
    for at in range(600):
        for number, (lora, due, length) in enumerate(loras):
            if due == at:
                name = f"l{lora}" if lora else None
                engine.add_request(
                    make_request(f"r{number}", [5 + lora] * 40 + [number + 9], length, lora=name)
                )
            if number in aborts and due + 1 == at:
                engine.finish_requests(f"r{number}", RequestStatus.FINISHED_ABORTED)
        scheduled = engine.schedule()
        for batch in engine.update_from_output(scheduled, fake_output(engine, scheduled)).values():
            for output in batch.outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        assert len({r.lora_request.lora_int_id for r in engine.running if r.lora_request}) <= slots
        if at > 5 and not engine.has_unfinished_requests():
            break
    for number, (_, _, length) in enumerate(loras):
        if number not in aborts:
            assert tokens[f"r{number}"] == expected_tokens(f"r{number}", 41, length)
    adapter = engine.peek.adapter
    assert engine.peek.shield.fallbacks == 0
    assert (len(adapter.planner), len(adapter.mirror), len(adapter._blocked._held)) == (0, 0, 0)


@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
@pytest.mark.parametrize("kind", ["lora", "grammar"])
def test_what_is_passed_over_is_neither_planned_nor_told_of_again(kind: str, priority: bool) -> None:
    engine = engine_of(priority=priority)
    now = [0.0]
    admitted(engine, [(0, request_of(kind, i % 3, i)) for i in range(40)], 3, now)
    adapter = engine.peek.adapter
    plans, adapter._place = adapter.planner.totals()["plans"], None  # would raise
    for i in range(40, 44):
        engine.add_request(request_of("runs", i % 2, i))
        adapter._place = type(adapter)._place.__get__(adapter)
        adapter.sync()
        adapter._place = None
        assert len(engine.waiting) == 41, "they are still there"
        admitted(engine, [], 4, now)
    assert adapter.planner.totals()["plans"] == plans, "with one that can run there is nothing to order"
    assert adapter.planner.totals()["waiting"] == 0
    assert adapter.planner.totals()["held"] == 40


def test_after_an_error_they_stand_at_the_head_as_vllm_would_have_them() -> None:
    engine = engine_of(options={"policy": "peek"})
    rows = [(0, request_of("lora" if i % 2 else "runs", 0, i)) for i in range(20)]
    admitted(engine, rows, 2, [0.0])
    engine.peek.adapter.sync = lambda: 1 / 0
    engine.schedule()
    admitted(engine, [], 1, [0.0])
    assert engine.peek.shield.fallbacks == 1
    names = [request.request_id for request in queued(engine)]
    stock = [request.request_id for _, request in rows]
    assert sorted(names) == sorted(set(names) & set(stock)), "nobody twice"
    held = [name for name in stock if name.startswith("lora")]
    assert names[: len(held)] == held


def test_in_shadow_nobody_is_held() -> None:
    engines = [engine_of(cls, options={**STRICT, "mode": "shadow"}) for cls in (PeekScheduler, Scheduler)]
    orders = []
    for engine in engines:
        if isinstance(engine, PeekScheduler):
            rows = [(i % 3, request_of("lora" if i % 3 else "runs", i % 2, i)) for i in range(20)]
            orders.append(admitted(engine, rows, 40, [0.0]))
            assert not engine.peek.adapter.planner.held
    assert [name for name, _ in orders[0]] == [*(f"runs{i}" for i in range(0, 20, 3))]


def test_after_shadow_they_are_passed_over_like_others() -> None:
    engine = engine_of(options={**STRICT, "mode": "shadow"})
    admitted(engine, [(0, request_of("lora", 0, i)) for i in range(4)], 3, [0.0])
    engine.peek._turn("on")
    admitted(engine, [], 2, [0.0])
    engine.peek.adapter._place = None  # would raise
    admitted(engine, [], 2, [0.0])


@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
def test_one_that_leaves_as_it_could_run_leaves_nothing(priority: bool) -> None:
    engine = engine_of(priority=priority)
    for name in ("leaves", "runs off"):
        engine.add_request(make_request(name, [8] * 40, 3, lora="de"))
        step(engine)
    assert set(engine.peek.adapter.planner.held) == {"leaves", "runs off"}
    engine.finish_requests(["runs on", "leaves"], RequestStatus.FINISHED_ABORTED)
    assert run_out(engine).keys() == {"runs off"}
    assert not engine.waiting.held


@pytest.mark.skipif(not hasattr(scheduler(), "skipped_waiting"), reason="there is one queue since 0.31")
def test_an_error_while_passed_over_requests_are_taken_back_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(options={"policy": "peek"})
    apart = type(engine.skipped_waiting)
    passed_over = [request_of("lora", 0, at) for at in range(4)]
    for request in passed_over:
        engine.add_request(request)
    engine.peek.adapter.before_schedule()
    scheduled = PeekScheduler.__bases__[0].schedule(engine)
    engine.update_from_output(scheduled, fake_output(engine, scheduled))
    grammars = [request_of("grammar", 0, at) for at in range(4, 8)]
    for request in grammars:
        engine.add_request(request)
    assert {*engine.skipped_waiting} == {*passed_over, *grammars}
    with monkeypatch.context() as patch:
        patch.setattr(apart, "prepend_requests", lambda self, requests: 1 / 0)
        engine.peek.call(engine.peek.adapter.sync)
    assert engine.peek.shield.fallbacks == 1
    for request in grammars:
        request.compiling.set_result(AnyToken())
    engine.finish_requests("runs on", RequestStatus.FINISHED_ABORTED)
    names = {request.request_id for request in [*grammars, *passed_over]}
    assert run_out(engine).keys() == names
    assert free_blocks(engine) == 299
