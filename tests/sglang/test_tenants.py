"""Tenants on SGLang's own queue: named by the routing key, served in turns."""

from __future__ import annotations

from typing import Any

from sglang_lab import make_request, make_world
from sglang_small import attach


def queue(named: bool) -> list[Any]:
    """Six of a busy tenant came first, then two of another; nothing is shared."""
    requests = [make_request(f"hot{i}", [100 + i] * 65, arrival=float(i)) for i in range(6)]
    requests += [make_request(f"cold{i}", [300 + i] * 65, arrival=6.0 + i) for i in range(2)]
    for request in requests:
        request.routing_key = request.rid[:-1] if named else None
    return requests


def ordered(named: bool, **options: Any) -> list[str]:
    world = make_world(10_000, policy="fcfs")
    beside = attach(world, "peek", tenant_lead=0.0, **options)
    waiting = queue(named)
    world.policy.calc_priority(waiting)
    assert beside.shield.fallbacks == 0
    return [request.rid for request in waiting]


def test_the_routing_key_names_a_tenant() -> None:
    assert ordered(named=False)[6:] == ["cold0", "cold1"]
    assert ordered(named=True)[:4] == ["hot0", "cold0", "hot1", "cold1"]
