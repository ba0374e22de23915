"""The baselines against naive forms of the engines' own orders."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import (
    NOW,
    PIECES,
    TAU,
    Arrival,
    Fact,
    Scene,
    cache_of,
    facts_of,
    ids,
    planner_of,
    rows_of,
    scenes,
)
from test_block_views import BLOCKS, TOKENS, BlockView
from test_policies_clpm import naive_sections

from peek import DfsWeight, FirstCome, Hrrn, LongestPrefix, PeekConfig, PendingRequest, ShortestPrefill
from peek.policy.base import uncached_tokens
from peek.policy.sections import SIBLING
from peek.testing.twins import NaiveCache


def deferred(facts: list[Fact]) -> set[str]:
    """SGLang's `temporary_deprioritized`."""
    return {name for name, section in naive_sections(facts, TAU).items() if section == SIBLING}


def by(facts: list[Fact], key: object) -> list[str]:
    """Stable: ties stay in arrival order."""
    return [fact.request_id for fact in sorted(facts, key=key)]


@given(scene=scenes(under_way=True))
def test_first_come_is_arrival_order(scene: Scene) -> None:
    assert scene.prepare().order(FirstCome()) == [row.request_id for row in scene.rows]


# -- longest prefix -----------------------------------------------------------------------------------


def matched(fact: Fact) -> int:
    """SGLang's `num_matched_prefix_tokens`: without the prompt's last token, which is always computed."""
    return min(fact.cached_len, fact.cached_len + fact.uncached - 1)


@given(scene=scenes(under_way=True))
def test_longest_prefix_is_sglangs(scene: Scene) -> None:
    facts = facts_of(scene)
    late = deferred(facts)
    expected = by(facts, lambda fact: inf if fact.request_id in late else -matched(fact))
    assert scene.prepare().order(LongestPrefix()) == expected


@given(scene=scenes(min_size=2), limit=st.integers(1, 9))
def test_more_than_the_limit_waiting_is_first_come(scene: Scene, limit: int) -> None:
    stock = [row.request_id for row in scene.rows]
    for policy, free in ((LongestPrefix(limit), LongestPrefix(None)), (Hrrn(limit), Hrrn())):
        order = scene.prepare().order(policy)
        assert order == (stock if len(scene.rows) > limit else scene.prepare().order(free))


@pytest.mark.parametrize(
    ("label", "waiting", "first"),
    [
        ("lpm+lru", 128, "cached"),
        ("lpm+lru", 129, "r0"),
        ("lpm-nolimit+lru", 129, "cached"),
        ("hrrn-limit+lru", 128, "cached"),
        ("hrrn-limit+lru", 129, "r0"),
        ("hrrn+lru", 129, "cached"),
    ],
)
def test_sglangs_limit_is_128(label: str, waiting: int, first: str) -> None:
    others = rows_of(*[[i, i + 1] for i in range(waiting - 1)], step=0.0)
    rows = (*others, Arrival("cached", (500,) * 40, 1.0), Arrival("before them", (600,) * 9, 1.0))
    planner = planner_of(rows, PeekConfig.from_label(label))
    planner.remove("before them", True, 9)  # work done while the others wait
    assert planner.plan(cache_of([("", (500,) * 40)]), NOW)[0] == first


def test_a_deferred_sibling_goes_behind_everybody() -> None:
    cold = [1] * 40
    rows = rows_of(cold, cold, [2] * 20, [3] * 50)
    scene = Scene(rows, (("", (1,) * 20), ("", (3,) * 50)))
    assert scene.prepare().order(LongestPrefix()) == ["r3", "r0", "r2", "r1"]


# -- shortest prefill ---------------------------------------------------------------------------------


@given(scene=scenes(under_way=True))
def test_shortest_prefill_is_by_uncached_tokens(scene: Scene) -> None:
    facts = facts_of(scene)
    late = deferred(facts)
    expected = by(facts, lambda fact: (fact.request_id in late, max(1, fact.uncached)))
    prepared = scene.prepare()
    assert prepared.order(ShortestPrefill()) == expected
    assert [uncached_tokens(r) for r in prepared.queue] == [max(1, fact.uncached) for fact in facts]


def test_work_is_counted_in_tokens_the_key_leaves_out_too() -> None:
    rows = (Arrival("long tail", (1,), num_tokens=400), Arrival("short", (2,) * 9, 1.0, num_tokens=144))
    assert Scene(rows, unit=16).prepare().order(ShortestPrefill()) == ["short", "long tail"]


# -- highest response ratio ---------------------------------------------------------------------------


@given(scene=scenes(under_way=True), work_done=st.integers(0, 1000))
def test_hrrn_is_work_done_since_arrival_over_uncached(scene: Scene, work_done: int) -> None:
    scene = replace(
        scene, rows=tuple(replace(r, arrival_work=min(r.arrival_work, work_done)) for r in scene.rows)
    )
    facts = facts_of(scene)
    late = deferred(facts)

    def ratio(fact: Fact) -> float:
        if fact.request_id in late:
            return -inf
        return (work_done - fact.row.arrival_work) / max(1, fact.uncached)

    expected = by(facts, lambda fact: -ratio(fact))
    assert scene.prepare(work_done=work_done).order(Hrrn()) == expected


def test_hrrn_reads_the_work_from_the_planner() -> None:
    """`old` came before 300 tokens were admitted, `young` after: 300/200 beats 0/100."""
    planner = planner_of(rows_of([1] * 300, [2] * 200), PeekConfig.from_label("hrrn+lru"))
    cache = cache_of([])
    planner.plan(cache, 2.0)
    planner.remove("r0", uncached_tokens=300)
    planner.add(PendingRequest("young", [3] * 100, 3.0))
    assert planner.tree.request("young").arrival_work == 300
    assert planner.plan(cache, 3.0) == ["r1", "young"]
    planner.add(PendingRequest("cached", [4] * 50, 3.0))
    assert planner.plan(cache_of([("", (4,) * 50)]), 3.0) == ["r1", "young", "cached"], "its last token"


