"""Plays for SGLang's real cache and policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_lab import make_world
from sglang_stepper import Stepper
from support import plays as common
from support.plays import Play, interleaved, play_out

INTERLEAVED = interleaved(1)
plays = partial(common.plays, (1, 64))


def perform(
    play: Play,
    attach: Callable[[Stepper], Any] | None = None,
    *,
    policy: str = "fcfs",
    core: str | None = None,
    overlap: bool = False,
    eviction: str = "lru",
    events: bool = False,
    each_step: Callable[[Any, Any], None] | None = None,
) -> Stepper:
    """Play it to the end.  `attach(stepper)` may wrap `stepper.policy` and the cache before the start."""
    world = make_world(
        play.units * play.unit,
        policy=policy,
        page_size=play.unit,
        core=core,
        max_running=play.seats,
        eviction=eviction,
        priority=play.priority,
        events=events,
    )
    stepper = Stepper(
        world,
        overlap=overlap,
        chunk=play.chunk,
        max_running=play.seats,
        max_prefill_tokens=play.budget,
        ratio=play.ratio,
    )
    if attach is not None:
        attach(stepper)
    if each_step is not None:
        stepper.watch = each_step
    play_out(play, stepper)
    return stepper
