"""KV that comes from elsewhere: who waits for it has been admitted, at the cost of what is not loaded."""

from __future__ import annotations

from typing import Any

import pytest
from far_away import FarAway
from vllm_lab import RequestStatus, fake_output, free_blocks, make_request, make_vllm_config, queued
from vllm_small import STRICT, A, B, scheduler


def engine_with_loads(monkeypatch: pytest.MonkeyPatch, late: bool, count: int, **options: Any) -> Any:
    """An engine for which `count` requests wait, of two prompts in turns."""
    from vllm.config import KVTransferConfig

    monkeypatch.setattr(FarAway, "late", late)
    config = make_vllm_config(max_num_seqs=2, options={**STRICT, **options})
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="FarAway", kv_connector_module_path="far_away", kv_role="kv_both"
    )
    engine = scheduler(config=config, num_blocks=200)
    for i in range(count):
        engine.add_request(make_request(f"{'AB'[i % 2]}{i}", (A, B)[i % 2] + [20 + i] * 8, 3))
    return engine


def step(engine: Any, loads_end: bool = True) -> Any:
    from vllm.v1.outputs import KVConnectorOutput

    scheduled = engine.schedule()
    output = fake_output(engine, scheduled)
    arrived = loading(engine) - engine.finished_recving_kv_req_ids if loads_end else set()
    output.kv_connector_output = KVConnectorOutput(finished_recving=arrived)
    engine.update_from_output(scheduled, output)
    return scheduled


def loading(engine: Any) -> set[str]:
    return {r.request_id for r in queued(engine) if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS}


def test_a_load_that_takes_its_time_is_an_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_loads(monkeypatch, late=True, count=6)
    stats = engine.peek.adapter.planner.stats
    step(engine, loads_end=False)
    assert loading(engine)
    assert stats.admitted == len(loading(engine))
    assert stats.uncached_admitted == stats.admitted * (72 - 32)
    known: set[str] = set()
    for _ in range(200):
        if not engine.has_unfinished_requests():
            break
        assert not loading(engine) & set(engine.peek.adapter._keys)
        known |= loading(engine)
        step(engine)
    assert not engine.requests
    assert len(known) == 6
    assert (stats.admitted, stats.withdrawn) == (6, 0)
    assert stats.prompt_tokens == 6 * 72
    assert stats.uncached_admitted == 6 * 72 - engine.peek.adapter.cached_real
    assert len(engine.peek.adapter.mirror) == 0
    assert free_blocks(engine) == 199


def test_a_load_at_once_is_an_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_loads(monkeypatch, late=False, count=6)
    while engine.has_unfinished_requests():
        step(engine)
    stats = engine.peek.adapter.planner.stats
    assert (stats.admitted, stats.withdrawn) == (6, 0)
    assert stats.uncached_admitted == 6 * 72 - engine.peek.adapter.cached_real
    # the first two find 32 tokens elsewhere, their siblings 64 here
    assert engine.peek.adapter.cached_real == 2 * 32 + 4 * 64


def test_lanes_are_charged_for_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_loads(monkeypatch, late=True, count=8, policy="lpm-nolimit+lru", lanes="work")
    charged: list[tuple[str, int]] = []
    adapter = engine.peek.adapter
    stock_remove = adapter.planner.remove

    class Listening:
        def __getattr__(self, name: str) -> Any:
            return getattr(planner, name)

        def __len__(self) -> int:
            return len(planner)

        def remove(self, request_id: str, admitted: bool, cost: int | None) -> int:
            charged.append((request_id, stock_remove(request_id, admitted, cost)))
            return charged[-1][1]

    planner, adapter.planner = adapter.planner, Listening()
    for _ in range(100):
        step(engine)
    assert [cost for _, cost in charged[:2]] == [40, 40]
    assert len(charged) == 8
    assert planner.stats.fair_admitted > 0


def test_a_load_that_is_aborted_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_loads(monkeypatch, late=True, count=2)
    step(engine, loads_end=False)
    gone = sorted(loading(engine))
    assert gone == ["A0", "B1"]
    engine.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
    for _ in range(5):
        step(engine, loads_end=False)
    assert not engine.has_unfinished_requests()
    stats = engine.peek.adapter.planner.stats
    assert (stats.admitted, stats.withdrawn) == (2, 0)
