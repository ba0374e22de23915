"""The lab itself, on stock SGLang: its plays end well, and its way to look leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from sglang.srt.managers.schedule_policy import CacheAwarePolicy
from sglang_lab import CORES, POLICIES, World, make_request, make_world, stock_match
from sglang_plays import perform, plays
from sglang_stepper import Stepper
from sglang_tree import eviction_order, match_len, snapshot
from support.plays import Play

KNOWN = {policy.value for policy in CacheAwarePolicy}
"""SGLang's own cache-aware policies, by its names."""
EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

cores = pytest.mark.parametrize("core", CORES)
overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
page_sizes = pytest.mark.parametrize("page_size", [1, 64])


@cores
@overlaps
@pytest.mark.parametrize("policy", POLICIES)
@given(play=plays(priority=True))
@EXAMPLES
def test_plays_end_well(policy: str, overlap: bool, core: str | None, play: Play) -> None:
    perform(play, policy=policy, overlap=overlap, core=core)


# -- what happens in a play -------------------------------------------------------------------------------


@cores
def test_results_come_one_batch_late_in_overlap_mode(core: str | None) -> None:
    lengths = {}
    for overlap in (False, True):
        stepper = Stepper(make_world(400, core=core), overlap=overlap)
        request = make_request("r", [5] * 20, 6)
        stepper.add(request)
        lengths[overlap] = [len(request.output_ids) for _ in range(3) if stepper.step() is not None]
    assert lengths[False] == [n + 1 for n in lengths[True]]


@cores
def test_the_queue_is_a_new_list_after_a_prefill_batch(core: str | None) -> None:
    stepper = Stepper(make_world(400, core=core), max_running=1)
    stepper.add(make_request("a", [5] * 20))
    stepper.add(make_request("b", [6] * 20))
    queue = stepper.waiting_queue
    stepper.step()
    assert [request.rid for request in queue] == ["a", "b"]
    assert [request.rid for request in stepper.waiting_queue] == ["b"]


@cores
@pytest.mark.parametrize(("policy", "turns"), [("lpm", [0, 3, 3]), ("shortest-prefill-first", [0, 1, 1])])
def test_shortest_first_leaves_room_beside_a_chunk(policy: str, turns: list[int], core: str | None) -> None:
    """Two short prompts come while a long one is in chunks of 64; the simulated engine does the same."""
    if policy not in KNOWN:
        pytest.skip(f"this SGLang has no {policy}")
    stepper = Stepper(make_world(1000, policy=policy, core=core), chunk=64)
    stepper.add(make_request("long", [1] * 200, 2))
    stepper.step()
    stepper.add(make_request("a", [2] * 30, 2))
    stepper.add(make_request("b", [3] * 28, 2))
    stepper.run_out()
    assert [admission.step for admission in stepper.admissions] == turns


# -- looking without touching -----------------------------------------------------------------------------


def lived_in(core: str | None, page_size: int, seed: int, **more: Any) -> World:
    """A cache in the middle of its life: some run, some are gone, some lost their place."""
    rnd = random.Random(seed)
    stepper = Stepper(make_world(12 * 64 if page_size > 1 else 500, page_size=page_size, core=core), **more)
    for i in range(12):
        stepper.add(some_request(f"r{i}", rnd))
        stepper.step()
    return stepper.world


def some_request(rid: str, rnd: random.Random) -> Any:
    shared = [10 + rnd.randrange(2)] * rnd.choice([0, 32, 64, 100, 128])
    own = [rnd.randrange(100, 900) for _ in range(rnd.randint(1, 40))]
    salt, key = rnd.choice([None, None, "s"]), rnd.choice([None, None, "x"])
    return make_request(rid, shared + own, rnd.randint(1, 12), extra_key=key, cache_salt=salt)


@cores
@page_sizes
def test_match_is_the_engines_and_leaves_no_trace(page_size: int, core: str | None) -> None:
    found = []
    for seed in range(12):
        world = lived_in(core, page_size, seed)
        rnd = random.Random(-seed - 1)
        for i in range(10):
            request = some_request(f"probe{i}", rnd)
            before = snapshot(world)
            found.append(match_len(world, request))
            assert snapshot(world) == before
            assert stock_match(world, request) == found[-1]
    assert sum(n > 0 for n in found) > 10


@cores
def test_a_picture_shows_what_a_stock_match_does(core: str | None) -> None:
    world = make_world(400, core=core)
    stepper = Stepper(world)
    stepper.add(make_request("r", [5] * 40, 2))
    stepper.run_out()
    before = snapshot(world)
    stock_match(world, make_request("inside", [5] * 20))
    split = snapshot(world)
    assert split != before
    stock_match(world, make_request("again", [5] * 20))
    if core != "rust":  # its times of use show in the order of eviction only
        assert snapshot(world) != split


@cores
def test_eviction_order_shows_times_of_use(core: str | None) -> None:
    def order(look: Any) -> list[list[int]]:
        world = make_world(400, core=core)
        stepper = Stepper(world, max_running=1)
        for i in range(4):
            stepper.add(make_request(f"r{i}", [5 + i] * 40, 2))
        stepper.run_out()
        look(world, make_request("probe", [5] * 41))
        return eviction_order(world)

    untouched = order(lambda world, request: None)
    assert order(match_len) == untouched
    assert order(stock_match) != untouched