def test_hrrn_ties_stay_in_arrival_order() -> None:
    """Who came back after a preemption stands where it stood."""
    planner = planner_of(rows_of([1] * 50, [2] * 50), PeekConfig.from_label("hrrn+lru"))
    planner.remove("r0", admitted=False)
    planner.add(PendingRequest("r0", [1] * 50, 0.0))
    assert planner.plan(cache_of([]), NOW) == ["r0", "r1"]


# -- depth first by weight ----------------------------------------------------------------------------


def matched_paths(scene: Scene) -> dict[tuple[object, ...], list[str]]:
    """Where in the cache tree each waiting request stops matching: path -> requests in arrival order.

    A namespace is part of the first step, as SGLang's `extra_key` is: there is one root.
    """
    stopped = defaultdict(list)
    for fact in facts_of(scene):
        symbols = fact.row.symbols[: fact.cached_len // scene.unit]
        steps = [(fact.row.namespace, symbol) for symbol in symbols]
        stopped[tuple(steps)].append(fact.request_id)
    return stopped


def sglang_dfs_weight(stopped: dict[tuple[object, ...], list[str]], rank: dict[str, int]) -> list[str]:
    """Recursion over the explicit tree: the heavier child first, then the node's own requests."""
    children: defaultdict[object, dict[tuple[object, ...], list[str]]] = defaultdict(dict)
    own: list[str] = []
    for path, names in stopped.items():
        if path:
            children[path[0]][path[1:]] = names
        else:
            own += names

    def weight(branch: dict[tuple[object, ...], list[str]]) -> tuple[int, int]:
        below = [name for names in branch.values() for name in names]
        return (-len(below), min(rank[name] for name in below))

    order: list[str] = []
    for branch in sorted(children.values(), key=weight):
        order += sglang_dfs_weight(branch, rank)
    return order + own


def naive_dfs_weight(scene: Scene) -> list[str]:
    rank = {row.request_id: i for i, row in enumerate(scene.rows)}
    return sglang_dfs_weight(matched_paths(scene), rank)


@given(scene=scenes(max_size=9, one_namespace=True))
def test_dfs_weight_is_sglangs_recursion(scene: Scene) -> None:
    assert scene.prepare().order(DfsWeight()) == naive_dfs_weight(scene)


@given(scene=scenes(max_size=9))
def test_dfs_weight_treats_namespaces_as_branches_of_one_root(scene: Scene) -> None:
    assert scene.prepare().order(DfsWeight()) == naive_dfs_weight(scene)


@given(
    prompts=st.lists(st.tuples(TOKENS, st.booleans()), min_size=1, max_size=9),
    block=BLOCKS,
)
def test_dfs_weight_is_sglangs_recursion_on_a_cache_of_whole_blocks(
    prompts: list[tuple[list[int], bool]], block: int
) -> None:
    """Prompts part inside a block, and a match goes on behind the place where they do."""
    cache = NaiveCache(block)
    for tokens, cached in prompts:
        if cached:
            cache.add(tokens)
    stopped = defaultdict(list)
    for i, (tokens, _) in enumerate(prompts):
        held = cache.longest_prefix(tokens)
        stopped[tuple(tuple(tokens[at : at + block]) for at in range(0, held, block))].append(f"r{i}")
    planner = planner_of(rows_of(*(tokens for tokens, _ in prompts)), PeekConfig("dfs-weight"))
    assert planner.plan(BlockView(cache), NOW) == sglang_dfs_weight(
        stopped, {f"r{i}": i for i in range(len(prompts))}
    )


def test_dfs_weight_takes_the_heavier_branch_first_and_a_node_before_its_own() -> None:
    head = [1] * 10
    rows = rows_of(head, [*head, 2], [*head, 3, 4], [*head, 3, 5], [9])
    scene = Scene(rows, (("", (*head, 2)), ("", (*head, 3, 4))))
    # r3 stops at [.., 3], above r2; r0 at the head; r4 matches nothing
    assert scene.prepare().order(DfsWeight()) == ["r2", "r3", "r1", "r0", "r4"]


def test_dfs_weight_ties_go_to_the_branch_that_was_there_first() -> None:
    """r3 splits the branch of r0, which makes its node new, not its request."""
    rows = rows_of([1] * 40 + [2], [5] * 40 + [6], [5] * 40 + [7], [1] * 40 + [3])
    scene = Scene(rows, (("", (1,) * 40), ("", (5,) * 40)))
    assert scene.prepare().order(DfsWeight()) == ["r0", "r3", "r1", "r2"]


def test_dfs_weight_forgets_what_an_earlier_walk_matched() -> None:
    prompts = [sum(pieces, ()) for pieces in ((PIECES[5], PIECES[0]), (PIECES[5], PIECES[1]), (PIECES[6],))]
    rows = tuple(Arrival(f"r{i}", prompt, float(i)) for i, prompt in enumerate(prompts))
    planner = planner_of(rows, PeekConfig.from_label("dfs-weight+lru"))
    full = planner.plan(cache_of([("", prompt) for prompt in prompts]), NOW)
    assert full == ["r0", "r1", "r2"]
    assert planner.plan(cache_of([("", prompts[2])]), NOW) == ["r2", "r0", "r1"]
    assert ids(planner.tree.requests()) == ["r0", "r1", "r2"]
