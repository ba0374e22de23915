"""`peek.offline.reorder` against naive twins, its guards, and what the published form misses."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.offline_batches import branching, grouped, in_blocks, naive_hits, naive_order, own, rollouts
from support.offline_texts import TEXTS, WORKLOADS, workload

from peek import InvalidConfig, InvalidKey
from peek.offline import Waves, reorder
from peek.offline.batch_trie import shared_with_previous
from peek.offline.reordering import duplicates, hit_tokens, paper_guard, pioneers_ahead
from peek.offline.shape import contract, depth_first, shape_of, shared_depth
from peek.testing.twins import common_length

tokens = st.integers(0, 2)
batches = st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=30)


@given(batches, st.integers(1, 12))
def test_published_order_is_that_of_a_naive_trie(batch: list[list[int]], limit: int) -> None:
    order = depth_first(shape_of(batch, max_tokens=limit)).tolist()
    assert order == naive_order([prompt[:limit] for prompt in batch])


@given(batches, st.integers(1, 4))
def test_order_in_blocks_is_that_of_a_naive_trie_of_blocks(batch: list[list[int]], block: int) -> None:
    order = depth_first(contract(shape_of(batch), block)).tolist()
    assert order == naive_order([in_blocks(prompt, block) for prompt in batch])


@given(batches, st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_simulated_hits_are_those_of_a_cache_block_by_block(
    batch: list[list[int]], block: int, blocks: int, rnd: random.Random
) -> None:
    shape = contract(shape_of(batch), block)
    order = [rnd.randrange(len(batch)) for _ in range(40)]
    found = hit_tokens(shape, np.array(order), blocks, block)
    assert [hits // block for hits in found] == naive_hits(batch, order, blocks, block)


@given(batches)
def test_shared_depths(batch: list[list[int]]) -> None:
    shape = shape_of(batch)
    others = [[common_length(a, b) for j, b in enumerate(batch) if i != j] for i, a in enumerate(batch)]
    assert shared_depth(shape).tolist() == [max(each, default=0) for each in others]
    previous = shared_with_previous(shape.parent.tolist(), shape.depth.tolist(), shape.leaf.tolist())
    assert previous == [0, *map(common_length, batch, batch[1:])]
    assert duplicates(batch, shape) == len(batch) - len(set(map(tuple, batch)))


def test_namespaces_share_nothing() -> None:
    prompt = own(random.Random(0), 64)
    result = reorder([prompt] * 4, namespaces=["", "a", "b", "a"], min_gain=0.0)
    assert result.order == [1, 3, 0, 2]
    assert [(group.first, group.size, group.depth) for group in result.groups] == [(1, 2, 64)]


@pytest.mark.parametrize("mode", ["full", "paper"])
def test_every_form_of_prompt_gives_the_same_order(mode: str) -> None:
    batch = grouped(random.Random(0), 60, 6, 160, 32)
    forms: list[Any] = [
        batch,
        [np.array(prompt, np.int32) for prompt in batch],
        [array("i", prompt) for prompt in batch],
        [np.array(prompt, np.int32).tobytes() for prompt in batch],
        np.array(batch),
        np.asfortranarray(np.array(batch)),  # as of a data frame
        np.repeat(np.array(batch), 2, axis=1)[:, ::2],
    ]
    results = [reorder(form, cache_tokens=600, mode=mode) for form in forms]
    assert results[0].guard is None
    assert sorted(results[0].order) == list(range(60))
    assert all(result == results[0] for result in results)
    waves = [list(Waves(form, 9, cache_tokens=600)) for form in forms]
    assert all(each == waves[0] for each in waves)


class Column:
    """Prompts as pandas has them: to go through, and each under a label of its own."""

    def __init__(self, prompts: list[Any], labels: list[int]) -> None:
        self._labelled = dict(zip(labels, prompts, strict=True))

    def __len__(self) -> int:
        return len(self._labelled)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._labelled.values())

    def __getitem__(self, label: int) -> Any:
        return self._labelled[label]


@pytest.mark.parametrize("mode", ["full", "paper"])
def test_a_batch_need_be_no_sequence(mode: str) -> None:
    """A generator is read once, and a column of a table by place, whatever its labels."""
    batch = grouped(random.Random(0), 60, 6, 160, 32)
    expected = reorder([*batch, *batch], cache_tokens=600, mode=mode, replicas=2)
    assert reorder(iter([*batch, *batch]), cache_tokens=600, mode=mode, replicas=2) == expected
    for labels in (list(range(120, 0, -1)), list(range(60, 180))):
        column: Any = Column([*batch, *batch], labels)
        assert reorder(column, cache_tokens=600, mode=mode, replicas=2) == expected
        names = [str(place % 2) for place in range(120)]
        waves = [
            list(Waves(prompts, 32, cache_tokens=600, namespaces=spaces))
            for prompts, spaces in ((column, Column(names, labels)), ([*batch, *batch], names))
        ]
        assert waves[0] == waves[1]


@pytest.mark.parametrize("fault", [[], [1, -1], "abc", [2**31]])
def test_a_prompt_that_is_none_is_named(fault: Any) -> None:
    for call in (reorder, lambda batch: reorder(batch, mode="paper"), lambda batch: Waves(batch, 2)):
        with pytest.raises(InvalidKey, match=r"^prompt 2: (empty key|symbol|key is a str)"):
            call([[1], [2], fault, [3]])


def test_the_published_order_unless_a_guard_fires() -> None:
    batch = grouped(random.Random(0), 60, 6, 160, 32)
    result = reorder(batch, mode="paper")
    assert (result.order, result.guard) == (naive_order([prompt[:128] for prompt in batch]), None)
    twice = [*batch, *batch, batch[0]]
    assert (reorder(twice, mode="paper").order, guard_of(twice)) == (list(range(121)), "duplication")


# -- guards -----------------------------------------------------------------------------------------------


def guard_of(batch: list[list[int]]) -> str | None:
    return paper_guard(batch, shape_of(batch, 128))


def test_published_guards_at_their_limits() -> None:
    rnd = random.Random(0)
    shared = own(rnd, 200)
    copies = [shared + own(rnd, 40) for _ in range(10)]
    assert guard_of(copies + copies) is None  # half are duplicates, not more
    assert guard_of(copies + copies + copies[:1]) == "duplication"
    one_off = [own(rnd, 200) for _ in range(90)]
    assert guard_of([*one_off, own(rnd, 200), *copies[:9]]) == "coverage"
    assert guard_of(one_off + copies) == "depth"  # a tenth shares 128 tokens: 12.8 on average
    shallow = [shared[:63] + own(rnd, 40) for _ in range(10)]
    assert guard_of(shallow) == "depth"
    assert guard_of([shared[:64] + own(rnd, 40) for _ in range(10)]) is None
    assert guard_of([shared[:31] + own(rnd, 40) for _ in range(10)]) == "coverage"


def test_a_guard_leaves_the_order_alone() -> None:
    batch = [own(random.Random(i), 100) for i in range(20)]
    for mode, guard in (("full", "no-sharing"), ("paper", "coverage")):
        result = reorder(batch, mode=mode)
        assert (result.order, result.guard) == (list(range(20)), guard)
        assert result.expected_hit_before == result.expected_hit_after == 0.0


def test_no_gain_no_reordering() -> None:
    """Everything fits into the cache: arrival order is as good."""
    batch = grouped(random.Random(0), 100, 5, 160, 16)
    result = reorder(batch, cache_tokens=100_000)
    assert (result.order, result.guard) == (list(range(100)), "gain")
    assert reorder(batch, cache_tokens=1_000).guard is None
    assert reorder(batch, simulate=False).expected_hit_before is None


# -- what the published form misses -----------------------------------------------------------------------


def hits(batch: list[list[int]], mode: str, cache_tokens: int) -> tuple[float, float]:
    result = reorder(batch, mode=mode, cache_tokens=cache_tokens)
    assert result.expected_hit_before is not None
    assert result.expected_hit_after is not None
    return result.expected_hit_before, result.expected_hit_after


def test_a_system_prompt_common_to_all_hides_no_group() -> None:
    batch = grouped(random.Random(0), 4000, 400, 448, 64, system=300)
    before, after = hits(batch, "full", 60_000)
    assert before < 0.55
    assert after > 0.84
    assert hits(batch, "paper", 60_000) == (before, before)


def test_duplicates_are_grouped() -> None:
    batch = rollouts(random.Random(0), 600, 8, 512)
    before, after = hits(batch, "full", 60_000)
    assert before < 0.2
    assert after > 0.84
    assert reorder(batch, mode="paper").guard == "duplication"


def test_branching_trees_are_reordered() -> None:
    batch = branching(random.Random(0), 4000, trees=20, levels=3, edge=16, fan=4, tail=48)
    before, after = hits(batch, "full", 20_000)
    assert after > before + 0.04
    assert reorder(batch, mode="paper").guard == "depth"


# -- pioneers ---------------------------------------------------------------------------------------------


def test_pioneers_go_ahead_of_their_siblings() -> None:
    batch = grouped(random.Random(1), 400, 20, 320, 32)
    shape = contract(shape_of(batch), 16)
    order = depth_first(shape)
    ahead = pioneers_ahead(shape, order, 10)
    assert sorted(ahead.tolist()) == list(range(400))
    assert pioneers_ahead(shape, order, 0) is order
    # An engine that shows a prefix to others only when its prefill has ended, eight prompts later.
    plain = sum(hit_tokens(shape, order, 200, 16, in_flight=8))
    early = sum(hit_tokens(shape, ahead, 200, 16, in_flight=8))
    assert early > 1.2 * plain
    assert early > 0.9 * sum(hit_tokens(shape, order, 200, 16))


def test_the_engine_sets_the_spacing() -> None:
    batch = grouped(random.Random(1), 400, 20, 320, 32)
    plain = reorder(batch, cache_tokens=3200, engine="vllm")
    ahead = reorder(batch, cache_tokens=3200, engine="sglang")
    assert ahead.order != plain.order
    assert ahead.order == reorder(batch, cache_tokens=3200, pioneer_spacing=32).order
    # What is expected of SGLang counts prompts that start while a prefix is still in prefill.
    unspaced = reorder(batch, cache_tokens=3200, engine="sglang", pioneer_spacing=0, min_gain=-1.0)
    assert unspaced.order == plain.order
    assert plain.expected_hit_after is not None
    assert ahead.expected_hit_after is not None
    assert unspaced.expected_hit_after is not None
    assert plain.expected_hit_after > ahead.expected_hit_after > unspaced.expected_hit_after + 0.3


# -- wrong usage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "deep"}, "'deep'"), ({"engine": "tgi"}, "'tgi'"), ({"block_tokens": 0}, "0"),
        ({"replicas": 0}, "0"), ({"replicas": 2**40}, "replicas is 1099511627776; need 1 .. 10000"),
        ({"cache_tokens": 15}, "15"), ({"pioneer_spacing": -1}, "-1"),
        ({"min_gain": nan}, "min_gain is nan; need -1 .. 1"), ({"min_gain": 1.5}, "min_gain is 1.5"),
        ({"cache_tokens": 2**70}, "1180591620717411303424"), ({"block_tokens": 2**63}, "9223372036854775808"),
        ({"namespaces": []}, "0 namespaces for 1"), ({"namespaces": ["", "a"], "mode": "paper"}, "2 names"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        reorder([[1, 2]], **options)


@pytest.mark.parametrize(
    "batch", [*([[1, 2], prompt] for prompt in ([], [1, -1], "text", [1, None])), np.array([[1, 2**40]])]
)
def test_wrong_prompts(batch: Any) -> None:
    with pytest.raises(InvalidKey):
        reorder(batch)


def test_an_empty_batch() -> None:
    for mode in ("full", "paper"):
        result = reorder([], mode=mode)
        assert (result.order, result.guard, result.groups) == ([], "no-sharing", [])


# -- workloads of real texts --------------------------------------------------------------------------------

LEAST_GAIN = {
    "system prompts": 0.6, "few-shot": 0.05, "mixed traffic": 0.3, "multi-turn": 0.5, "code completion": 0.5,
    "summarisation": 0.5, "multi-agent": 0.3, "legal RAG": 0.2, "enterprise search": 0.1,
}  # fmt: skip
"""Rise of the hit ratio; 0 where not named."""


@pytest.mark.slow
@pytest.mark.skipif(not TEXTS.is_dir(), reason="no shared/data/text next to the checkout")
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str) -> None:
    batch, cache_tokens = workload(name)
    result = reorder(batch, cache_tokens=cache_tokens)
    assert result.expected_hit_before is not None
    assert result.expected_hit_after is not None
    assert result.expected_hit_after >= result.expected_hit_before + LEAST_GAIN.get(name, 0.0)
    if name in ("no sharing", "diverse singletons"):
        assert result.order == list(range(len(batch)))
