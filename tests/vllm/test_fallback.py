"""Stock when not asked, stock order after an internal error, an error for a mistake in the settings."""

from __future__ import annotations

import logging
import re
from functools import reduce
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.alike import in_turns, said
from support.lab import A, Ask
from vllm_lab import Scheduler, make_request, make_scheduler, waiting_names
from vllm_plays import perform, plays
from vllm_small import STRICT, VllmLab, lab, step

from peek import EngineMismatch, InvalidConfig, PeekConfig
from peek.adapters.vllm import PeekScheduler, seams
from peek.adapters.vllm.scheduler import attach
from peek.simulation.cost import chunk_pairs

__all__ = ["lab"]


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "async"])
def test_not_asked_for_is_the_same_schedule(overlap: bool) -> None:
    @settings(max_examples=25)
    @given(plays())
    def history(play: Any) -> None:
        stock = perform(play, None, overlap=overlap, stock=True)
        assert perform(play, None, overlap=overlap).decisions == stock.decisions

    history()


@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("options", [None, {"policy": "fcfs+lru"}])
def test_not_asked_for_changes_nothing(
    options: Any, priority: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PEEK_METRICS_DIR", str(tmp_path / "series"))
    engine = make_scheduler(PeekScheduler, priority=priority, options=options)
    pool = engine.kv_cache_manager.block_pool
    assert engine.peek.adapter is None
    assert type(pool.free_block_queue).__name__ == "FreeKVCacheBlockQueue"
    assert type(pool.cached_block_hash_to_block).__name__ == "BlockHashToBlockMap"
    assert type(engine.waiting).__name__ == ("PriorityRequestQueue" if priority else "FCFSRequestQueue")
    assert not (tmp_path / "series").exists()
    make_scheduler(PeekScheduler, options={"policy": "peek"})
    assert len(list((tmp_path / "series").iterdir())) == 3


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "fcfs+pe")
    engine = make_scheduler(PeekScheduler, options={"policy": "peek", "fair_share": 0.2})
    assert engine.peek.adapter.planner.config == PeekConfig(options={"fair_share": 0.2})
    for nothing in (None, {}):
        engine = make_scheduler(PeekScheduler, options=nothing)
        assert engine.peek.adapter.planner.config == PeekConfig.from_label("fcfs+pe")
    monkeypatch.setenv("PEEK_POLICY", "off")  # whatever else is set
    engine = make_scheduler(PeekScheduler, options={"policy": "peek"})
    assert (engine.peek.adapter, engine.peek.state) == (None, "off")


@pytest.mark.parametrize(
    "options", [{"policy": "peak"}, {"policy": "peek", "in_flight_gate": True}, ["peek"]]
)
def test_a_mistake_is_an_error_at_construction(options: object) -> None:
    with pytest.raises(InvalidConfig):
        make_scheduler(PeekScheduler, options=options)


# -- internal errors -----------------------------------------------------------------------------------


