"""Tenants on SGLang's own queue: named by the routing key, served in turns."""

from __future__ import annotations

import pytest
from sglang_lab import make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

A, B = [5] * 64, [7] * 64


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_template_is_known_by_the_answers_it_had(page_size: int) -> None:
    """Two templates: of one the answers have forty tokens, of the other two; then one more of each comes."""
    world = make_world(4000, max_running=2, page_size=page_size)
    beside = attach(world, "peek")
    stepper = Stepper(world, max_running=2)
    first = [make_request("long", [*A, 1], 40, arrival=1.0), make_request("short", [*B, 1], 2, arrival=2.0)]
    for request in first:
        stepper.add(request)
    stepper.step()
    beside.call(beside.adapter.turned, first, stepper.waiting_queue)  # as SGLang's hook does
    stepper.run_out()
    for i in range(2):
        stepper.add(make_request(f"busy{i}", [500 + i] * 65, 40, arrival=3.0 + i))
    stepper.step()
    for i, (name, tokens) in enumerate(
        [("long again", [*A, 2]), ("short again", [*B, 2]), ("last", [9] * 65)]
    ):
        stepper.add(make_request(name, tokens, 40, arrival=5.0 + i))
    world.policy.calc_priority(stepper.waiting_queue)  # every seat is taken: the scheduler would not ask
    answers = beside.adapter.planner.policy.expectations
    # the mean of the two is 21, and counts as one more of each
    assert answers.waiting["long again"].ratio == pytest.approx(2.0 ** (1 / 2.4))  # the bound
    assert answers.waiting["short again"].ratio == pytest.approx(0.5 ** (1 / 2.4))
    assert answers.waiting["last"].ratio == 1.0
    assert beside.shield.fallbacks == 0
