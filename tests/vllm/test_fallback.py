"""Stock when not asked, stock order after an internal error, an error for a mistake in the settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from vllm_lab import make_request, make_scheduler, make_vllm_config, waiting_names
from vllm_plays import Play, check_outcome, essence, perform, plays
from vllm_small import assert_stock_objects, busy_run, interleaved, pressed, run_out, sabotage, step

from peek import EngineMismatch, InvalidConfig, PeekConfig
from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

A, B = [5] * 64, [9] * 64


def outputs(play: Play, policy: Any, **more: Any) -> list[dict[str, Any]]:
    outcome = perform(play, policy, **more)
    check_outcome(play, outcome)
    return [essence(scheduled) for scheduled in outcome.outputs]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@settings(max_examples=25)
@given(play=plays())
def test_not_asked_for_is_the_same_schedule(play: Play, asynchronous: bool) -> None:
    stock = outputs(play, None, asynchronous=asynchronous, stock=True)
    assert outputs(play, None, asynchronous=asynchronous) == stock


def test_not_asked_for_changes_nothing_on_the_instance() -> None:
    engine = make_scheduler(PeekScheduler)
    pool = engine.kv_cache_manager.block_pool
    assert engine.peek.adapter is None
    assert type(pool.free_block_queue).__name__ == "FreeKVCacheBlockQueue"
    assert type(pool.cached_block_hash_to_block).__name__ == "BlockHashToBlockMap"
    assert type(engine.waiting).__name__ == "FCFSRequestQueue"


def test_not_asked_for_writes_no_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PEEK_METRICS_DIR", str(tmp_path / "series"))
    make_scheduler(PeekScheduler)
    assert not (tmp_path / "series").exists()
    make_scheduler(PeekScheduler, options={"policy": "peek"})
    assert len(list((tmp_path / "series").iterdir())) == 3


# -- activation ----------------------------------------------------------------------------------------


def test_activation_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "clpm+gm+dl+pe")
    engine = make_scheduler(PeekScheduler)
    assert engine.peek.adapter.planner.config == PeekConfig.from_label("clpm+gm+dl+pe")


def test_activation_by_the_papers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLPM", "CLPM_GROUP_MAJOR", "EVICTION"):
        monkeypatch.setenv(f"PEEK_ONLINE_{name}", "1")
    config = make_scheduler(PeekAsyncScheduler, asynchronous=True).peek.adapter.planner.config
    assert (config.policy, config.lanes.lanes, config.eviction) == ("clpm+gm", "cycle", "cluster")


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "fcfs+pe")
    engine = make_scheduler(PeekScheduler, options={"policy": "peek", "fair_share": 0.2})
    assert engine.peek.adapter.planner.config == PeekConfig(options={"fair_share": 0.2})
    assert make_scheduler(PeekScheduler, options={}).peek.adapter.planner.config == PeekConfig.from_label(
        "fcfs+pe"
    )


@pytest.mark.parametrize("policy", ["fcfs+lru"])
def test_asking_for_stock_is_stock(policy: str) -> None:
    assert make_scheduler(PeekScheduler, options={"policy": policy}).peek.adapter is None


@pytest.mark.parametrize(
    "options",
    [{"policy": "peak"}, {"polcy": "peek"}, {"policy": "peek", "fair_share": 2}, {"strict": "yes"}],
)
def test_invalid_options_are_errors_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        make_scheduler(PeekScheduler, options=options)


@pytest.mark.parametrize("options", ["peek", ["peek"], True, 7])
def test_options_that_are_no_object(options: object) -> None:
    with pytest.raises(InvalidConfig, match="peek"):
        make_scheduler(PeekScheduler, options=options)


@pytest.mark.parametrize(("name", "value"), [("PEEK_POLICY", "peak"), ("PEEK_ONLINE_CLMP", "1")])
def test_invalid_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfig):
        make_scheduler(PeekScheduler)


def test_configs_share_nothing() -> None:
    config = make_vllm_config(options={"policy": "peek"})
    first, second = (make_scheduler(PeekScheduler, config=config) for _ in range(2))
    assert first.peek.adapter.planner is not second.peek.adapter.planner
    assert first.peek.shield is not second.peek.shield


def test_one_that_is_not_there_stops_the_engine() -> None:
    with pytest.raises(InvalidConfig, match="no_such_module:Policy"):
        make_scheduler(PeekScheduler, options={"policy": "no_such_module:Policy"})


def test_what_only_the_adapter_knows_is_refused() -> None:
    """With the gate on, and nobody to end prefills, requests stayed in flight for ever."""
    with pytest.raises(InvalidConfig, match="'in_flight_gate' is not a setting of a policy"):
        make_scheduler(PeekScheduler, options={"policy": "peek", "in_flight_gate": True})


# -- internal errors -----------------------------------------------------------------------------------


def test_an_error_when_the_table_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_scheduler(PeekScheduler, num_blocks=100, options={"policy": "peek"})
    sabotage(engine, "reset", 0)
    engine.reset_prefix_cache()
    for i in range(3):
        engine.add_request(make_request(f"r{i}", [*A, i], 1))
        engine.add_request(make_request(f"short{i}", [i], 1))
    scheduled = engine.schedule()
    assert [new.req_id for new in scheduled.scheduled_new_reqs] == [
        "r0",
        "short0",
        "r1",
        "short1",
        "r2",
        "short2",
    ]
    assert engine.peek.shield.fallbacks == 1
    assert len([record for record in caplog.records if record.name == "peek"]) == 1


def test_an_error_when_a_wanted_block_is_let_go() -> None:
    engine = make_scheduler(PeekScheduler, num_blocks=14, max_num_seqs=1, options={"policy": "peek"})
    sabotage(engine, "block_gone", 0)
    engine.add_request(make_request("first", A, 1))
    run_out(engine)
    engine.add_request(make_request("grows", [7] * 100, 100))
    step(engine)
    for i in range(2):
        engine.add_request(make_request(f"waits{i}", [*A, i], 1))
    run_out(engine)
    assert engine.peek.shield.fallbacks == 1
    assert_stock_objects(engine)


def test_an_error_while_the_adapter_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("peek.adapters.vllm.adapter.tracked_queue", lambda requests: 1 / 0)
    engine = pressed(strict=False)
    assert engine.peek.adapter is None
    assert engine.peek.shield.fallbacks == 1
    assert len([record for record in caplog.records if record.name == "peek"]) == 1
    assert_stock_objects(engine)
    assert "r0" in busy_run(engine)
    with pytest.raises(ZeroDivisionError):
        pressed(strict=True)


def test_an_error_while_the_metrics_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peek.adapters.metrics.export.folder", lambda: 1 / 0)
    assert "r0" in busy_run(pressed(strict=False))


def test_an_error_while_the_stock_objects_are_put_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("peek.adapters.vllm.seams.restore_stock", lambda scheduler: 1 / 0)
    engine = pressed(strict=False)
    sabotage(engine, "lazy_plan", 0)
    assert "r0" in busy_run(engine)
    assert len([record for record in caplog.records if "put back" in record.getMessage()]) == 1


def test_a_version_that_lacks_something_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("peek.adapters.vllm.seams.NEEDED", ("waiting", "kv_cache_manager.no_such_seam"))
    with pytest.raises(EngineMismatch, match=r"PeekScheduler has no kv_cache_manager\.no_such_seam"):
        pressed(strict=True)
    with caplog.at_level(logging.WARNING, "peek"):
        engine = pressed(strict=False)
    assert engine.peek.adapter is None
    assert "no_such_seam" in caplog.text
    assert "r0" in busy_run(engine)


def test_switched_off_the_queue_is_in_the_order_of_entry(tmp_path: Path) -> None:
    control = tmp_path / "control"
    options = {"policy": "peek", "strict": True, "control_file": str(control), "control_every": 1}
    engine = make_scheduler(PeekScheduler, num_blocks=100, max_num_seqs=2, options=options)
    engine.add_request(make_request("runs on", [3] * 40, 60))
    step(engine)
    interleaved(engine)
    entered = waiting_names(engine)
    engine.peek.adapter.before_schedule()
    assert waiting_names(engine) != entered
    control.write_text("off")
    assert engine.peek.working is None
    assert type(engine.waiting).__name__ == "FCFSRequestQueue"
    assert waiting_names(engine) == entered
