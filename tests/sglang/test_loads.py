"""SGLang's load snapshots, for data-parallel balancing and `/v1/loads`: right where it orders nothing."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest
from bench_cost import cache_prompt
from sglang_lab import CORES, VERSION, World, make_request, make_world
from sglang_small import attach, limits

TOLD = "waiting_queue_prefix_matched"
HIT_RATE = 0.25

load_inquirer = pytest.importorskip(
    "sglang.srt.managers.scheduler_components.load_inquirer", reason="0.5.9 counts whole prompts"
)


def uncached(world: World, queue: list[Any]) -> int:
    """What SGLang's own snapshot says of the waiting requests: the tokens yet to be computed."""
    kind = load_inquirer.SchedulerLoadInquirer
    given: dict[str, Any] = {each.name: None for each in fields(kind) if each.default is MISSING}
    given.update(get_waiting_queue=lambda: queue, get_chunked_req=lambda: None)
    if TOLD in given:
        given[TOLD] = lambda: world.policy.waiting_queue_prefix_matched(queue)
        given["get_recent_cache_hit_rate"] = lambda: HIT_RATE
    return int(kind(**given).get_num_waiting_uncached_tokens())


def waiting(count: int, cached: int = 2000, own: int = 40) -> list[Any]:
    """Requests of which so many tokens are cached; each goes on in a way of its own."""
    texts = [[5] * cached + [9 + number] * own for number in range(count)]
    return [make_request(f"r{number}", text, priority=0) for number, text in enumerate(texts)]


def lab(core: str | None = None, **more: Any) -> World:
    world = make_world(200_000, core=core, **more)
    cache_prompt(world, [5] * 2000)
    return world


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("count", [1, 2, 100, 128])
def test_what_waits_is_reported_as_beside_lpm(count: int, priority: bool, core: str | None) -> None:
    world = lab(core, policy="lpm", priority=priority)
    attach(world, scheduler=limits(max_running_requests=4, max_prefill_tokens=200))
    queue = waiting(count)
    world.policy.calc_priority(queue)
    assert uncached(world, queue) == 40 * count
    stock = lab(core, policy="lpm", priority=priority)
    again = waiting(count)
    stock.policy.calc_priority(again)
    assert uncached(stock, again) == 40 * count


def test_one_that_is_kept_apart_counts_as_a_whole() -> None:
    world = lab(policy="lpm")
    attach(world, strict=False)
    queue = waiting(10)
    queue.append(make_request("r3", [5] * 3000))
    world.policy.calc_priority(queue)
    assert uncached(world, queue) == 40 * 10 + 3000


@pytest.mark.skipif(VERSION.startswith("0.5.17"), reason="0.5.17 always reads what each request says")
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_of_more_than_sglang_matches_it_makes_its_own_estimate(policy: str) -> None:
    world = lab(policy=policy)
    attach(world)
    queue = waiting(129)
    world.policy.calc_priority(queue)
    assert uncached(world, queue) == 129 * 2040 * (1 - HIT_RATE)


def test_as_soon_as_it_stands_aside_the_answer_is_sglangs_own() -> None:
    world = lab(policy="lpm")
    beside = attach(world, strict=False)
    queue = waiting(100)
    world.policy.calc_priority(queue)
    assert uncached(world, queue) == 40 * 100
    beside.adapter._sync = None
    queue.append(make_request("other", [5] * 2000 + [7] * 50))
    for _ in range(2):  # the error, and what follows it
        world.policy.calc_priority(queue)
        assert uncached(world, queue) == 40 * 100 + 50
    assert (beside.adapter, beside.shield.fallbacks) == (None, 1)
    assert TOLD not in vars(world.policy)
