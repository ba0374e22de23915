"""A policy in a module of its author's own orders the real scheduler, named as its author would name it."""

from __future__ import annotations

from typing import Any

import pytest
from support.own_policies import module
from vllm_lab import make_request, make_scheduler, waiting_names
from vllm_small import B, interleaved, run_out, step

from peek import InvalidConfig
from peek.adapters.metrics import snapshot
from peek.adapters.vllm import PeekScheduler

__all__ = ["module"]


def busy(options: dict[str, object]) -> Any:
    """B's prefix is cached; A and B wait in turns, A first."""
    engine = make_scheduler(PeekScheduler, options=options, num_blocks=200, max_num_seqs=1)
    engine.add_request(make_request("B", [*B, 1], 1))
    while engine.has_unfinished_requests():
        step(engine)
    engine.add_request(make_request("running", [3] * 40, 100))
    step(engine)
    interleaved(engine)
    engine.max_num_running_reqs = 2  # a seat is free, so the order matters
    engine.peek.adapter.before_schedule()
    return engine


def test_it_orders_the_real_queue(module: str) -> None:
    engine = busy({"policy": f"{module}:MostCachedFirst", "strict": True})
    assert waiting_names(engine) == ["B1", "B3", "B5", "A0", "A2", "A4"]
    engine.max_num_running_reqs = 1
    assert set(run_out(engine)) >= {f"{'AB'[i % 2]}{i}" for i in range(6)}


def test_one_that_fails_leaves_arrival_order_and_is_seen(module: str) -> None:
    engine = busy({"policy": f"{module}:Forgets"})
    assert waiting_names(engine) == [f"{'AB'[i % 2]}{i}" for i in range(6)]
    beside = engine.peek
    assert snapshot(beside.adapter)["peek_policy_faults"] == 1
    assert (beside.shield.active, beside.shield.fallbacks) == (True, 0)
    assert len(run_out(engine)) == 7


def test_one_that_is_not_there_stops_the_engine() -> None:
    with pytest.raises(InvalidConfig, match="no_such_module:Policy"):
        make_scheduler(PeekScheduler, options={"policy": "no_such_module:Policy"})


def test_what_only_the_adapter_knows_is_refused() -> None:
    """With the gate on, and nobody to end prefills, requests stayed in flight for ever."""
    with pytest.raises(InvalidConfig, match="'in_flight_gate' is not a setting of a policy"):
        make_scheduler(PeekScheduler, options={"policy": "peek", "in_flight_gate": True})
