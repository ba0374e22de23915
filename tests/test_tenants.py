"""Turns among tenants: a stated bound on how far one gets ahead, and nothing else changed."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, Scene, cache_of, scenes

from peek import InvalidConfig, InvalidKey, PeekConfig, PendingRequest, Planner
from peek.config import PRESETS
from peek.policy.base import Listed, everybody
from peek.policy.default.tenants import DECODE_WEIGHT, MOST_IDLE, TenantAccounts, Turns

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
        accounts.arrived(request)
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
    """From when one is behind, the first in the order of a tenant who is not too far above the lowest."""
    left, clock, behind, found = list(order), accounts.clock, False, []
    levels = {tenant: line.level for tenant, line in accounts.lines.items()}
    while left:
        least = min(levels[request.tenant] for request in left)
        behind = behind or clock > least + accounts.lead / 2
        request = next(r for r in left if not behind or levels[r.tenant] <= least + accounts.lead)
        left.remove(request)
        levels[request.tenant] += request.num_tokens
        clock += request.num_tokens / len(levels)
        found.append(request.request_id)
    return found


@given(queue=QUEUES, lead=LEADS, served=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 500)))
def test_turns_are_those_of_the_rule(
    queue: list[tuple[str, int]], lead: float, served: dict[str, float]
) -> None:
    order = requests(queue)
    accounts = accounts_of(order, lead, served)
    assert [r.request_id for r in everybody(Turns(Listed(order), accounts))] == naive(order, accounts)


def test_levels_go_on_while_nobody_is_behind_yet() -> None:
    order = requests([("a", 6), ("b", 6), ("a", 8), ("a", 8), ("a", 8), ("b", 1)])
    accounts = accounts_of(order, 10.0, {})
    turns = [request.request_id for request in everybody(Turns(Listed(order), accounts))]
    assert turns == naive(order, accounts) == ["r0", "r1", "r2", "r3", "r5", "r4"]


def test_who_comes_below_all_levels_is_not_overlooked() -> None:
    """Both that wait are far above the clock, at which the third one begins."""
    accounts = TenantAccounts(10.0)
    ahead = requests([(name, 20) for name in "abcd"])
    for each in ahead:
        accounts.arrived(each)
    for each in ahead[:2]:
        accounts.charge(each.tenant, 100.0)
    for each in ahead[2:]:
        accounts.left(each)
    assert everybody(Turns(Listed(ahead[:2]), accounts)) == ahead[:2]
    accounts.arrived(ahead[2])
    assert everybody(Turns(Listed(ahead[:3]), accounts)) == [ahead[0], ahead[2], ahead[1]]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "admit", "admit", "abort", "generate"]),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 1), min_size=1, max_size=6),
    ),
    max_size=60,
)


class Book:
    """The accounts as they are stated: of each tenant the account, and when each of his requests came."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.served: dict[str, float] = {}
        self.came: dict[str, dict[str, float]] = {}

    def level(self, tenant: str) -> float:
        return max(self.served.get(tenant, 0.0), next(iter(self.came[tenant].values())))

    def arrived(self, name: str, tenant: str) -> None:
        self.came.setdefault(tenant, {})[name] = self.clock

    def left(self, name: str, tenant: str) -> None:
        del self.came[tenant][name]
        if not self.came[tenant]:
            del self.came[tenant]

    def charge(self, tenant: str, tokens: float) -> None:
        waits = tenant in self.came
        self.served[tenant] = (
            self.level(tenant) if waits else max(self.clock, self.served.get(tenant, 0.0))
        ) + tokens
        self.clock += tokens / max(1, len(self.came))


@pytest.mark.parametrize("label", ["peek", "peek:unshared=arrival"])
@given(events=EVENTS, lead=st.sampled_from([0.0, 5.0, 20.0]))
def test_whoever_is_behind_is_overtaken_by_no_more_than_the_bound(
    label: str, events: list[tuple[str, str, list[int]]], lead: float
) -> None:
    """Each admission keeps the rule, and all of them together what it is for."""
    planner = Planner(PeekConfig.from_dict({"policy": label, "grace_tokens": inf, "tenant_lead": lead}))
    book, waiting = Book(), dict[str, str]()
    owed: dict[str, dict[str, float]] = {}  # by tenant who is behind: what each other may still be admitted
    for at, (event, tenant, symbols) in enumerate(events):
        if event == "arrive":
            planner.add(PendingRequest(f"r{at}", symbols, float(at), tenant=tenant))
            book.arrived(f"r{at}", tenant)
            waiting[f"r{at}"] = tenant
        elif event == "generate":
            planner.generated(tenant, 3)
            book.charge(tenant, 3 * DECODE_WEIGHT)
            owed.pop(tenant, None)
        elif waiting and event == "abort":
            name = min(waiting)
            planner.remove(name, admitted=False)
            owed.pop(waiting[name], None)
            book.left(name, waiting.pop(name))
        elif waiting:
            name = planner.plan(cache_of([]), float(at))[0]
            mine, levels = waiting.pop(name), {each: book.level(each) for each in book.came}
            behind = [each for each in levels if book.clock > levels[each] + lead / 2]
            for each in behind:
                assert levels[mine] <= levels[each] + lead
                if each not in owed:
                    owed[each] = {o: max(0.0, levels[each] + lead - levels[o]) for o in levels}
            cost = float(planner.remove(name))
            book.charge(mine, cost)
            book.left(name, mine)
            owed.pop(mine, None)
            for left in owed.values():
                left[mine] = left.get(mine, lead) - cost
                assert left[mine] >= -6, "at most the lead and one request"
        accounts = planner.served()
        for each in book.came:  # one that the clock has passed is not kept, and makes no difference
            assert max(accounts[each], min(book.clock, book.level(each))) == book.level(each)


