"""Turns among tenants: a stated bound on how far one gets ahead, and nothing else changed."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Scene, cache_of, scenes

from peek import InvalidConfig, PeekConfig, PendingRequest, Planner
from peek.config import PRESETS
from peek.policy.stream import Listed, everybody
from peek.policy.tenants import DECODE_WEIGHT, TenantAccounts, Turns

NAMES = ("a", "b", "c")
LEADS = st.sampled_from([0.0, 10.0, 100.0, 1e9])
QUEUES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 50)), min_size=1, max_size=30)


def requests(queue: list[tuple[str, int]]) -> list[PendingRequest]:
    return [
        PendingRequest(f"r{i}", [i], float(i), num_tokens=tokens, tenant=tenant)
        for i, (tenant, tokens) in enumerate(queue)
    ]


def accounts_of(queue: list[PendingRequest], lead: float, served: dict[str, float]) -> TenantAccounts:
    accounts = TenantAccounts(lead)
    for request in queue:
        accounts.arrived(request.tenant)
    for tenant, tokens in served.items():
        accounts.charge(tenant, tokens)
    return accounts


@given(queue=QUEUES, lead=LEADS, served=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 500)))
def test_within_a_tenant_the_order_stands(
    queue: list[tuple[str, int]], lead: float, served: dict[str, float]
) -> None:
    order = requests(queue)
    turns = everybody(Turns(Listed(order), accounts_of(order, lead, served)))
    assert sorted(request.sequence for request in turns) == sorted(request.sequence for request in order)
    for name in NAMES:
        mine = [request.request_id for request in order if request.tenant == name]
        assert [request.request_id for request in turns if request.tenant == name] == mine


def naive(order: list[PendingRequest], accounts: TenantAccounts) -> list[str]:
    """The first in the order of a tenant who is not too far ahead of the least served one."""
    left, served, found = list(order), dict(accounts.served), []
    while left:
        least = min(served.get(request.tenant, 0.0) for request in left)
        request = next(r for r in left if served.get(r.tenant, 0.0) <= least + accounts.lead)
        left.remove(request)
        served[request.tenant] = served.get(request.tenant, 0.0) + request.num_tokens
        found.append(request.request_id)
    return found


@given(queue=QUEUES, lead=LEADS, served=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 500)))
def test_turns_are_those_of_the_rule(
    queue: list[tuple[str, int]], lead: float, served: dict[str, float]
) -> None:
    order = requests(queue)
    accounts = accounts_of(order, lead, served)
    assert [r.request_id for r in everybody(Turns(Listed(order), accounts))] == naive(order, accounts)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "admit", "admit", "abort", "generate"]),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 1), min_size=1, max_size=6),
    ),
    max_size=60,
)


@pytest.mark.parametrize("label", ["peek", "response-ratio"])
@given(events=EVENTS, lead=st.sampled_from([0.0, 5.0, 20.0]))
def test_nobody_gets_further_ahead_than_the_lead(
    label: str, events: list[tuple[str, str, list[int]]], lead: float
) -> None:
    """Whenever one is admitted while another waits: not ahead of him by more than lead before it."""
    planner = Planner(PeekConfig.from_dict({"policy": label, "lanes": "none", "tenant_lead": lead}))
    waiting: dict[str, str] = {}
    for at, (event, tenant, symbols) in enumerate(events):
        if event == "arrive":
            planner.add(PendingRequest(f"r{at}", symbols, float(at), tenant=tenant))
            waiting[f"r{at}"] = tenant
        elif event == "generate":
            planner.generated(tenant, 3)
        elif waiting and event == "abort":
            planner.remove(min(waiting), admitted=False)
            waiting.pop(min(waiting))
        elif waiting:
            first = planner.plan(cache_of([]), float(at))[0]
            served = planner.served()
            least = min(served.get(name, 0.0) for name in waiting.values())
            assert served.get(waiting[first], 0.0) <= least + lead
            planner.remove(first)
            del waiting[first]


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(scene=scenes(max_size=6))
def test_one_tenant_changes_nothing(label: str, scene: Scene) -> None:
    plans = []
    for tenant in ("", "somebody"):
        planner = Planner(PRESETS[label])
        for row in scene.rows:
            request = row.request()
            request.tenant = tenant
            planner.add(request)
        plans.append(planner.plan(scene.cache(), scene.now))
    assert plans[0] == plans[1]


def flood(lead: float) -> Planner:
    """Nine of a hot tenant came first, then two of another."""
    planner = Planner(PeekConfig.from_dict({"policy": "peek", "tenant_lead": lead}))
    for i in range(9):
        planner.add(PendingRequest(f"hot{i}", [1] * 10 + [i], float(i), tenant="hot"))
    for i in range(2):
        planner.add(PendingRequest(f"cold{i}", [2 + i] * 11, 9.0 + i, tenant="cold"))
    return planner


def test_a_flood_lets_the_other_tenant_in() -> None:
    assert flood(inf).plan(cache_of([]), NOW)[:3] == ["hot0", "hot1", "hot2"]
    assert flood(0.0).plan(cache_of([]), NOW)[:4] == ["hot0", "cold0", "hot1", "cold1"]
    assert flood(0.0).lazy_plan(cache_of([]), NOW).at(1) == "cold0"


def test_where_nothing_is_to_be_gained_they_still_take_turns() -> None:
    planner = Planner(PeekConfig.from_dict({"policy": "peek", "tenant_lead": 0.0}))
    for i in range(4):
        planner.add(PendingRequest(f"r{i}", [i, i], float(i), tenant="ab"[i // 2]))
    assert planner.order_matters(cache_of([]))
    assert planner.plan(cache_of([]), NOW) == ["r0", "r2", "r1", "r3"]


def test_nobody_saves_up_turns() -> None:
    accounts = TenantAccounts(0.0)
    for tenant in ("a", "b"):
        accounts.arrived(tenant)
    for tenant, tokens in (("a", 100.0), ("b", 90.0)):
        accounts.charge(tenant, tokens)
    accounts.arrived("late")
    assert accounts.served["late"] == 90.0
    accounts.left("late")
    accounts.charge("a", 500.0)
    accounts.charge("b", 400.0)
    accounts.arrived("late")
    assert accounts.served["late"] == 490.0


def test_who_is_level_is_forgotten() -> None:
    accounts = TenantAccounts(0.0)
    accounts.arrived("stays")
    for i in range(1000):
        accounts.charge("stays", 5.0)
        accounts.arrived(f"guest{i}")
        accounts.left(f"guest{i}")
    assert len(accounts.served) < 70


def test_generated_tokens_weigh_as_stated() -> None:
    planner = flood(0.0)
    planner.generated("cold", 100)
    assert planner.served() == {"cold": DECODE_WEIGHT * 100}
    assert planner.plan(cache_of([]), NOW)[-2:] == ["cold0", "cold1"]


@pytest.mark.parametrize("lead", [-1, "x", None, True, float("nan")])
def test_a_lead_out_of_range_is_refused(lead: object) -> None:
    with pytest.raises(InvalidConfig, match=r"tenant_lead is .*; need a number from 0, or infinity"):
        PeekConfig(tenant_lead=lead)
