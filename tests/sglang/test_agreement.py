"""What the views foretell is what SGLang finds, to the token; where it is not, `peek` stands aside."""

from __future__ import annotations

import copy
import logging
import random
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang_lab import CORES, VERSION, World, make_request, make_world
from sglang_plays import INTERLEAVED, Play, check_outcome, perform, plays
from sglang_small import attach
from sglang_stepper import Stepper

from peek.adapters.containment import FIRST, LASTING
from peek.adapters.engine_adapter import TESTED


def serve(world: World, count: int, seed: int = 1) -> None:
    """Groups that share prefixes, some alone in the queue, some many at once."""
    rnd = random.Random(seed)
    stepper = Stepper(world, max_running=4)
    for number in range(count):
        text = [20 + rnd.randrange(6)] * 96 + [100 + number] * 8
        stepper.add(make_request(f"r{number}", text, 2, arrival=1.0 + number))
        if rnd.random() < 0.5:
            stepper.step()
    stepper.run_out()


@pytest.mark.parametrize(("core", "page"), [(core, page) for core in CORES for page in (1, 16)])
@pytest.mark.parametrize("mode", ["on", "shadow"])
def test_what_is_foretold_is_found(core: str | None, page: int, mode: str) -> None:
    world = make_world(1200, core=core, page_size=page)
    beside = attach(world, "peek", mode=mode)
    serve(world, 60)
    agreement, surprises = beside.adapter.agreement, beside.seen.surprises
    assert agreement.compared > 40
    assert agreement.differed == surprises.sum == 0
    assert beside.adapter.planner.totals()["cached_expected"] == beside.adapter.cached_real > 40 * 80


@pytest.mark.parametrize("overlap", [False, True])
def test_random_schedules_are_foretold_exactly(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"admitted": 0, "hit": 0}

    @settings(max_examples=30)
    @given(plays())
    @example(INTERLEAVED)
    def random_schedule(play: Play) -> None:
        made: list[Any] = []

        def beside(stepper: Stepper) -> Any:
            made.append(attach(stepper.world, "peek"))
            return made[0]

        check_outcome(play, perform(play, beside, overlap=overlap))
        agreement, surprises = made[0].adapter.agreement, made[0].seen.surprises
        assert agreement.differed == 0, str(agreement)
        assert surprises.counts[surprises.bounds.index(0)] == surprises.total
        seen["admitted"] += surprises.total
        seen["hit"] += agreement.compared

    random_schedule()
    assert seen["admitted"] > 50
    assert seen["hit"] > 0


@pytest.mark.parametrize("core", CORES)
def test_a_match_that_means_something_else_is_noticed(
    core: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every name is there: SGLang only finds half of what it would."""
    world = make_world(4000, core=core)
    kind = type(world.tree)
    stock = kind.match_prefix

    inserting = False

    def half(tree: Any, params: Any) -> Any:
        if inserting:  # the cache looks for what it has just put there
            return stock(tree, params)
        shorter = copy.copy(params)
        shorter.key = params.key[: len(params.key) // 2]
        return stock(tree, shorter)

    def insert(tree: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inserting
        inserting = True
        try:
            return stock_insert(tree, *args, **kwargs)
        finally:
            inserting = False

    monkeypatch.setattr(kind, "match_prefix", half)
    stock_insert = getattr(kind, "cache_unfinished_req", None)  # until 0.5.17
    if stock_insert is not None:
        monkeypatch.setattr(kind, "cache_unfinished_req", insert)
    with caplog.at_level(logging.WARNING, "peek"):
        beside = attach(world, "peek", strict=False)
        serve(world, FIRST)
    assert beside.adapter is None
    assert (beside.active, beside.shield.fallbacks) == (False, 0)
    (line,) = [record.getMessage() for record in caplog.records if "stands aside" in record.getMessage()]
    found = re.search(r"in (\d+) of (\d+) admissions", line)
    assert found
    assert LASTING <= int(found[1]) == int(found[2]) <= LASTING + 4, "it was seen within a batch"
    assert ", ".join(TESTED["sglang"]) in line


def test_the_versions_it_names_are_those_it_is_tested_on() -> None:
    assert VERSION in TESTED["sglang"]
