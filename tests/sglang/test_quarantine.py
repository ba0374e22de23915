"""Requests that cannot be translated keep their place, alone; wide token ids are symbols like any other."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_lab import CORES, RELEASE, SchedulePolicy, World, leaked, make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper
from test_views import WIDE

from peek.adapters.sglang.plugin import after_prefill
from peek.adapters.symbols import FIRST_LETTER, Alphabet
from peek.errors import InvalidKey

A, B = list(range(100, 164)), list(range(200, 264))


def queue_of(*pairs: tuple[str, list[int]]) -> list[Any]:
    return [make_request(rid, tokens, arrival=1.0 + i) for i, (rid, tokens) in enumerate(pairs)]


def ids(queue: list[Any]) -> list[str]:
    return [request.rid for request in queue]


TEXTS = [("a1", [*A, 1]), ("b1", [*B, 1]), ("a2", [*A, 2]), ("b2", [*B, 2])]


@pytest.mark.parametrize("place", [1, 3, 4])  # behind the request whose rid it has
@pytest.mark.parametrize("rid", ["a1", "b1"])
def test_a_rid_that_waits_keeps_its_place_and_the_others_their_order(
    rid: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    plain, queue = queue_of(*TEXTS), queue_of(*TEXTS)
    attach(world := make_world(2000), "peek")
    world.policy.calc_priority(plain)
    (bad,) = queue_of((rid, [*A, 9]))
    place = max(place, 2) if rid == "b1" else place
    queue.insert(place, bad)
    beside = attach(world := make_world(2000), "peek", strict=False)
    with caplog.at_level(logging.WARNING, "peek"):
        for _ in range(3):
            world.policy.calc_priority(queue)
    assert queue.index(bad) == place
    assert ids([request for request in queue if request is not bad]) == ids(plain)
    assert (beside.shield.active, beside.shield.fallbacks) == (True, 0)
    assert (beside.adapter.quarantine.total, len(beside.adapter.quarantine)) == (1, 1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "peek"]
    assert repr(rid) in line
    queue.remove(bad)
    world.policy.calc_priority(queue)
    assert len(beside.adapter.quarantine) == 0
    assert ids(queue) == ids(plain)


@pytest.mark.parametrize("core", CORES)
def test_a_thousand_mixed_requests_are_all_served(core: str | None) -> None:
    """Bad ones among them come, wait and go; everybody is served and nothing falls back or leaks."""
    rnd = random.Random(5)
    world = make_world(2000, core=core, max_running=8)
    beside = attach(world, "peek", strict=False)
    stepper = Stepper(world, max_running=8)
    bad = 0
    for i in range(1000):
        tokens = [*rnd.choice((A, B))[: rnd.randrange(8, 64)], 300 + i % 50, 400 + i]
        if i % 10 == 3:
            tokens[5] = -1 - i
            bad += 1
        elif i % 10 == 6:
            tokens[4:8] = rnd.choices(WIDE if RELEASE >= (0, 5, 17) else WIDE[:1], k=4)
        stepper.add(make_request(f"r{i}", tokens, rnd.randrange(1, 5), arrival=1.0 + i))
        if rnd.random() < 0.6:
            stepper.step()
    stepper.run_out()
    assert all(record.finished for record in stepper.records.values())
    assert (beside.shield.fallbacks, beside.adapter.quarantine.total) == (0, bad)
    world.policy.calc_priority([])
    assert len(beside.adapter.planner) == len(beside.adapter.quarantine) == 0
    assert leaked(world) == 0
    assert beside.adapter.reordered > 50


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans(), st.sampled_from([A, B])),
        min_size=2,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_under_priorities_the_bad_stand_where_sglang_puts_them(
    kinds: list[tuple[int, int, bool, list[int]]],
) -> None:
    """Whatever order the queue is in: its own is by priority, and by entry time within one."""
    queue = [
        make_request(f"r{i}", [-1 if bad else 5, *text, i], priority=priority, arrival=float(entered))
        for i, (priority, entered, bad, text) in enumerate(kinds)
    ]
    expected = list(queue)
    SchedulePolicy._sort_by_priority_and_fcfs(expected, -1)
    world = make_world(2000, priority=True)
    beside = attach(world, "peek", strict=False)
    for _ in range(2):
        world.policy.calc_priority(queue)
        assert [request.priority for request in queue] == [request.priority for request in expected]
        places = {request.rid: place for place, request in enumerate(queue)}
        for place, request in enumerate(expected):
            if request.origin_input_ids[0] < 0:
                assert places[request.rid] == place
    assert beside.shield.fallbacks == 0


# -- wide token ids ------------------------------------------------------------------------------------

values = st.sampled_from([0, 5, FIRST_LETTER - 1, *WIDE, -1, -(2**62)])


@given(st.lists(values, min_size=1, max_size=40))
def test_packing_spells_back_and_forgets(tokens: list[int]) -> None:
    alphabet = Alphabet()
    packed, letters = alphabet.pack(tokens)
    assert alphabet.spell(packed).tolist() == tokens
    apart = {value for value in tokens if not 0 <= value < FIRST_LETTER}
    assert {letter.value for letter in letters} == apart
    assert len(alphabet) == len(apart)
    again, _ = alphabet.pack(tokens[::-1])
    assert alphabet.spell(again).tolist() == tokens[::-1]
    assert len(packed) == 4 * len(tokens)
    del letters, _
    assert len(alphabet) == 0
    alphabet.pack([2**40])
    assert len(set(alphabet._free)) == len(alphabet._free) == max(1, len(apart))


@pytest.mark.parametrize("tokens", [[], [2**63], [1.5], ["a"], [[1, 2]]])
def test_what_is_no_token_id_is_refused(tokens: list[Any]) -> None:
    with pytest.raises(InvalidKey):
        Alphabet().pack(tokens)


def test_images_share_what_is_equal() -> None:
    world = make_world(2000)
    beside = attach(world, "peek")
    wide = 2**62 - 5
    one, other = [wide, wide - 1] * 20, [wide, wide - 2] * 20
    queue = queue_of(("x1", [*A, *one, 1]), ("y1", [*A, *other, 1]), ("x2", [*A, *one, 2]))
    world.policy.calc_priority(queue)
    planner = beside.adapter.planner
    assert beside.adapter.quarantine.total == 0
    assert [planner.tree.cluster(rid).depth for rid in ("x1", "x2")] == [len(A) + 40] * 2
    assert planner.tree.cluster("y1").depth == len(A) + 1


# -- what is kept of requests --------------------------------------------------------------------------


def test_an_idle_server_keeps_no_request_alive() -> None:
    world = make_world(2000)
    beside = attach(world, "peek")
    queue = queue_of(*TEXTS, ("neg", [*A, 4]))
    world.policy.calc_priority(queue)
    seen = [weakref.ref(request) for request in queue]
    for request in queue[:3]:
        request.output_ids.append(1)
    queue.clear()
    del request
    after_prefill(None, Ran(world, queue))  # as SGLang calls it in every turn
    assert len(beside.adapter._in_flight) == 0
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)
    planner = beside.adapter.planner
    assert (planner.stats.admitted, planner.stats.withdrawn, len(planner)) == (3, 2, 0)
    assert len(beside.adapter._waiting) == len(beside.adapter._in_flight) == 0


def test_a_trace_that_is_switched_off_keeps_no_request_alive(tmp_path: Path) -> None:
    world = make_world(2000)
    stepper = Stepper(world)
    beside = attach(world, "peek", stepper, trace_file=str(tmp_path / "trace"))
    stepper.add(make_request("r", A, 5))
    stepper.step()
    (request,) = stepper.running.reqs or stepper.last.reqs
    seen = weakref.ref(request)
    beside.recording.wanted = False
    stepper.run_out()
    stepper.running = stepper.last = request = None
    gc.collect()
    assert seen() is None


class Ran:
    """What SGLang's scheduler is to the hook behind `get_new_batch_prefill`."""

    def __init__(self, world: World, queue: list[Any]) -> None:
        self.policy = world.policy
        self.waiting_queue = queue


