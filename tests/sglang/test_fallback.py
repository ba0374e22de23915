"""Stock when not asked, SGLang's own order after an internal error, stand-asides, eviction by demand."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from sglang_lab import CORES, leaked, make_request, make_world
from sglang_plays import Play, check_outcome, perform, plays
from sglang_small import attach
from sglang_stepper import Stepper
from support.broken import Broken

from peek import EngineMismatch, InvalidConfig
from peek.adapters.sglang import plugin

A, B = list(range(100, 164)), list(range(200, 264))


PLANNER = ("remove", "plan", "prefilled", "eviction_score")
VIEW = ("root", "advance", "node_id")


def busy_run(label: str | None, method: str = "", after: int = 0, **more: Any) -> Any:
    """Sharing, pressure and an abort; (order of admission, attachment, world)."""
    world = make_world(420, max_running=4)
    beside = attach(world, label, **more) if label else None
    if method:
        target = "view" if method in VIEW else "planner"
        setattr(beside.adapter, target, Broken(getattr(beside.adapter, target), method, after))
    stepper = Stepper(world, max_running=4)
    for i in range(12):
        stepper.add(make_request(f"r{i}", (A, B)[i % 2] + [300 + i] * 20, 12, arrival=1.0 + i))
    for _ in range(3):
        stepper.step()
    stepper.abort("r11")
    stepper.run_out()
    assert leaked(world) == 0
    assert all(record.finished or record.aborted for record in stepper.records.values())
    return [admission.rid for admission in stepper.admissions], beside, world


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("method", [*PLANNER, *VIEW])
def test_an_internal_error_leaves_the_engine_serving(
    method: str, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    # eviction asks for node ids and scores; the in-flight gate tells of ended prefills
    label = "peek" if method == "prefilled" else "clpm+gm+dl+pe"
    with caplog.at_level(logging.WARNING, "peek"):
        order, beside, world = busy_run(label, method, after, strict=False)
    assert {f"r{i}" for i in range(11)} <= set(order)
    assert (beside.shield.active, beside.shield.fallbacks) == (False, 1)
    (record,) = [record for record in caplog.records if record.name == "peek"]
    assert "continues in the engine's own order" in record.getMessage()
    assert f"injected into {method}" in str(record.exc_info[1])
    world.policy.calc_priority([])
    strategy = getattr(world.tree, "tree_core", world.tree).eviction_strategy
    assert type(strategy).__module__.startswith("sglang")


def test_after_an_error_the_order_is_the_stock_order() -> None:
    assert busy_run("clpm+gm+dl+pe", "plan", strict=False)[0] == busy_run(None)[0]


@pytest.mark.parametrize("method", ["add", "remove", "plan", "advance"])  # add: not put in quarantine
def test_strict_raises(method: str) -> None:
    with pytest.raises(RuntimeError, match=f"injected into {method}"):
        busy_run("clpm+gm+dl+pe", method)


# -- activation ----------------------------------------------------------------------------------------


def test_not_asked_for_registers_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEEK_POLICY", raising=False)
    assert plugin.configured() is None
    plugin.register()


def test_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "peek")
    settings = plugin.configured()
    assert settings is not None
    assert settings.config.policy == "peek"


def test_a_mistake_in_the_settings_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "peak")
    with pytest.raises(InvalidConfig, match="peak"):
        plugin.configured()
    with pytest.raises(SystemExit, match="peak"):  # SGLang logs any other and serves on
        plugin.register()


@settings(max_examples=25)
@given(play=plays(priority=True))
def test_nothing_shared_and_nothing_cached_is_the_stock_schedule(play: Play) -> None:
    """Every prompt starts with a token of its own; who is retracted would hit what it left."""
    jobs = [
        SimpleNamespace(**{**vars(job), "prompt": job.prompt, "request": Alone(job)}) for job in play.jobs
    ]
    alone = Play(**{**vars(play), "jobs": jobs})
    stock = perform(alone)
    assume(stock.retractions == 0)
    mine = perform(alone, lambda stepper: attach(stepper.world, "peek", unshared="arrival"))
    check_outcome(alone, mine)
    assert mine.batches == stock.batches


class Alone:
    """`Job.request` with another first token for each request."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def __call__(self, rid: str, number: int, with_priority: bool) -> Any:
        request = self.job.request(rid, number, with_priority)
        request.origin_input_ids[0] = 1000 + number
        return request


# -- standing aside ------------------------------------------------------------------------------------


def test_it_stands_aside_without_a_cache(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000)
    world.tree.disable = True
    with caplog.at_level(logging.WARNING, "peek"):
        beside = attach(world, "peek")
    assert beside.adapter is None
    assert "prefix caching is off" in caplog.text
    queue = [make_request(f"r{i}", (A, B)[i % 2]) for i in range(4)]
    world.policy.calc_priority(queue)
    assert [request.rid for request in queue] == ["r0", "r1", "r2", "r3"]


def test_an_unknown_cache_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000)
    world.policy.tree_cache = type("ChunkCache", (), {"disable": False, "page_size": 1})()
    with caplog.at_level(logging.WARNING, "peek"):
        assert attach(world, "peek").adapter is None
    assert "ChunkCache" in caplog.text


# -- eviction ------------------------------------------------------------------------------------------


def survives(core: str | None, label: str | None = None, **more: Any) -> int:
    """Cached tokens of a request that waits for a seat while others push its prefix out."""
    world = make_world(300, core=core, max_running=1)
    if label:
        attach(world, label, **more)
    stepper = Stepper(world, max_running=1)
    stepper.add(make_request("first", [*A, 1], 1, arrival=1.0))
    stepper.run_out()
    for i in range(4):
        own = [1000 * (i + 1) + j for j in range(90)]
        stepper.add(make_request(f"burst{i}", own, 1, arrival=2.0 + i))
    stepper.add(make_request("last", [*A, 2], 1, arrival=9.0))
    stepper.run_out()
    assert leaked(world) == 0
    return int(stepper.records["last"].admissions[0].prefix_len)


@pytest.mark.parametrize("core", CORES)
def test_a_prefix_that_the_queue_needs_survives_a_burst(core: str | None) -> None:
    assert survives(core) == 0
    assert survives(core, "fcfs+pe") == len(A)
    assert survives(core, "peek") == len(A)  # nothing waiting is shared, but who hits goes first


@pytest.mark.parametrize("name", ["enable_priority_scheduling", "priority_sign"])
def test_a_version_that_lacks_something_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000)
    delattr(world.policy, name)
    with pytest.raises(EngineMismatch, match=f"SchedulePolicy has no {name}"):
        attach(world, "peek")
    assert attach(world, "peek", strict=False).adapter is None
    assert name in caplog.text
