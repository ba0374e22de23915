"""Only who may be admitted is put in order, and only what has changed is looked at: as if all was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from sglang_lab import CORES
from sglang_plays import INTERLEAVED, perform, plays
from sglang_small import attach
from sglang_stepper import Stepper
from support.plays import Play

from peek.adapters.sglang import adapter as adapters

KINDS = [(core, overlap) for core in CORES for overlap in (False, True)]


def attach_kept(stepper: Stepper, label: str) -> Any:
    return attach(stepper.world, label, stepper)


def attach_anew(stepper: Stepper, label: str) -> Any:
    """Each call looks at the whole cache, and lays out the whole plan."""
    beside = attach(stepper.world, label, stepper)
    adapter = beside.adapter
    adapter._head_of = lambda plan: [adapter._waiting[rid].request() for rid in plan]
    adapter.view._insertions = None
    return beside


@pytest.mark.parametrize(("core", "overlap"), KINDS)
@pytest.mark.parametrize("label", ["peek", "clpm+gm+dl+pe"])
def test_batches_are_those_of_the_whole_plan(
    label: str, core: str | None, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch by batch, with not one request planned beyond what a batch has room for."""
    monkeypatch.setattr(adapters, "SPARE", 0)
    if core == "rust":  # what is kept recent there is touched in the order of the queue, also behind the head
        label = label.replace("+pe", "")
    seen: Counter[str] = Counter()

    @settings(max_examples=25)
    @given(plays(priority=True))
    @example(INTERLEAVED)
    @example(replace(INTERLEAVED, seats=4))  # for which there is no room
    def random_schedule(play: Play) -> None:
        def behind(stepper: Any, batch: Any) -> None:
            line = stepper.policy.peek.adapter._line
            numbers = [line._numbers[request] for request in line.requests[line.head :]]
            assert numbers == sorted(numbers), "behind the head all stand as they came"
            seen["behind the head"] += line.head > 0 and bool(numbers)
            seen["kept"] += len(line.requests)

        kept = perform(play, lambda s: attach_kept(s, label), core=core, overlap=overlap, each_step=behind)
        anew = perform(play, lambda s: attach_anew(s, label), core=core, overlap=overlap)
        assert kept.decisions == anew.decisions

    random_schedule()
    assert seen["behind the head"] > 0
    assert seen["kept"] > 0
