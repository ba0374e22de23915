"""Sections, Equation 1 and group-major order against Algorithm 2 read word for word."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import (
    NOW,
    TAU,
    THETA,
    Arrival,
    Fact,
    Scene,
    cache_of,
    facts_of,
    planner_of,
    rows_of,
    scenes,
)

from peek import ClpmScheduler, PeekConfig, PendingRequest
from peek.policy.sections import PIONEER, SIBLING, WARM, assign_sections

THETAS = st.sampled_from([1, 2, 16, 31, 32, 33, 40])
TAUS = st.sampled_from([0, 1, 31, 32, 33, 64])


def naive_sections(facts: list[Fact], tau: int) -> dict[str, int]:
    """Lines 3-13 of Algorithm 2, and who waits for a prefill under way."""
    sections: dict[str, int] = {}
    seen = set()
    for fact in facts:
        if fact.coming_len - fact.cached_len > tau:
            section = SIBLING
        elif fact.cached_len > tau:
            section = WARM
        elif fact.head is not None and fact.head in seen:
            section = SIBLING
        else:
            section = PIONEER
            seen.add(fact.head)
        sections[fact.request_id] = section
    return sections


def equation_1(facts: list[Fact], tau: int = TAU) -> list[str]:
    sections = naive_sections(facts, tau)

    def key(fact: Fact) -> tuple[int, int, int, int, int]:
        return (sections[fact.request_id], -fact.cached_len, -fact.score, -fact.cluster_size, fact.rank)

    return [fact.request_id for fact in sorted(facts, key=key)]


# -- sections -----------------------------------------------------------------------------------------


@given(scene=scenes(under_way=True), theta=THETAS, tau=TAUS)
def test_sections_are_those_of_algorithm_2(scene: Scene, theta: int, tau: int) -> None:
    prepared = scene.prepare(theta)
    assign_sections(prepared.queue, tau)
    assert prepared.sections() == naive_sections(facts_of(scene, theta), tau)


def sections_of(*keys: list[int], cached: list[int] | None = None, unit: int = 1) -> list[int]:
    scene = Scene(rows_of(*keys), (("", tuple(cached or ())),), unit=unit)
    prepared = scene.prepare()
    assign_sections(prepared.queue, TAU)
    return list(prepared.sections().values())


def test_the_first_with_a_head_is_its_pioneer() -> None:
    head = [1] * THETA
    assert sections_of([*head, 2], [*head, 3], [9] * THETA, head) == [PIONEER, SIBLING, PIONEER, SIBLING]


def test_a_head_is_theta_tokens_no_fewer() -> None:
    assert sections_of([1] * 31 + [2], [1] * 31 + [3]) == [PIONEER, PIONEER]
    assert sections_of([1] * 32 + [2], [1] * 32 + [3]) == [PIONEER, SIBLING]


def test_a_prompt_shorter_than_theta_is_a_pioneer_however_often_it_comes() -> None:
    assert sections_of([1] * 31, [1] * 31, [1] * 31) == [PIONEER] * 3


@pytest.mark.parametrize(("symbols", "second"), [(1, PIONEER), (2, SIBLING), (3, SIBLING)])
def test_theta_counts_tokens_not_pages(symbols: int, second: int) -> None:
    assert sections_of([1] * symbols, [1] * symbols, unit=16) == [PIONEER, second]


@pytest.mark.parametrize(("cached", "section"), [(31, PIONEER), (32, PIONEER), (33, WARM)])
def test_warm_is_more_than_tau_cached_tokens(cached: int, section: int) -> None:
    assert sections_of([1] * 60, [2] * 60, cached=[1] * cached) == [section, PIONEER]


@pytest.mark.parametrize(("cached", "section"), [(2, PIONEER), (3, WARM)])
def test_tau_counts_tokens_not_pages(cached: int, section: int) -> None:
    assert sections_of([1] * 60, [2] * 60, cached=[1] * cached, unit=16) == [section, PIONEER]


def test_equal_heads_in_two_namespaces_are_two_heads() -> None:
    rows = (
        Arrival("a", (1,) * 40),
        Arrival("b", (1,) * 40, 1.0, "lora"),
        Arrival("c", (1,) * 40, 2.0, "lora"),
    )
    prepared = Scene(rows).prepare()
    assign_sections(prepared.queue, TAU)
    assert prepared.sections() == {"a": PIONEER, "b": PIONEER, "c": SIBLING}


@pytest.mark.parametrize(("coming", "section"), [(33, WARM), (65, WARM), (66, SIBLING)])
def test_who_gains_over_tau_tokens_from_a_prefill_under_way_waits_for_it(coming: int, section: int) -> None:
    rows = rows_of([1] * 100)
    scene = Scene(rows, cached=(("", (1,) * 33),), in_flight=(("", (1,) * coming),))
    prepared = scene.prepare()
    assign_sections(prepared.queue, TAU)
    assert prepared.sections() == {"r0": section}


def test_who_waits_for_a_prefill_claims_no_head() -> None:
    """The prefill under way is the pioneer; a short-sighted sibling must not be taken for one."""
    rows = rows_of([1] * 100, [1] * 32 + [2] * 50)
    prepared = Scene(rows, in_flight=(("", (1,) * 100),)).prepare()
    assign_sections(prepared.queue, TAU)
    assert prepared.sections() == {"r0": SIBLING, "r1": PIONEER}


# -- Equation 1 ---------------------------------------------------------------------------------------


@given(scene=scenes(under_way=True), theta=THETAS, tau=TAUS)
def test_clpm_is_a_sort_by_equation_1(scene: Scene, theta: int, tau: int) -> None:
    assert scene.prepare(theta).order(ClpmScheduler(theta, tau)) == equation_1(facts_of(scene, theta), tau)


@given(scene=scenes())
def test_the_planner_feeds_clpm_what_equation_1_needs(scene: Scene) -> None:
    facts = facts_of(scene)
    matters = any(fact.cluster is not None or fact.cached_len > 0 for fact in facts)
    expected = equation_1(facts) if matters else [fact.request_id for fact in facts]
    assert scene.plan("clpm") == expected


def request(name: str, section: int, cached: int, score: int, size: int) -> PendingRequest:
    """A request whose section comes out as wanted when `tau` is 1000."""
    made = PendingRequest(name, [1], 0.0, num_tokens=5000)
    made.cached_len = cached + (2000 if section == WARM else 0)
    made.coming_len = 4000 if section == SIBLING else 0
    made.score, made.cluster_size = score, size
    return made


def test_each_component_breaks_the_ties_of_those_before() -> None:
    expected = [
        request("warm, long hit", WARM, 8, 0, 1),
        request("warm", WARM, 7, 99, 99),
        request("pioneer, long hit", PIONEER, 6, 0, 1),
        request("high score", PIONEER, 5, 50, 1),
        request("big cluster", PIONEER, 5, 40, 3),
        request("small cluster, first", PIONEER, 5, 40, 2),
        request("small cluster, second", PIONEER, 5, 40, 2),
        request("sibling", SIBLING, 900, 99, 99),
    ]
    queue = [expected[i] for i in (7, 5, 2, 4, 0, 6, 3, 1)]
    ordered = ClpmScheduler(tau=1000).order(queue, Scene(()).prepare().cycle)
    assert [r.request_id for r in ordered] == [r.request_id for r in expected]


# -- group-major --------------------------------------------------------------------------------------


def group_major(facts: list[Fact], tau: int) -> list[str]:
    """Clusters by depth x size, the one whose first member came first on ties; singletons behind."""
    sections = naive_sections(facts, tau)
    ordered: list[str] = []
    for section in (WARM, PIONEER, SIBLING):
        groups = defaultdict(list)
        alone = []
        for fact in facts:
            if sections[fact.request_id] == section:
                (alone if fact.cluster is None else groups[fact.cluster]).append(fact)
        ranked = sorted(groups.values(), key=lambda g: (-g[0].cluster_depth * g[0].cluster_size, g[0].rank))
        for group in ranked:
            group.sort(key=lambda fact: (-fact.cached_len, -fact.score, fact.rank))
        ordered += [fact.request_id for group in [*ranked, alone] for fact in group]
    return ordered


@given(scene=scenes(under_way=True), theta=THETAS, tau=TAUS)
def test_group_major_is_cluster_by_cluster(scene: Scene, theta: int, tau: int) -> None:
    order = scene.prepare(theta).order(ClpmScheduler(theta, tau, group_major=True))
    assert order == group_major(facts_of(scene, theta), tau)


@given(scene=scenes(min_size=4, under_way=True), tau=TAUS)
def test_members_of_a_cluster_are_neighbours_within_their_section(scene: Scene, tau: int) -> None:
    prepared = scene.prepare()
    order = prepared.order(ClpmScheduler(tau=tau, group_major=True))
    place = {request_id: i for i, request_id in enumerate(order)}
    members = defaultdict(list)
    for fact in facts_of(scene):
        section = prepared.sections()[fact.request_id]
        if fact.cluster is not None:
            members[section, fact.cluster].append(place[fact.request_id])
    for places in members.values():
        assert max(places) - min(places) == len(places) - 1
    assert [prepared.sections()[r] for r in order] == sorted(prepared.sections().values())


def test_clusters_go_by_depth_times_size_and_singletons_last() -> None:
    small_deep = [[1] * 90 + [i] for i in (11, 12)]  # 90 x 2 = 180
    large_flat = [[2] * 50 + [i] for i in (11, 12, 13, 14)]  # 50 x 4 = 200
    alone = [7] * 500
    rows = rows_of(alone, *small_deep, *large_flat)
    scheduler = ClpmScheduler(theta=1000, group_major=True)  # prompts shorter than theta: pioneers all
    assert Scene(rows).prepare(1000).order(scheduler) == ["r3", "r4", "r5", "r6", "r1", "r2", "r0"]


def test_group_major_decides_within_sections_only() -> None:
    """A cluster's pioneer goes with the pioneers; its siblings wait for all of them."""
    rows = rows_of([1] * 64, [2] * 40, [1] * 64, [2] * 40, [3] * 500)
    order = Scene(rows).prepare().order(ClpmScheduler(group_major=True))
    assert order == ["r0", "r1", "r4", "r2", "r3"]


