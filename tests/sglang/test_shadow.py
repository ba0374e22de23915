"""What a shadow follows beside SGLang's scheduler; what it foretells is in `support.alike_plays`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang_lab import make_request, make_world
from sglang_small import attach
from sglang_stepper import Stepper

from peek.adapters.sglang.requests import Followed
from peek.adapters.sglang.shadow import why_no_shadow


def test_who_arrives_is_seen_wherever_the_policy_puts_them() -> None:
    """`lpm` sorts the queue, a retracted request stands at its end, and nobody is told of twice."""
    world = make_world(2000, policy="lpm")
    attach(world, "peek", mode="shadow")
    stepper = Stepper(world)
    stepper.add(make_request("first", [1] * 40, 1))
    stepper.step()
    shadow = world.policy.peek.foretold.shadow
    for number in range(5):
        stepper.add(make_request(f"r{number}", [1] * (10 + number), 1))
        if number % 2:
            shadow.looked_at(stepper.waiting_queue)
            stepper.waiting_queue.sort(key=lambda request: -len(request.origin_input_ids))
    shadow.looked_at(stepper.waiting_queue)
    assert {name for name in shadow._followed.here if name != "first"} == {
        f"r{number}" for number in range(5)
    }
    assert shadow.account is not None
    assert shadow.account._count == 6


def test_who_is_retracted_before_the_first_token_hides_nobody() -> None:
    """As when generation is paused in the middle of a prefill: it goes behind others that are new."""
    followed = Followed()
    first, second = make_request("first", [1] * 40, 1), make_request("second", [2] * 40, 1)
    assert followed.new([first]) == [first]
    first.is_retracted = first.retracted_stain = True
    assert followed.new([second, first]) == [second]


def test_streaming_sessions_are_not_followed() -> None:
    world = make_world(2000)
    for enabled in (False, True):
        scheduler = SimpleNamespace(server_args=SimpleNamespace(enable_streaming_session=enabled))
        assert bool(why_no_shadow(world.policy, scheduler)) is enabled


@pytest.mark.parametrize("source", ["cache_controller", "linker"])
def test_hits_are_not_foretold_where_kv_comes_from_elsewhere(source: str) -> None:
    world = make_world(2000)
    assert why_no_shadow(world.policy, None) is None
    setattr(world.tree, source, object())
    assert why_no_shadow(world.policy, None) == "KV is kept on the host, too"
