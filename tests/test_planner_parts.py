"""The planner's parts: plans that stand, and what prefills under way will have cached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, PROMPTS, planner_of, rows_of

from peek import AdmissionPolicy, Cycle, PeekConfig, PendingRequest, PendingTree, Planner
from peek.planner.signals import PrefillsInFlight
from peek.simulation.caches import RadixCache
from peek.testing.twins import common_length
from peek.trie.keys import pack

# -- a plan that stands -------------------------------------------------------------------------------


class Counting(AdmissionPolicy):
    """Youngest first; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.asked += 1
        return queue[::-1]


def standing(lasts_s: float = 10.0, **options: object) -> tuple[Planner, Counting, RadixCache]:
    policy = Counting()
    planner = planner_of(
        rows_of([1, 2, 3], [1, 2, 4], [5]), policy=policy, plan_lasts_s=lasts_s, strict=True, **options
    )
    return planner, policy, RadixCache(1)


def test_while_nothing_changes_the_plan_stands() -> None:
    planner, policy, cache = standing()
    first = planner.plan(cache, NOW)
    assert first == ["r2", "r1", "r0"]
    assert planner.plan(cache, NOW + 9.9) is first
    assert (policy.asked, planner.stats.plans) == (1, 1)


def test_by_default_no_plan_stands() -> None:
    planner, policy, cache = standing(lasts_s=0.0)
    assert planner.plan(cache, NOW) == planner.plan(cache, NOW)
    assert policy.asked == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda planner, cache: planner.add(PendingRequest("late", [7], 9.0)),
        lambda planner, cache: planner.remove("r0"),
        lambda planner, cache: planner.remove("r0", admitted=False),
        lambda planner, cache: cache.insert(pack([1, 2]), ""),
        lambda planner, cache: planner.prefilled("r0"),
    ],
    ids=["arrival", "admission", "withdrawal", "cache", "prefill ended"],
)
def test_whatever_happens_ends_it(change: object) -> None:
    planner, policy, cache = standing(in_flight_gate=True)
    first = planner.plan(cache, NOW)
    change(planner, cache)
    second = planner.plan(cache, NOW)
    assert second is not first
    assert sorted(second) == sorted(request.request_id for request in planner.tree.requests())
    assert policy.asked == 2


def test_planners_of_one_engine_share_what_is_under_way() -> None:
    under_way, cache = PrefillsInFlight(), RadixCache(1)
    prefix = list(range(1, 51))
    one = planner_of(rows_of([*prefix, 60]), in_flight_gate=under_way, plan_lasts_s=99.0)
    other = Planner(in_flight_gate=under_way, plan_lasts_s=99.0)
    for name, key in (("sibling", [*prefix, 61]), ("stranger", [*prefix[::-1], 62])):
        other.add(PendingRequest(name, key, 9.0))
    assert other.lazy_plan(cache, NOW).at(0) == "sibling"
    one.remove("r0")
    plan = other.lazy_plan(cache, NOW)
    assert list(plan) == ["stranger", "sibling"]
    assert other.request("sibling").coming_len == len(prefix)
    one.prefilled("unknown")
    assert other.lazy_plan(cache, NOW) is plan
    one.prefilled("r0")
    assert other.lazy_plan(cache, NOW).at(0) == "sibling"
    assert other.request("sibling").coming_len == 0


def test_time_ends_it() -> None:
    planner, policy, cache = standing(lasts_s=2.0)
    first = planner.plan(cache, NOW)
    assert planner.plan(cache, NOW + 2.0) is not first
    assert policy.asked == 2


def test_another_cache_ends_it() -> None:
    planner, policy, cache = standing()
    planner.plan(cache, NOW)
    planner.plan(RadixCache(1), NOW)
    assert policy.asked == 2