@given(scene=scenes())
def test_the_published_labels_differ_in_eviction_and_lanes_only(scene: Scene) -> None:
    assert scene.plan("clpm+gm+pe") == scene.plan("clpm+gm")
    assert scene.plan("clpm+gm+dl+pe") == scene.plan("clpm+gm+dl")


@pytest.mark.parametrize(
    ("theta", "unit", "second"),
    [
        (8, 1, SIBLING),
        (9, 1, PIONEER),
        (32, 1, PIONEER),
        (128, 16, SIBLING),
        (129, 16, PIONEER),
        (113, 16, SIBLING),
    ],
)
def test_the_planner_uses_the_policy_own_theta(theta: int, unit: int, second: int) -> None:
    """In whole pages, none of them beyond what two prompts have in common."""
    policy = ClpmScheduler(theta=theta)
    planner = planner_of(rows_of([1] * 8 + [2], [1] * 8 + [3], [5] * 8), PeekConfig("clpm"), policy=policy)
    planner.plan(cache_of([], unit), NOW)
    assert [request.section for request in planner.tree.requests()] == [PIONEER, second, PIONEER]


def test_a_head_that_ends_within_a_page_has_all_of_it() -> None:
    """Theta of 17 tokens are two pages of 16: prompts that share one page have different heads."""
    planner = planner_of(rows_of([1, 2], [1, 3]), PeekConfig("clpm"), policy=ClpmScheduler(theta=17))
    planner.plan(cache_of([], 16), NOW)
    assert [request.section for request in planner.tree.requests()] == [PIONEER, PIONEER]
