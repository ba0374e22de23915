"""Tenants on the real scheduler: named in the request, served in turns, charged for what they generate."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_lab import make_request, make_scheduler
from vllm_small import A, B, step

from peek.adapters.vllm import PeekScheduler

FAIR = {"policy": "peek", "tenant_lead": 0.0, "tenants": "named", "strict": True}


def of(name: str, tokens: list[int], tenant: str | None, max_tokens: int = 4, **more: Any) -> Any:
    request = make_request(name, tokens, max_tokens, **more)
    if tenant is not None:
        request.sampling_params.extra_args = {"peek_tenant": tenant}
    return request


def admissions(options: dict[str, Any], requests: list[Any], steps: int = 200) -> list[str]:
    """What was admitted, in order, one seat at a time."""
    engine = make_scheduler(PeekScheduler, num_blocks=400, max_num_seqs=1, options=options)
    for request in requests:
        engine.add_request(request)
    order: list[str] = []
    for _ in range(steps):
        running = {request.request_id for request in engine.running}
        step(engine)
        order += [r.request_id for r in engine.running if r.request_id not in {*running, *order}]
    return order


def flood(**more: Any) -> list[Any]:
    """Eight of a hot prefix came first, then three others."""
    hot = [of(f"hot{i}", [*A, i], "hot", arrival_time=float(i), **more) for i in range(8)]
    return hot + [of(f"cold{i}", [50 + i] * 65, "cold", arrival_time=8.0 + i, **more) for i in range(3)]


def test_the_tenant_named_in_a_request_gets_his_turn() -> None:
    order = admissions(FAIR, flood())
    assert {order[0][:-1], order[1][:-1]} == {"hot", "cold"}
    assert order[1:3] == ["cold0", "cold1"]
    assert order[-1] == "cold2", "two cold prompts cost more than all that follow the hot one's prefix"


def test_without_names_there_is_one_tenant() -> None:
    unnamed = flood()
    for request in unnamed:
        request.sampling_params.extra_args = None
    order = admissions(FAIR, unnamed)
    assert order == admissions({"policy": "peek", "strict": True}, flood_unnamed())
    assert order[:8] == [f"hot{i}" for i in range(8)]


def flood_unnamed() -> list[Any]:
    requests = flood()
    for request in requests:
        request.sampling_params.extra_args = None
    return requests


def test_what_is_generated_is_charged() -> None:
    """Both have as much to compute; one generates forty tokens, the other two."""
    long = [of(f"long{i}", [i + 1] * 65, "long", 40, arrival_time=2.0 * i) for i in range(4)]
    short = [of(f"short{i}", [i + 40] * 65, "short", 2, arrival_time=2.0 * i + 1) for i in range(4)]
    order = admissions(FAIR, [*long, *short], 400)
    assert order.index("short3") < order.index("long3")
    assert order.index("short2") < order.index("long2")


def test_salts_are_tenants_where_that_is_asked_for() -> None:
    def salted() -> list[Any]:
        hot = [make_request(f"hot{i}", [*A, i], cache_salt="h", arrival_time=float(i)) for i in range(6)]
        return [*hot, make_request("cold", [50] * 65, cache_salt="c", arrival_time=7.0)]

    assert admissions(FAIR, salted())[-1] == "cold"
    assert admissions({**FAIR, "tenants": "namespace"}, salted())[1] == "cold"


def test_a_template_is_known_by_the_answers_it_had() -> None:
    """Two templates: of one the answers have forty tokens, of the other two; then one more of each comes."""
    engine = make_scheduler(
        PeekScheduler, num_blocks=400, max_num_seqs=2, options={"policy": "peek", "strict": True}
    )
    engine.add_request(make_request("long", [*A, 1], 40))
    engine.add_request(make_request("short", [*B, 1], 2))
    for _ in range(60):
        step(engine)
    assert not engine.has_unfinished_requests()
    for name in ("busy0", "busy1"):
        engine.add_request(make_request(name, [len(name)] * 65, 40))
    step(engine)
    for name, tokens in (("long again", [*A, 2]), ("short again", [*B, 2])):
        engine.add_request(make_request(name, tokens, 40))
    step(engine)
    answers = engine.peek.adapter.planner.policy.expectations
    told = {name: answers.waiting[name] for name in ("long again", "short again")}
    # the mean of the two is 21, and counts as one more of each
    assert told["long again"].ratio == pytest.approx(2.0 ** (1 / 2.4))  # the bound
    assert told["short again"].ratio == pytest.approx(0.5 ** (1 / 2.4))
