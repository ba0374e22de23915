"""What every policy must do, whatever it thinks a good order is: each label, in a `Planner` and alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.queues import NOW, PROMPTS, Arrival, Scene, caches, facts_of, planner_of, queues, rows_of, scenes

from peek import (
    PRESETS,
    AdmissionPolicy,
    ClpmScheduler,
    FirstCome,
    Hrrn,
    LongestPrefix,
    PeekConfig,
    PendingRequest,
    Planner,
)
from peek.planner.plan import NOTHING_TO_GAIN
from peek.policy.registry import BUILT_IN
from peek.testing import check_policy

LABELS = list(PRESETS)
NEED_SHARING = [label for label in LABELS if PRESETS[label].build_policy().needs_sharing]
DYNAMIC = [label for label in LABELS if getattr(PRESETS[label].lanes, "dynamic_share", False)]

labels = pytest.mark.parametrize("label", LABELS)
some = settings(max_examples=30)
"""Examples for each label; there are a dozen."""


def everyone(scene: Scene) -> list[str]:
    return [row.request_id for row in scene.rows]


def test_who_lives_on_sharing() -> None:
    assert NEED_SHARING == ["clpm", "clpm+gm", "clpm+gm+dl", "clpm+gm+pe", "clpm+gm+dl+pe"]


# -- a plan is a permutation --------------------------------------------------------------------------


@labels
@some
@given(scene=scenes())
def test_a_plan_permutes_the_waiting_requests(label: str, scene: Scene) -> None:
    planner = scene.planner(label)
    order = planner.plan(scene.cache(), scene.now)
    assert sorted(order) == sorted(everyone(scene))
    assert order == scene.plan(label)
    assert sorted(planner.plan(scene.cache(), scene.now + 1.0)) == sorted(everyone(scene))
    assert len(planner) == len(scene.rows)


@labels
@some
@given(scene=scenes())
def test_equal_arrivals_are_no_trouble(label: str, scene: Scene) -> None:
    rows = tuple(replace(row, arrival_time=NOW) for row in scene.rows)  # nobody has waited yet
    assert sorted(replace(scene, rows=rows).plan(label)) == sorted(everyone(scene))


@labels
@pytest.mark.parametrize("now", [-1e9, 0.0, 1e9])
def test_a_clock_far_off_is_no_trouble(label: str, now: float) -> None:
    scene = Scene(rows_of([1, 2, 3], [1, 2, 4], [7], step=1e-7), now=now)
    assert sorted(scene.plan(label)) == ["r0", "r1", "r2"]


@labels
@pytest.mark.parametrize("unit", [1, 16])
def test_one_request_alone(label: str, unit: int) -> None:
    row = Arrival("only", (1, 2, 3), 5.0, "lora")
    assert Scene((row,), ((row.namespace, row.symbols),), unit=unit).plan(label) == ["only"]
    assert Scene((row,), unit=unit).plan(label) == ["only"]


@labels
def test_nobody_waits(label: str) -> None:
    planner = Planner(PeekConfig.from_label(label))
    assert planner.plan(Scene(()).cache(), NOW) == []
    planner.add(Arrival("r", (1,)).request())
    planner.remove("r")
    assert planner.plan(Scene(()).cache(), NOW) == []


@labels
def test_equal_prompts_in_two_namespaces_share_nothing(label: str) -> None:
    prompt = tuple(range(100, 164))
    rows = (Arrival("a", prompt, 0.0, "x"), Arrival("b", prompt, 1.0, "y"), Arrival("c", prompt, 2.0, ""))
    planner = planner_of(rows, PeekConfig.from_label(label))
    assert planner.plan(Scene(()).cache(), NOW) == ["a", "b", "c"]
    assert not planner.tree.has_sharing


@labels
def test_identical_prompts_stay_in_arrival_order(label: str) -> None:
    rows = rows_of(*[list(range(64))] * 5)
    assert Scene(rows).plan(label) == ["r0", "r1", "r2", "r3", "r4"]


# -- nothing to gain: stock order ---------------------------------------------------------------------


def apart(rows: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """The same rows with nothing in common."""
    return tuple(replace(row, symbols=(100 + i, *row.symbols)) for i, row in enumerate(rows))


@pytest.mark.parametrize("label", NEED_SHARING)
@some
@given(data=st.data(), rows=queues())
def test_nothing_shared_and_nothing_cached_is_the_stock_order(
    label: str, data: st.DataObject, rows: tuple[Arrival, ...]
) -> None:
    scene = Scene(apart(rows), data.draw(caches(rows)))  # of the same prompts without their own first symbol
    planner = scene.planner(label)
    plan = planner.plan(scene.cache(), scene.now)
    assert plan == everyone(scene)
    assert (plan.stood_aside, plan.reordered, plan.reason) == (True, False, NOTHING_TO_GAIN)
    assert planner.stats.stood_aside == 1
    assert planner.stats.cache_calls == len(rows), "one question a request"


@pytest.mark.parametrize("label", NEED_SHARING)
@some
@given(data=st.data(), rows=queues())
def test_nothing_shared_but_something_cached_is_for_the_policy(
    label: str, data: st.DataObject, rows: tuple[Arrival, ...]
) -> None:
    scene = Scene(apart(rows), data.draw(caches(apart(rows))))
    assume(any(fact.cached_len > 0 for fact in facts_of(scene)))
    config = PeekConfig.from_label(label)
    policy = config.build_policy()
    policy.needs_sharing = False
    unguarded = planner_of(scene.rows, config, policy=policy, lanes=config.build_lanes())
    planner = scene.planner(label)
    plan = planner.plan(scene.cache(), scene.now)
    assert plan == unguarded.plan(scene.cache(), scene.now)
    assert not plan.stood_aside
    assert planner.stats.as_dict() == unguarded.stats.as_dict()  # nor is the cache walked twice


def test_a_policy_that_reads_no_cache_is_not_made_to() -> None:
    class Sharing(FirstCome):
        def __init__(self) -> None:
            super().__init__()
            self.needs_sharing = True

    planner = Planner(policy=Sharing())
    planner.add(PendingRequest("r", [1, 2], 0.0))
    plan = planner.plan(Scene((), (("", (1, 2)),)).cache(), NOW)
    assert (plan, plan.stood_aside, planner.stats.cache_calls) == (["r"], True, 0)


def test_a_prefill_under_way_is_as_good_as_a_cached_one() -> None:
    """Of two who share nothing, the one whose prefix is being computed goes last."""
    planner = Planner(PeekConfig(), in_flight_gate=True)
    prefix = [1] * 200
    planner.add(PendingRequest("first", [*prefix, 1], 0.0))
    planner.remove("first")
    for row in (Arrival("sibling", (*prefix, 2), 1.0), Arrival("other", (2,) * 200, 2.0)):
        planner.add(row.request())
    assert planner.plan(Scene(()).cache(), NOW) == ["other", "sibling"]
    planner.prefilled("first")
    assert planner.plan(Scene(()).cache(), NOW) == ["sibling", "other"]


@pytest.mark.parametrize("label", NEED_SHARING)
def test_the_guard_opens_and_closes_with_the_queue(label: str) -> None:
    planner = planner_of(rows_of([1, 2], [3, 4]), PeekConfig.from_label(label))
    cache = Scene(()).cache()
    planner.plan(cache, NOW)
    planner.add(Arrival("r2", (1, 9), 2.0).request())
    planner.plan(cache, NOW)
    assert (planner.stats.plans, planner.stats.stood_aside) == (2, 1)
    planner.remove("r0", admitted=False)
    planner.plan(cache, NOW)
    assert (planner.stats.plans, planner.stats.stood_aside) == (3, 2)


# -- only the queue counts, not how it came about -----------------------------------------------------


def with_history(scene: Scene, label: str, others: list[tuple[int, ...]], plans: bool) -> Planner:
    """A planner that ends up with the scene's queue after others came and were withdrawn."""
    planner = Planner(PeekConfig.from_label(label))
    full = Scene((), tuple(row.place for row in scene.rows), unit=scene.unit).cache()
    for i, other in enumerate(others):
        planner.add(Arrival(f"other-{i}", other, 0.0).request())
    for i, row in enumerate(scene.rows):
        planner.add(row.request())
        if plans:
            planner.plan(full if i % 2 else scene.cache(), scene.now)
        if i < len(others):
            planner.remove(f"other-{i}", admitted=False)
    for i in range(len(scene.rows), len(others)):
        planner.remove(f"other-{i}", admitted=False)
    return planner


