"""Stock when not asked, SGLang's own order after an internal error, stand-asides, eviction by demand."""

from __future__ import annotations

import logging

import pytest
from bench_cost import cache_prompt
from sglang_lab import CORES, SchedulePolicy, make_request, make_world
from sglang_small import attach, limits
from sglang_tree import match_len

from peek import EngineMismatch, InvalidConfig
from peek.adapters.sglang import plugin

A, B = list(range(100, 164)), list(range(200, 264))


# -- activation ----------------------------------------------------------------------------------------


def test_not_asked_for_registers_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEEK_POLICY", raising=False)
    assert plugin.configured_or_exit() is None
    plugin.register()


def test_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "peek")
    settings = plugin.configured_or_exit()
    assert settings is not None
    assert settings.config.policy == "peek"


def test_a_mistake_in_the_settings_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEK_POLICY", "peak")
    with pytest.raises(SystemExit, match="peak") as raised:  # SGLang logs any other and serves on
        plugin.register()
    assert isinstance(raised.value.__cause__, InvalidConfig)


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


@pytest.mark.parametrize("name", ["policy", "tree_cache", "enable_priority_scheduling", "priority_sign"])
def test_a_version_that_lacks_something_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(1000)
    delattr(world.policy, name)
    with pytest.raises(EngineMismatch, match=f"SchedulePolicy has no {name}"):
        attach(world, "peek")
    assert attach(world, "peek", strict=False).adapter is None
    assert name in caplog.text


@pytest.mark.parametrize("name", [*vars(limits()), "running_batch.reqs"])
def test_so_is_what_its_scheduler_lacks(name: str) -> None:
    scheduler = limits()
    owner, last = (scheduler.running_batch, "reqs") if "." in name else (scheduler, name)
    delattr(owner, last)
    with pytest.raises(EngineMismatch, match=f"has no {name}"):
        attach(make_world(1000), "peek", scheduler)


# -- eviction ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(SchedulePolicy, "_touch_waiting_prefixes"), reason="from 0.5.23 on")
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("policy", plugin.REPLACED)
def test_what_waits_is_kept_recent_by_sglang_itself(policy: str, core: str | None) -> None:
    """SGLang's `lpm` does so as it matches; in its place nothing is matched."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    world = make_world(4000, policy=policy, core=core)
    for prompt in (A, B):
        cache_prompt(world, prompt)
    attach(world, "peek")
    queue = [make_request(f"r{i}", [*A, 300 + i]) for i in range(3)]
    world.policy.calc_priority(queue)
    world.tree.evict(EvictParams(num_tokens=len(B)))
    assert [match_len(world, make_request("probe", [*prompt, 9])) for prompt in (A, B)] == [len(A), 0]