def test_a_cache_that_tells_no_version_is_looked_at_each_time() -> None:
    class Silent:
        unit_tokens = block_symbols = 1

        def root(self, namespace: str) -> object:
            return None

        def advance(self, cursor: object, segment: memoryview, offset: int) -> tuple[int, object]:
            return 0, None

        def node_id(self, cursor: object) -> int:
            return 1

    planner, policy, _ = standing()
    view = Silent()
    planner.plan(view, NOW)
    planner.plan(view, NOW)
    assert policy.asked == 2


def test_a_plan_is_a_list_with_a_reason() -> None:
    planner, _, cache = standing()
    plan = planner.plan(cache, NOW)
    assert isinstance(plan, list)
    assert (len(plan), plan[0], plan.index("r0"), "r1" in plan, plan[:2]) == (3, "r2", 2, True, ["r2", "r1"])
    assert (plan.reordered, plan.stood_aside, plan.reason) == (True, False, "ordered by the policy")


def test_whether_the_order_matters_is_told_without_a_look() -> None:
    planner = planner_of(rows_of([1, 2], [3, 4]), PeekConfig(options={"unshared": "arrival"}))
    cache = RadixCache(1)
    assert planner.order_matters(cache), "it may hit"
    assert planner_of(rows_of([1, 2], [3, 4])).order_matters(Lonely(2)), "short prompts go first"
    assert not planner_of(rows_of([1, 2], [3, 4]), PeekConfig("clpm")).order_matters(Lonely(2))
    assert not planner.order_matters(Lonely(2))
    assert planner.order_matters(Lonely(1))
    assert planner_of(rows_of([1, 2], [1, 4])).order_matters(Lonely(2)), "they share"
    assert planner_of(rows_of([1, 2], [3, 4]), PeekConfig.from_label("fcfs+pe")).order_matters(Lonely(2))


class Lonely:
    """A view that knows how many of those who wait can neither hit nor share."""

    unit_tokens = block_symbols = 1

    def __init__(self, lone_requests: int) -> None:
        self.lone_requests = lone_requests

    def root(self, namespace: str) -> object:
        raise AssertionError("nobody has to look")

    advance = node_id = root


def test_nobody_looks_where_all_are_known_to_be_alone() -> None:
    planner = planner_of(rows_of([1, 2], [3, 4]), PeekConfig(options={"unshared": "arrival"}))
    plan = planner.plan(Lonely(2), NOW)
    assert (plan, plan.stood_aside, planner.stats.cache_calls) == (["r0", "r1"], True, 0)


# -- prefills under way -------------------------------------------------------------------------------


@given(
    waiting=st.lists(st.tuples(PROMPTS, st.sampled_from(["", "lora"])), min_size=1, max_size=8),
    running=st.lists(st.tuples(PROMPTS, st.sampled_from(["", "lora"])), max_size=4),
    unit=st.sampled_from([1, 16]),
)
def test_coming_is_the_longest_common_prefix_with_a_prefill(
    waiting: list[tuple[tuple[int, ...], str]], running: list[tuple[tuple[int, ...], str]], unit: int
) -> None:
    tree, in_flight = PendingTree(), PrefillsInFlight()
    noted: list[PendingRequest] = []
    for i, (key, namespace) in enumerate(waiting):
        tree.insert(f"w{i}", list(key), namespace)
    for i, (key, namespace) in enumerate(running):
        in_flight.admit(f"p{i}", pack(list(key)), namespace)
    for request in tree.requests():
        request.cached_len = 77
    for ended in range(len(running) + 1):  # one prefill after another ends
        in_flight.note_coming(tree, unit, noted)
        for i, (key, namespace) in enumerate(waiting):
            shared = [common_length(key, other) for other, theirs in running[ended:] if theirs == namespace]
            assert tree.request(f"w{i}").coming_len == unit * max(shared, default=0)
            assert tree.request(f"w{i}").cached_len == 77, "somebody else's signal"
        in_flight.ended(f"p{ended}", False)
