"""What an operator has asked of SGLang is respected, and a mistake in a setting stops the process."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_lab import HAS_CORES, RELEASE, SchedulePolicy, make_request, make_world
from sglang_model import write_model
from sglang_small import limits, settings_of
from support.whole import run_python
from test_engine import job

from peek import InvalidConfig
from peek.adapters.sglang import plugin
from peek.adapters.sglang.plugin import REPLACED, after_policy, attach

A, B = list(range(100, 164)), list(range(200, 264))
OTHERS = ["dfs-weight", "lof", "random"] + (
    ["hrrn", "shortest-prefill-first", "routing-key"] if HAS_CORES else []
)


@pytest.mark.parametrize("name", ["fcfs", "lpm"])
def test_what_is_replaced_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000, policy=name)
    with caplog.at_level(logging.INFO, "peek"):
        after_policy(settings_of("peek"), None, limits(policy=world.policy))
    assert world.policy.peek.adapter is not None
    assert f"takes the place of --schedule-policy {name}" in caplog.text


def test_arguments_by_name_do_not_meet_our_own_names() -> None:
    """SGLang may call what is hooked by name: `scheduler=`, `policy=`, `waiting_queue=`."""
    world = make_world(4000)
    after_policy(settings_of("peek"), None, limits(policy=world.policy), scheduler="stock", policy="fcfs")
    queue = [make_request(f"r{i}", [*(A, B)[i % 2], i]) for i in range(4)]
    plugin.around_order(None, world.policy, waiting_queue=queue)
    assert world.policy.peek.seen.plan_s.total == 1
    asked: list[Any] = []
    names = {"waiting_queue": queue, "policy": 1, "stock": 2}
    aside = make_world(4000, policy="lof").policy
    plugin.around_order(lambda *_, **named: asked.append(named), aside, **names)
    assert asked == [names]


def test_what_evaluation_and_docs_call_the_default_is_sglangs() -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert parser.get_default("schedule_policy") == "fcfs" == REPLACED[0]


@pytest.mark.parametrize("mode", ["null", "prefill", "decode"])
def test_a_decode_worker_of_a_pair_keeps_its_own_order(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its requests wait with their KV: there is no prefill to order by."""
    world = make_world(2000, priority=True)
    assert world.settings.disaggregation_mode == "null"
    scheduler = limits(policy=world.policy, server_args=SimpleNamespace(disaggregation_mode=mode, tp_size=1))
    stock = [make_request(f"r{i}", [*(A, B)[i % 2], i], priority=0, arrival=1.0 + i) for i in range(6)]
    queue = list(stock)
    settings = settings_of("peek")
    with caplog.at_level(logging.WARNING, "peek"):
        after_policy(settings, None, scheduler)
    plugin.around_order(type(world.policy).calc_priority, world.policy, queue)
    assert (world.policy.peek.adapter is None) == (queue == stock) == (mode == "decode")
    assert ("stands aside, stock order: a decode worker" in caplog.text) == (mode == "decode")


@pytest.mark.parametrize("name", OTHERS)
def test_another_policy_stays_unless_told_otherwise(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(1000, policy=name)
    with caplog.at_level(logging.WARNING, "peek"):
        assert attach(world.policy, settings_of("peek"), limits()).adapter is None
    assert f"--schedule-policy {name} was asked for" in caplog.text
    assert "PEEK_REPLACE_SCHEDULE_POLICY=1" in caplog.text
    monkeypatch.setenv("PEEK_REPLACE_SCHEDULE_POLICY", "1")
    assert attach(world.policy, settings_of("peek"), limits()).adapter is not None


@pytest.mark.parametrize(("value", "found"), [("", False), ("0", False), ("1", True)])
def test_the_variable(value: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_REPLACE_SCHEDULE_POLICY", value)
    assert plugin.asks_to_replace() is found


def test_the_variable_mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_REPLACE_SCHEDULE_POLICY", "lof")
    with pytest.raises(InvalidConfig, match=r"PEEK_REPLACE_SCHEDULE_POLICY is 'lof'; valid: 0, 1"):
        plugin.asks_to_replace()
    with pytest.raises(SystemExit, match="PEEK_REPLACE_SCHEDULE_POLICY"):
        plugin.register()


@pytest.mark.parametrize("low_first", [False, True])
def test_ties_inside_a_priority_follow_the_entry_time(low_first: bool) -> None:
    world = make_world(4000, priority=True)
    world.policy.priority_sign = 1 if low_first else -1
    world.policy.peek = attach(world.policy, settings_of("peek"), limits())
    hook = plugin.around_order
    queue = [make_request(f"r{i}", [*A, 7], priority=i % 2, arrival=10.0 - i) for i in range(8)]

    def both_agree(waiting: list[Any]) -> None:
        mine, stock = list(waiting), list(waiting)
        hook(None, world.policy, mine)
        SchedulePolicy._sort_by_priority_and_fcfs(stock, world.policy.priority_sign)
        assert [request.rid for request in mine] == [request.rid for request in stock]

    both_agree(queue)
    first, *others = queue
    first.req_pool_idx = 1
    first.output_ids.append(3)  # admitted, generated one token, and was retracted
    both_agree(others)
    first.req_pool_idx = None
    for entered in (first.time_stats.wait_queue_entry_time, 99.0):  # kept by some versions, renewed by others
        first.time_stats.wait_queue_entry_time = entered
        both_agree(others)
        both_agree([*others, first])
        first.output_ids.append(4)


# -- real processes ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value"), [("PEEK_POLICY", "peak"), ("PEEK_REPLACE_SCHEDULE_POLICY", "yes")]
)
def test_a_mistake_stops_the_engine_before_it_loads(variable: str, value: str, tmp_path: Path) -> None:
    run = job(**{variable: value})
    task, result = tmp_path / "task.json", tmp_path / "result.json"
    task.write_text(json.dumps({"model": write_model(tmp_path / "model"), "runs": [run]}))
    script = Path(__file__).with_name("engine_run.py")
    said = run_python(tmp_path, str(script), str(task), str(result), status=1)
    assert value in said
    assert not result.exists()
    assert "Load weight" not in said


@pytest.mark.slow
@pytest.mark.parametrize("module", ["peek.adapters.sglang.launch_server", "sglang.launch_server"])
def test_a_mistake_stops_the_server(module: str, tmp_path: Path) -> None:
    if module.startswith("sglang") and RELEASE < (0, 5, 11):
        pytest.skip("finds no plug-ins")
    words = ("--model-path", write_model(tmp_path / "model"), "--device", "cpu")
    said = run_python(tmp_path, "-m", module, *words, status=1, PEEK_POLICY="peak")
    assert "peak" in said
    assert "Load weight" not in said