def test_an_error_when_the_table_is_replaced(lab: VllmLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.start(tokens=1600, seats=64, strict=False)
    lab.sabotage("reset", 0)
    lab.scheduler.reset_prefix_cache()
    lab.add(*in_turns())
    lab.stepper.step()
    assert [admission.rid for admission in lab.stepper.admissions] == [ask.name for ask in in_turns()]
    assert lab.beside.shield.fallbacks == len(said(caplog)) == 1


def test_an_error_when_a_wanted_block_is_let_go(lab: VllmLab) -> None:
    lab.start(tokens=208, strict=False)
    lab.sabotage("block_gone", 0)
    lab.add(Ask("first", A))
    lab.stepper.run_out()
    lab.add(Ask("grows", [7] * 100, 100))
    lab.stepper.step()
    lab.add(*[Ask(f"waits{i}", [*A, i]) for i in range(2)])
    lab.stepper.run_out()
    assert lab.beside.shield.fallbacks == 1
    lab.check_stock_objects()


@pytest.mark.parametrize(
    ("broken", "line", "fallbacks"),
    [
        ("peek.adapters.vllm.adapter.tracked_queue", "continues in the engine's own order", 1),
        ("peek.adapters.metrics.export.folder", "metrics are no longer passed on", 0),
        ("peek.adapters.vllm.seams.restore_stock", "could not put back", 1),
    ],
)
def test_an_error_outside_of_a_step(
    broken: str,
    line: str,
    fallbacks: int,
    lab: VllmLab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the adapter or the metrics are made, or the stock objects are put back."""
    monkeypatch.setattr(broken, lambda *_: 1 / 0)
    method = "lazy_plan" if "restore" in broken else ""
    assert "r0" in lab.busy("clpm+gm+dl+pe", method, strict=False).order
    assert lab.beside.shield.fallbacks == fallbacks
    assert sum(line in one for one in said(caplog)) == 1
    if "tracked" in broken:
        lab.check_stock_objects()
        assert lab.adapter is None
        with pytest.raises(ZeroDivisionError):
            lab.start()


def test_a_version_that_lacks_something_is_named(
    lab: VllmLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("peek.adapters.vllm.seams.NEEDED", ("waiting", "kv_cache_manager.no_such_seam"))
    with pytest.raises(EngineMismatch, match=r"PeekScheduler has no kv_cache_manager\.no_such_seam"):
        lab.start()
    with caplog.at_level(logging.WARNING, "peek"):
        assert "r0" in lab.busy("clpm+gm+dl+pe", strict=False).order
    assert lab.adapter is None
    assert "no_such_seam" in caplog.text


@pytest.mark.parametrize("path", seams.NEEDED)
def test_whatever_is_needed_is_missed_by_its_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is read to find out whether this cache is understood."""
    engine = make_scheduler(Scheduler, options=STRICT)
    *way, last = path.split(".")
    owner = reduce(getattr, way, engine)
    places = [owner, *type(owner).__mro__]
    monkeypatch.delattr(next(place for place in places if last in vars(place)), last)
    with pytest.raises(EngineMismatch, match=f"has no {re.escape(path)};"):
        attach(engine, engine.vllm_config)


def test_switched_off_the_queue_is_in_the_order_of_entry(lab: VllmLab, tmp_path: Path) -> None:
    control = tmp_path / "control"
    lab.start_busy(control_file=str(control), control_every=1)
    lab.add(*in_turns())
    entered = [ask.name for ask in in_turns()]
    assert lab.plan() != entered
    control.write_text("off")
    assert lab.beside.working is None
    assert type(lab.scheduler.waiting).__name__ == "FCFSRequestQueue"
    assert waiting_names(lab.scheduler) == entered


# -- requests that cannot be translated ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["endless arrival", "first block has no hash", "a later block has no hash"])
def test_nothing_is_left_of_it(kind: str, lab: VllmLab) -> None:
    """Where a request shares nothing, its first hash is all that is looked at."""
    lab.start_busy(strict=False)

    def bad(name: str, tokens: list[int]) -> Any:
        request = make_request(name, tokens, 2)
        if kind == "endless arrival":
            request.arrival_time = inf
        else:
            request.block_hashes[0 if "first" in kind else 2] = None
        lab.scheduler.waiting.add_request(request)
        lab.scheduler.requests[name] = request
        return request

    lone, *others = [bad("alone", [60] * 64), *(bad(f"bad{i}", [*A, i]) for i in range(3))]
    lab.add(Ask("good", [*A, 9], 2), Ask("better", [*A, 8], 2))
    lab.plan()
    quarantine = lab.adapter.quarantine
    assert sorted(lab.adapter._keys) == ["alone"] * ("later" in kind) + ["better", "good"]
    assert quarantine.total == len(quarantine) == 4 - ("later" in kind)
    for request in (lone, *others):
        lab.scheduler.waiting.remove_request(request)
        del lab.scheduler.requests[request.request_id]
    lab.stepper.run_out()
    lab.stepper.check_nothing_is_left()
    assert lab.adapter.planner.totals()["admitted"] == 3  # with the one that was running


def test_negative_tokens_are_planned_like_others(lab: VllmLab) -> None:
    """vLLM hashes whatever it is given, and a hash is all that is looked at."""
    lab.start_busy(strict=False)
    lab.add(*[Ask(f"r{i}", [-1 - i % 2] * 64 + [i]) for i in range(4)])
    lab.plan()
    assert len(lab.adapter.planner) == 4
    assert lab.adapter.planner.tree.has_sharing
    assert lab.adapter.quarantine.total == 0


def test_switched_on_while_requests_wait(lab: VllmLab, caplog: pytest.LogCaptureFixture) -> None:
    """A shadow takes over who waits; who runs is not its own."""
    lab.start(tokens=304)
    lab.add(*[Ask(f"r{number}", [number] * 40, 3) for number in range(4)])
    step(lab.scheduler)
    foretold = lab.beside.foretold
    for mode in ("on", "shadow", "on", "shadow"):
        lab.beside._turn(mode)
        here = None if foretold.shadow is None else sorted(foretold.shadow._here)
        assert here == (["r1", "r2", "r3"] if mode == "shadow" else None)
    with caplog.at_level(logging.INFO, "peek"):
        lab.beside._turn("off")
    assert "the shadow ends: the shadow has seen no request through yet" in caplog.text


def test_steps_of_what_ran_before_a_shadow_count_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a prompt that was begun before has more in front of it, not less than nothing."""
    sizes = {"num_blocks": 99, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    engine = make_scheduler(PeekScheduler, options={"policy": "peek"}, **sizes)
    engine.add_request(make_request("long", [5] * 90, 3))
    step(engine)
    engine.peek._turn("shadow")
    steps, noted = engine.peek.foretold.shadow.account.steps, []
    monkeypatch.setattr(steps, "note", lambda *told: noted.append(told[2:]))
    for _ in range(3):
        step(engine)
    assert noted == [(32, chunk_pairs(32, 32), 0), (26, chunk_pairs(64, 26), 0), (1, 0, 91)]