@pytest.mark.parametrize("label", sorted(PRESETS))
@given(scene=scenes(max_size=6))
def test_one_tenant_changes_nothing(label: str, scene: Scene) -> None:
    plans = []
    for tenant in ("", "somebody"):
        planner = Planner(PRESETS[label])
        for row in scene.rows:
            planner.add(replace(row, tenant=tenant).request())
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
    """Who comes late, or comes back, has the level of the clock, however little he was served before."""
    accounts = TenantAccounts(0.0)
    a, b, late = requests([("a", 1), ("b", 1), ("late", 1)])
    accounts.arrived(a)
    accounts.arrived(b)
    accounts.charge("a", 100.0)
    accounts.charge("b", 90.0)
    accounts.arrived(late)
    assert accounts.lines["late"].level == accounts.clock == 95.0
    accounts.left(late)
    accounts.charge("a", 500.0)
    accounts.arrived(late)
    assert accounts.lines["late"].level == accounts.clock == 345.0


def test_a_request_that_comes_back_leaves_nothing_behind() -> None:
    """However often it was preempted or held while an older one of its tenant waits."""
    accounts = TenantAccounts(0.0)
    old, other = requests([("a", 1), ("a", 1)])
    accounts.arrived(old)
    for _ in range(3):
        accounts.arrived(other)
        accounts.left(other)
    accounts.arrived(other)
    accounts.charge("b", 500.0)
    accounts.left(old)
    assert list(accounts.lines["a"].came) == [other.request_id]
    accounts.left(other)
    accounts.arrived(other)
    assert accounts.lines["a"].level == accounts.clock == 500.0


def test_idle_accounts_are_bounded() -> None:
    """By those of whom something was heard last; whoever waits is never forgotten."""
    accounts = TenantAccounts(0.0)
    (stays,) = requests([("stays", 1)])
    accounts.arrived(stays)
    for i in range(3 * MOST_IDLE):
        accounts.charge(f"guest{i}", 1e9 * (i + 1))
        (guest,) = requests([(f"visitor{i}", 1)])
        accounts.arrived(guest)
        accounts.charge(guest.tenant, 7.0)
        accounts.left(guest)
    assert len(accounts.idle) <= MOST_IDLE
    assert list(accounts.lines) == ["stays"]
    assert "stays" in accounts.served()


def test_an_account_that_the_clock_has_passed_is_not_kept() -> None:
    accounts = TenantAccounts(0.0)
    for i in range(100):
        accounts.charge(f"guest{i}", 5.0)
    assert accounts.clock == 500.0
    assert list(accounts.served()) == []


def test_who_is_served_as_he_comes_holds_nobody_back() -> None:
    """One has long prompts and always waits; the other is never kept waiting, however much less he gets."""
    planner = Planner(PeekConfig.from_dict({"policy": "peek", "tenant_lead": 1000.0}))
    for i in range(20):
        planner.add(PendingRequest(f"long{i}", [i] * 800, 0.0, tenant="long"))
    for i in range(10):
        planner.add(PendingRequest(f"short{i}", [100 + i] * 2, float(i), tenant="short"))
        first = planner.plan(cache_of([]), float(i))[0]
        planner.remove(f"short{i}")
        assert planner.plan(cache_of([]), float(i))[0].startswith("long"), first
        planner.remove(f"long{i}")
    assert planner.served()["long"] > 1000.0


def test_generated_tokens_weigh_as_stated() -> None:
    planner = flood(0.0)
    planner.generated("cold", 100)
    assert planner.served() == {"hot": 0.0, "cold": DECODE_WEIGHT * 100}
    assert planner.plan(cache_of([]), NOW)[-2:] == ["cold0", "cold1"]


@pytest.mark.parametrize("lead", [-1, "x", None, True, float("nan")])
def test_a_lead_out_of_range_is_refused(lead: object) -> None:
    with pytest.raises(InvalidConfig, match=r"tenant_lead is .*; need a number from 0, or infinity"):
        PeekConfig(options={"tenant_lead": lead})


@pytest.mark.parametrize("tokens", [-1, -(2**40), 2**53 + 1])
def test_tokens_out_of_range_are_refused_and_change_nothing(tokens: int) -> None:
    planner = flood(0.0)
    before = (planner.served(), planner.plan(cache_of([]), NOW))
    with pytest.raises(InvalidKey, match=r"tokens generated is .*; need 0 .. 2\*\*53"):
        planner.generated("cold", tokens)
    with pytest.raises(InvalidKey, match=r"tokens answered is .*; need 0 .. 2\*\*53"):
        planner.answered(tokens, "hot0")
    assert (planner.served(), planner.plan(cache_of([]), NOW)) == before
