"""Sessions that SGLang itself knows, and routing keys: what counts of them."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_alike import SglangLab
from sglang_lab import CORES
from support.alike import SAID, SAYS, stated
from support.lab import Ask

A = [5] * 64


def sgl_session(name: str) -> Any:
    try:
        from sglang.srt.session.session_controller import Session
    except ImportError:
        from sglang.srt.managers.session_controller import Session
    return Session(10**9, name)


@pytest.mark.parametrize("page", [1, 16])
def test_the_planner_knows_what_a_request_states(page: int) -> None:
    lab = SglangLab(CORES[0], page)
    lab.start_busy()
    asks = [
        Ask("both", [*A, 1], says=SAYS, tenant="key"),
        Ask("own", [*A, 2], says={"peek_ttft_target_s": 3}, tenant="key"),
        Ask("by id", [*A, 3], tenant="key"),
        Ask("routed", [*A, 4], tenant="key"),
    ]
    both, own, by_id, _ = lab.add(*asks)
    both.session = own.session = sgl_session("own")
    by_id.session_id = "id"
    lab.plan()
    told = [stated(lab, ask.name) for ask in asks]
    assert told == [SAID, ("own", 3.0), ("id", None), ("key", None)]
    assert lab.beside.shield.fallbacks == 0


def test_a_routing_key_that_names_the_tenant_makes_no_session() -> None:
    lab = SglangLab(CORES[0], 1)
    lab.start_busy(tenants="named")
    lab.add(*[Ask(f"r{i}", [*A, i], tenant="team") for i in range(2)])
    lab.plan()
    assert stated(lab, "r0") == ("~r0", None)
    assert lab.adapter.planner.request("r0").tenant == "team"