@pytest.mark.parametrize("wrapped", [False, True])
def test_admissions_are_counted_at_once(wrapped: bool) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    assert callable(Scheduler.get_new_batch_prefill)
    world = make_world(2000)
    beside = attach(world, "peek")
    queue = queue_of(*TEXTS)
    world.policy.calc_priority(queue)
    for request in queue:
        request.output_ids.append(1)
        request.cached_tokens = 7
    batch = type("Batch", (), {"reqs": queue})()
    found = type("Plan", (), {"batch_to_run": batch})() if wrapped else batch
    after_prefill(None, Ran(world, queue))
    assert len(beside.adapter.planner) == 4
    after_prefill(found, Ran(world, []))
    assert len(beside.adapter.planner) == 0
    assert beside.adapter.cached_real == 28


def test_the_planner_knows_who_waits_while_every_seat_is_taken() -> None:
    """SGLang asks for no order then, and most who wait come then."""
    world = make_world(2000)
    stepper = Stepper(world, max_running=2)
    planner = attach(world, "peek", stepper).adapter.planner
    for rid in ("s1", "s2"):
        stepper.add(make_request(rid, [*A, ord(rid[1])], 50))
    for _ in range(4):
        stepper.step()
    assert len(stepper.running.reqs) == 2
    for rid, tokens in TEXTS:
        stepper.add(make_request(rid, tokens, 5))
    stepper.step()
    assert sorted(request.request_id for request in planner.requests()) == sorted(rid for rid, _ in TEXTS)
    stepper.abort("a1")
    stepper.step()
    assert (len(planner), len(stepper.waiting_queue), planner.stats.withdrawn) == (3, 3, 1)
    stepper.run_out()
    assert (len(planner), planner.stats.admitted, planner.stats.withdrawn) == (0, 5, 1)


def test_who_is_aborted_from_a_queue_that_then_empties_is_gone_from_the_planner() -> None:
    world = make_world(2000)
    beside = attach(world, "peek")
    queue = queue_of(*TEXTS)
    world.policy.calc_priority(queue)
    admitted = type("Batch", (), {"reqs": queue[:1]})()
    after_prefill(admitted, Ran(world, []))  # the others were aborted meanwhile
    assert len(beside.adapter.planner) == 0
    del queue[1:]
    later = queue_of(("a3", [*A, 3]), ("b3", [*B, 3]))
    world.policy.calc_priority(later)
    assert sorted(ids(later)) == ["a3", "b3"]
    assert beside.shield.fallbacks == 0