OTHERS = st.lists(PROMPTS, min_size=1, max_size=6)


@labels
@some
@given(scene=scenes(), others=OTHERS)
def test_the_order_does_not_depend_on_who_was_here_before(
    label: str, scene: Scene, others: list[tuple[int, ...]]
) -> None:
    planner = with_history(scene, label, others, plans=False)
    assert planner.plan(scene.cache(), scene.now) == scene.plan(label)


@pytest.mark.parametrize("label", [label for label in LABELS if label not in DYNAMIC])
@some
@given(scene=scenes(), others=OTHERS)
def test_the_order_does_not_depend_on_earlier_plans(
    label: str, scene: Scene, others: list[tuple[int, ...]]
) -> None:
    planner = with_history(scene, label, others, plans=True)
    assert planner.plan(scene.cache(), scene.now) == scene.plan(label)


@labels
@some
@given(scene=scenes(min_size=2), data=st.data())
def test_a_request_that_comes_back_stands_where_it_stood(
    label: str, scene: Scene, data: st.DataObject
) -> None:
    """Preempted and queued again with its old arrival time: arrival counts, not when it was added."""
    back = data.draw(st.sampled_from(scene.rows), label="comes back")
    assume(all(row is back or row.arrival_time != back.arrival_time for row in scene.rows))
    planner = scene.planner(label)
    planner.remove(back.request_id, admitted=False)
    planner.add(back.request())
    assert planner.plan(scene.cache(), scene.now) == scene.plan(label)


# -- the policies by themselves ------------------------------------------------------------------------

OTHER_SETTINGS: dict[str, Callable[[], AdmissionPolicy]] = {
    "lpm-4": partial(LongestPrefix, queue_limit=4),
    "hrrn-4": partial(Hrrn, queue_limit=4),
    "clpm-1-0": partial(ClpmScheduler, theta=1, tau=0),
}

POLICIES = BUILT_IN | OTHER_SETTINGS
"""Those of the registry as they come by name, and some with other settings."""
EXAMPLES = 40
"""Queues, and histories, for each policy; there are more than a dozen."""


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_does_what_is_demanded(name: str) -> None:
    check_policy(POLICIES[name], examples=EXAMPLES, stateful=name == "peek")  # which learns from answers


def test_arrival_order_has_the_bound_it_states() -> None:
    check_policy(FirstCome, bound=lambda ahead_s, largest_s: ahead_s, examples=EXAMPLES)
