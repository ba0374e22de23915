"""Block keys, the shadow cache, waves and replicas."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.offline_batches import Prompt, grouped, in_blocks, naive_hits, own, rollouts

from peek import InvalidConfig, UnknownRequest
from peek.errors import WorkloadError
from peek.offline import ShadowCache, Waves, block_keys, reorder
from peek.offline.block_keys import batch_keys
from peek.offline.formats import id_of
from peek.offline.reordering import hit_ratio
from peek.offline.replicas import _cuts, balanced, saved_tokens, split
from peek.offline.shape import contract, depth_first, shape_of
from peek.testing.twins import common_length

batches = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=30)

# -- block keys -------------------------------------------------------------------------------------------


@given(batches, st.integers(1, 4))
def test_keys_are_equal_exactly_where_prefixes_are(batch: list[Prompt], block: int) -> None:
    meaning: dict[int, tuple[tuple[int, ...], ...]] = {}
    for prompt in batch:
        keys = block_keys(prompt, block)
        blocks = in_blocks(prompt, block)
        assert len(keys) == len(blocks)
        for i, key in enumerate(keys):
            assert meaning.setdefault(key, tuple(blocks[: i + 1])) == tuple(blocks[: i + 1])
    assert len(meaning) == len(set(meaning.values()))


def test_a_block_has_a_token() -> None:
    with pytest.raises(InvalidConfig, match="block_tokens is 0, less than 1"):
        block_keys([1, 2], 0)


@given(batches, st.integers(1, 4))
def test_keys_of_a_batch(batch: list[Prompt], block: int) -> None:
    flat = np.array([token for prompt in batch for token in prompt], np.int32)
    lengths = np.array([*map(len, batch)], np.int64)
    names = ["", "x"] * len(batch)
    keys, starts, depths = batch_keys(flat, lengths, block, names[: len(batch)])
    found = [keys[a:b].tolist() for a, b in pairwise(starts)]
    assert found == [block_keys(p, block, name) for p, name in zip(batch, names, strict=False)]
    assert depths.tolist() == [place + 1 for prompt in batch for place in range(len(prompt) // block)]


def test_namespaces_have_keys_of_their_own() -> None:
    assert set(block_keys([1] * 64)).isdisjoint(block_keys([1] * 64, namespace="lora"))
    assert block_keys([1] * 64, namespace="\ud800") != block_keys([1] * 64, namespace="\ud801")


def test_a_single_changed_bit_changes_all_keys_behind_it() -> None:
    prompt = own(random.Random(0), 640)
    keys = block_keys(prompt)
    for at in (0, 15, 16, 333, 639):
        for bit in range(17):
            changed = block_keys([*prompt[:at], prompt[at] ^ (1 << bit), *prompt[at + 1 :]])
            assert changed[: at // 16] == keys[: at // 16]
            assert set(changed[at // 16 :]).isdisjoint(keys)


# -- shadow cache -----------------------------------------------------------------------------------------


@given(batches, st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_without_references_it_is_an_lru_cache(
    batch: list[Prompt], block: int, blocks: int, rnd: random.Random
) -> None:
    cache = ShadowCache(blocks * block, block)
    order = [rnd.randrange(len(batch)) for _ in range(40)]
    found = [min(cache.admit(block_keys(batch[i], block)), (len(batch[i]) - 1) // block) for i in order]
    assert found == naive_hits(batch, order, blocks, block)


@given(batches, st.integers(2, 12), st.randoms(use_true_random=False))
def test_no_block_without_its_ancestors(batch: list[Prompt], blocks: int, rnd: random.Random) -> None:
    cache = ShadowCache(blocks, 1)
    chains = [block_keys(prompt, 1) for prompt in batch]
    due = [rnd.choice(chains) for _ in range(20)]
    for keys in due:
        cache.refer(keys)
    for _ in range(60):
        move = rnd.randrange(4)
        if move == 0 and due:
            cache.refer(due.pop(), -1)
        elif move == 1:
            cache.reconcile(rnd.randrange(6), rnd.randrange(6))
        else:
            cache.admit(rnd.choice(chains))
        assert len(cache) <= cache.capacity <= blocks
        for keys in chains:
            held = [key in cache for key in keys]
            assert held == sorted(held, reverse=True)
            for key in keys:
                assert cache.references(key) == sum(key in chain for chain in due)


def test_needed_blocks_stay() -> None:
    for is_needed in (False, True):
        cache = ShadowCache(8, 1)
        cache.admit([1, 2, 3, 4])
        if is_needed:
            cache.refer([1, 2, 3])
        for i in range(10, 50, 4):
            cache.admit([i, i + 1, i + 2, i + 3])
        assert cache.match([1, 2, 3, 4]) == (3 if is_needed else 0)


def test_among_needed_blocks_the_least_worth_goes() -> None:
    cache = ShadowCache(4, 1)
    cache.refer([1, 2], 3)
    cache.refer([11, 12], 2)
    cache.admit([1, 2])
    cache.admit([11, 12])
    cache.admit([20])  # log(3) x 2 is less than log(4) x 2
    assert (cache.match([1, 2]), cache.match([11, 12])) == (2, 1)


def test_it_follows_what_the_engine_reports() -> None:
    cache = ShadowCache(64 * 16)
    cache.admit(list(range(64)))
    assert cache.admit(list(range(40))) == 40
    cache.reconcile(40 * 16, 20 * 16)
    assert (cache.capacity, len(cache)) == (44, 44)
    cache.reconcile(0, 10 * 16)
    assert cache.capacity == 54
    cache.reconcile(0, 100 * 16)
    assert cache.capacity == 64
    cache.reconcile(1000 * 16, 0)
    assert cache.capacity == 8


# -- waves ------------------------------------------------------------------------------------------------


@given(batches, st.integers(1, 7), st.integers(2, 12))
def test_waves_hand_out_every_prompt_once(batch: list[Prompt], size: int, blocks: int) -> None:
    waves = Waves(batch, size, cache_tokens=blocks, block_tokens=1)
    found = []
    for wave in waves:
        assert len(wave) <= size
        found += wave
    assert sorted(found) == list(range(len(batch)))
    for prompt in batch:
        assert not any(map(waves.cache.references, block_keys(prompt, 1)))


def test_a_wave_starts_with_what_is_cached() -> None:
    rnd = random.Random(0)
    batch = grouped(rnd, 120, 6, 320, 32)
    waves = Waves(batch, 10, cache_tokens=800)
    last: list[int] = []
    for wave in waves:
        group = tuple(batch[last[-1]][:320]) if last else ()
        here = [tuple(batch[index][:320]) == group for index in wave]
        assert here == sorted(here, reverse=True)
        last = wave


def test_waves_hit_no_less_than_the_plain_order() -> None:
    batch = grouped(random.Random(2), 400, 40, 320, 32)
    shape = contract(shape_of(batch), 16)
    order = [index for wave in Waves(batch, 32, cache_tokens=3200) for index in wave]
    plain = hit_ratio(shape, depth_first(shape), 200, 16)
    assert hit_ratio(shape, np.array(order), 200, 16) >= plain - 0.005


def test_waves_know_how_many_prompts_ahead_need_a_block() -> None:
    batch = [[1, 2], [1, 3], [1, 4], [5, 6], [7]]
    waves = Waves(batch, 1, cache_tokens=100, block_tokens=1)
    shared = block_keys([1], 1)[0]
    assert waves.cache.references(shared) == 3
    assert [waves.cache.references(block_keys([first], 1)[0]) for first in (5, 7)] == [0, 0]
    pairs = Waves(batch[1:], 1, cache_tokens=100, block_tokens=1)
    assert pairs.cache.references(shared) == 2
    ahead = [waves.cache.references(shared) for _ in waves]
    assert sorted(ahead, reverse=True) == ahead == [2, 1, 0, 0, 0]


def test_a_prompt_is_expected_to_hit_all_but_its_last_token() -> None:
    """A repeated prompt of one whole block: engines compute the last token, so no block of it is hit."""
    batch = [[1, 2], [1, 2], [1, 2, 3], [1, 2, 3]]
    for prompts in (batch, [np.array(prompt, np.int32).tobytes() for prompt in batch]):
        waves = Waves(prompts, 1, cache_tokens=100, block_tokens=2)
        expected = {index: waves._expected[index] for wave in waves for index in wave}
        assert sorted(expected.values()) == [0, 0, 2, 2]


def test_waves_keep_namespaces_apart() -> None:
    waves = Waves([[1, 2, 3]] * 4, 1, cache_tokens=100, block_tokens=1, namespaces=["", "a", "b", "a"])
    order = [index for wave in waves for index in wave]
    assert [(index, waves._expected[index]) for index in order] == [(1, 0), (3, 2), (0, 0), (2, 0)]


def test_waves_follow_the_engine() -> None:
    batch = grouped(random.Random(2), 60, 6, 320, 32)
    waves = Waves(batch, 10, cache_tokens=3200)
    wave = next(iter(waves))
    for index in wave:
        waves.completed(index, 0)
    assert waves.cache.capacity < waves.cache.stated
    with pytest.raises(UnknownRequest):
        waves.completed(wave[0], 0)


# -- replicas ---------------------------------------------------------------------------------------------


def test_a_prefix_longer_than_an_even_share_leaves_no_replica_idle() -> None:
    costs = np.array(([4030] + [30] * 39) * 3)
    saved = np.array(([0] + [4000] * 39) * 3)
    _, work = balanced(costs, saved, 0, 8)
    assert sum(work[:7]) > 0
    assert max(work) <= 4630, "an even share is 1,950 tokens, and each run has a prefix of 4,000"


@given(
    groups=st.lists(
        st.tuples(st.sampled_from([0, 16, 160, 1600]), st.sampled_from([1, 5, 40, 300]), st.integers(1, 30)),
        min_size=1,
        max_size=12,
    ),
    replicas=st.integers(1, 9),
    filler=st.sampled_from([0, 500, 20_000]),
)
def test_the_longest_run_is_an_even_part_and_a_prompt_at_most(
    groups: list[tuple[int, int, int]], replicas: int, filler: int
) -> None:
    costs = np.array([prefix * (at == 0) + own for prefix, own, size in groups for at in range(size)])
    saved = np.array([prefix * (at > 0) for prefix, own, size in groups for at in range(size)])
    cuts, work = balanced(costs, saved, filler, replicas)
    assert cuts == sorted(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(costs), replicas + 1)
    prompt = max((costs + saved).tolist())
    assert max(work) <= 1.02 * ((sum(costs.tolist()) + filler) / replicas + prompt) + prompt


def test_each_replica_gets_whole_groups_even_where_one_engine_needs_no_order() -> None:
    """All eight prefixes fit one cache; in order of arrival each of four replicas would compute all eight."""
    batch = [[group] * 1600 + [group, at] * 20 for at in range(30) for group in range(8)]
    result = reorder(batch, cache_tokens=200_000, replicas=4)
    assert result.guard == "gain"
    assert result.shares is not None
    assert [len({batch[index][0] for index in share.order}) for share in result.shares] == [2, 2, 2, 2]
    assert sorted(index for share in result.shares for index in share.order) == list(range(240))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shape_name", ["groups", "filler", "one group", "rollouts", "unshared"])
def test_replicas_get_equal_work(replicas: int, shape_name: str) -> None:
    rnd = random.Random(3)
    batch = {
        "groups": lambda: grouped(rnd, 2000, 120, 512, 64),
        "filler": lambda: (
            grouped(rnd, 300, 10, 512, 64, system=64) + [own(rnd, rnd.randrange(32, 512)) for _ in range(400)]
        ),
        "one group": lambda: grouped(rnd, 1000, 1, 256, 128),
        "rollouts": lambda: rollouts(rnd, 600, 8, 200),
        "unshared": lambda: [own(rnd, rnd.randrange(32, 512)) for _ in range(300)],
    }[shape_name]()
    shape = contract(shape_of(batch), 16)
    order = depth_first(shape).tolist()
    shares = split(shape, order, replicas, 16)
    assert sorted(index for share in shares for index in share.order) == list(range(len(batch)))
    work = []
    for share in shares:
        chain = [batch[index] for index in share.order]
        kept = [min(common_length(a, b) // 16, (len(b) - 1) // 16) * 16 for a, b in pairwise(chain)]
        work.append(sum(map(len, chain)) - sum(kept))
    assert work == [share.uncached_tokens for share in shares]
    assert max(work) <= 1.05 * min(work)
    # One group more on a replica for every cut, no more.
    groups = {index: tuple(prompt[:192]) for index, prompt in enumerate(batch)}
    if shape_name == "groups":
        seen = [len({groups[index] for index in share.order}) for share in shares]
        assert sum(seen) <= 120 + replicas - 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=1), st.integers(1, 4))
def test_a_prompt_saves_whole_blocks_and_never_its_last_token(
    prompts: list[tuple[int, int]], block: int
) -> None:
    shared, tokens = np.array(prompts).T
    saved = saved_tokens(shared, tokens, block)
    assert saved.tolist() == [min(each, (length - 1) // block) * block for each, length in prompts]
    assert (saved < tokens).all()


def test_no_replica_at_all() -> None:
    shape = contract(shape_of([[1, 2]]), 1)
    with pytest.raises(InvalidConfig):
        split(shape, [0], 0, 1)
    assert [share.order for share in split(shape, [0], 3, 1)] == [[0], [], []]


@pytest.mark.parametrize("mode", ["full", "paper"])
@pytest.mark.parametrize("simulate", [True, False])
def test_shares_of_reorder(mode: str, simulate: bool) -> None:
    batch = grouped(random.Random(3), 200, 8, 128, 16)
    result = reorder(batch, cache_tokens=400, replicas=2, mode=mode, simulate=simulate)
    assert [index for share in result.shares for index in share.order] == result.order
    assert result.guard is None
    assert not reorder(batch, cache_tokens=400, mode=mode, simulate=simulate).shares


def test_ids_of_lines() -> None:
    lines = [b'{"custom_id": "a"}', b'{"custom_id": 7}', b'{"custom_id": ""}', b"{}", b"[]"]
    assert [id_of(line, json.loads) for line in lines] == ["a", 7, None, None, None]
    with pytest.raises(WorkloadError, match=r"^not valid JSON: "):
        id_of(b"{", json.loads)
    with pytest.raises(WorkloadError, match=r"^nested too deeply$"):
        id_of(b"[" * 100_000, json.loads)


@pytest.mark.parametrize("cheap", [985, 1015])
def test_a_run_is_cut_a_little_before_or_behind_its_share_where_less_is_shared(cheap: int) -> None:
    total = np.arange(2001)
    saved = np.full(2000, 5)
    saved[[0, cheap]] = 0
    saved[[900, 1100]] = 0  # too far away
    assert _cuts(total, saved, 1000.0, 0.0, 2) == [0, cheap, 2000]
