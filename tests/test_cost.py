"""Step times: the model, worked out by hand and for any step, and what is learned by watching."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.errors import WorkloadError
from peek.simulation.cells import CELL_NAMES
from peek.simulation.cost import (
    CARDS,
    ENOUGH,
    GEMMA2_27B,
    H100,
    H100_TP2,
    LLAMA31_70B,
    MISTRAL_24B,
    MODELS,
    QWEN25_32B,
    CostModel,
    Hardware,
    MeasuredSteps,
    Model,
    arena_for,
    arena_tokens,
    card_named,
    chunk_pairs,
    cost_model_for,
    model_named,
    model_of,
)

OVERHEAD_S = 0.0015
LENGTHS = st.integers(0, 200)
STEPS = st.tuples(st.integers(0, 10_000), st.floats(0, 1e9), st.integers(0, 100_000))


def naive_pairs(start: int, tokens: int) -> int:
    """Every token of a chunk attends to the context, to the chunk's tokens before it, and to itself."""
    pairs = 0
    for token in range(tokens):
        for _ in range(start + token + 1):
            pairs += 1
    return pairs


@given(start=LENGTHS, tokens=LENGTHS)
def test_pairs_of_a_chunk_are_those_of_a_double_loop_but_for_the_diagonal(start: int, tokens: int) -> None:
    assert chunk_pairs(start, tokens) == naive_pairs(start, tokens) - tokens / 2


@given(start=LENGTHS, tokens=LENGTHS, cut=LENGTHS)
def test_a_prompt_has_the_same_pairs_in_one_chunk_or_two(start: int, tokens: int, cut: int) -> None:
    cut = min(cut, tokens)
    halves = chunk_pairs(start, cut) + chunk_pairs(start + cut, tokens - cut)
    assert chunk_pairs(start, tokens) == pytest.approx(halves)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("qwen2.5-7b", 57_344), ("qwen2.5-14b", 196_608), ("qwen2.5-32b", 262_144), ("qwen2.5-72b", 327_680),
        ("qwen3-8b", 147_456), ("qwen3-32b", 262_144), ("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680),
        ("mistral-7b", 131_072), ("mistral-small-24b", 163_840), ("gemma-2-27b", 376_832),
    ],
)  # fmt: skip
def test_kv_bytes_of_the_models_that_have_a_name(name: str, kv_bytes: int) -> None:
    """As the models' own `config.json` have it: 2 x layers x KV heads x head size x 2 bytes."""
    assert model_named(name).kv_bytes == kv_bytes


def test_a_decode_step_of_qwen_on_h100() -> None:
    """65.6 GB of weights at 0.8 x 3.35 TB/s are 24.48 ms; 1000 context tokens are 262 MB more, 0.098 ms."""
    cost = CostModel()
    assert cost.step_s(1, 0.0, 0) == pytest.approx(OVERHEAD_S + 0.024478, abs=1e-6)
    assert cost.step_s(64, 0.0, 0) == cost.step_s(1, 0.0, 0)
    assert cost.step_s(1, 0.0, 1000) - cost.step_s(1, 0.0, 0) == pytest.approx(97.81e-6, abs=1e-8)


def test_a_prefill_token_of_qwen_on_h100() -> None:
    """2 x 32.8e9 FLOP at 0.75 x 989 TFLOP/s are 0.0884 ms."""
    cost = CostModel()
    token_s = cost.step_s(2001, 0.0, 0) - cost.step_s(2000, 0.0, 0)
    assert token_s == pytest.approx(0.08844e-3, abs=1e-7)
    assert cost.step_s(2000, 0.0, 0) == pytest.approx(OVERHEAD_S + 0.17688, abs=1e-4)


def test_attention_of_a_4096_token_prefill() -> None:
    """4 x 64 x 40 x 128 FLOP a pair, 8.39e6 pairs: 11.0 TFLOP or 14.8 ms on top of 362 ms."""
    cost = CostModel()
    pairs = chunk_pairs(0, 4096)
    assert pairs == 8_388_608.0
    attention_s = cost.step_s(4096, pairs, 0) - cost.step_s(4096, 0.0, 0)
    assert attention_s == pytest.approx(14.82e-3, abs=1e-5)


def test_weights_and_compute_overlap_kv_reads_do_not() -> None:
    hardware = Hardware("unit", 1000.0, bandwidth=200.0, memory_gib=1.0, mfu=0.5, mbu=0.5, overhead_s=1.0)
    cost = CostModel(hardware, Model("unit", parameters=50.0, layers=1, heads=1, kv_heads=1, head_dim=1))
    assert cost.step_s(0, 0.0, 0) == 2.0  # 100 bytes of weights take 1 s
    assert cost.step_s(4, 0.0, 0) == 2.0  # 400 FLOP at 500 FLOP/s stay behind them
    assert cost.step_s(10, 0.0, 0) == 3.0  # 1000 FLOP take 2 s
    assert cost.step_s(10, 125.0, 0) == 4.0  # 4 FLOP a pair
    assert cost.step_s(10, 125.0, 25) == 5.0  # 4 bytes a context token


@given(step=STEPS, more=STEPS)
def test_more_work_never_takes_less_time(step: tuple[int, float, int], more: tuple[int, float, int]) -> None:
    cost = CostModel()
    larger = [a + b for a, b in zip(step, more, strict=True)]
    assert cost.step_s(*larger) >= cost.step_s(*step) > OVERHEAD_S


@given(step=STEPS)
def test_faster_hardware_is_faster(step: tuple[int, float, int]) -> None:
    slow_s, fast_s = CostModel(H100).step_s(*step), CostModel(H100_TP2).step_s(*step)
    assert fast_s - OVERHEAD_S == pytest.approx((slow_s - OVERHEAD_S) / 2)
    assert CostModel(replace(H100, overhead_s=0.1)).step_s(*step) == pytest.approx(slow_s + 0.0985)


@pytest.mark.parametrize(
    ("cell", "hardware", "model"),
    [
        ("w1c", H100, QWEN25_32B), ("w2b", H100, QWEN25_32B), ("w3b", H100_TP2, LLAMA31_70B),
        ("w4-shared", H100, MISTRAL_24B), ("w5-long", H100, GEMMA2_27B), ("some trace", H100, QWEN25_32B),
        ("", H100, QWEN25_32B),
    ],
)  # fmt: skip
def test_the_papers_pairing(cell: str, hardware: Hardware, model: Model) -> None:
    cost = cost_model_for(cell)
    assert (cost.hardware, cost.model) == (hardware, model)


def test_every_cell_has_a_pairing() -> None:
    assert {name[:2] for name in CELL_NAMES} == set(MODELS)


# -- cards and models -------------------------------------------------------------------------------------

CONFIGS: dict[str, dict[str, Any]] = {  # of the published config.json
    "qwen2.5-32b": {
        "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
        "intermediate_size": 27648, "vocab_size": 152064,
    },
    "llama-3.1-8b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "layer_types": ["full_attention"] * 32,
    },
    "qwen3-32b": {
        "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 25600, "vocab_size": 151936, "head_dim": 128,
    },
    "mistral-7b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32768, "head_dim": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_by_its_config_is_the_model_by_its_name(name: str) -> None:
    named, counted = model_named(name), model_of(name, CONFIGS[name])
    assert counted.parameters == pytest.approx(named.parameters, rel=0.002)
    assert replace(counted, parameters=0.0) == replace(named, name=name, parameters=0.0)


def test_tied_embeddings_count_once() -> None:
    config = {**CONFIGS["llama-3.1-8b"], "tie_word_embeddings": True}
    both, once = model_of("m", CONFIGS["llama-3.1-8b"]), model_of("m", config)
    assert both.parameters - once.parameters == 128256 * 4096


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 0}, "vocab_size is '0', not a size"),
        ({"hidden_size": True}, "hidden_size is 'True'"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        ({"vocab_size": 10**400}, "vocab_size is '1000"),
        ({"layer_types": 5}, "has layer_types"),
        ({"layer_types": [["full_attention"]]}, "has layer_types"),
        ({"kv_lora_rank": 512}, "has kv_lora_rank"),
        ({"num_local_experts": 8}, "has num_local_experts"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has layer_types"),
    ],
)
def test_models_that_the_formula_does_not_fit(change: dict[str, Any], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        model_of("m", {**CONFIGS["llama-3.1-8b"], **change})


def test_cards_together() -> None:
    one, four = card_named("l40s"), card_named("l40s", 4)
    assert (four.flops, four.bandwidth, four.memory_gib) == (1448e12, 3.456e12, 180.0)
    assert (four.name, four.mfu, four.mbu) == ("4xL40S-48GB TP=4", one.mfu, one.mbu)
    assert card_named("h100") is H100
    assert all(card.memory_gib > 16 for card in CARDS.values())


# -- what a card leaves for the cache -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "tokens"),
    [
        # 79.6 GiB x 0.88 = 75.214e9 bytes; less 16.06e9 of weights; 131,072 bytes a token
        (model_named("llama-3.1-8b"), (), 451_000),
        (model_named("llama-3.1-8b"), (0.5,), 203_000),
        # 75.214e9 bytes less 2 x 23.6e9, at 2 x 40 x 8 x 128 x 2 bytes a token
        (MISTRAL_24B, (), 170_000),
    ],
)
def test_an_arena_is_what_the_weights_leave(model: Model, options: tuple[float, ...], tokens: int) -> None:
    assert arena_tokens(H100, model, *options) == tokens


@pytest.mark.parametrize(
    ("hardware", "model", "share", "said"),
    [
        (card_named("l4"), "llama-3.1-8b", 0.5, r"Llama-3.1-8B does not fit L4-24GB at 0.5 of 22.5 GiB"),
        (H100, "llama-3.1-70b", 0.88, r"Llama-3.1-70B does not fit H100-SXM-80GB at 0.88 of 79.6 GiB"),
    ],
)
def test_weights_that_do_not_fit_are_named(hardware: Hardware, model: str, share: float, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        arena_tokens(hardware, model_named(model), share)


@pytest.mark.parametrize(
    ("name", "tokens"), [("w1a", 36_000), ("w3c", 28_000), ("w4-shared", 170_000), ("w5-long", 55_000)]
)
def test_arenas_of_the_papers_pairings(name: str, tokens: int) -> None:
    assert arena_for(name) == tokens


@given(utilisation=st.floats(0.88, 1.0))
def test_an_arena_fits_the_card_and_a_thousand_more_would_not(utilisation: float) -> None:
    for hardware, model in MODELS.values():
        tokens = arena_tokens(hardware, model, utilisation)
        room = hardware.memory_gib * utilisation * 2**30 - 2 * model.parameters
        assert tokens * model.kv_bytes <= room < (tokens + 1000) * model.kv_bytes


# -- learned by watching ---------------------------------------------------------------------------------

SEEN_STEPS = (
    (16, 0.0, 16_000), (60, 4e4, 30_000), (300, 3e5, 20_000), (1200, 1e6, 16_000), (8000, 4e7, 1000),
)  # fmt: skip


def watched(true: CostModel, lag: int = 0, noise: float = 0.0, stall: float = 0.0) -> MeasuredSteps:
    """What is learned from 3,000 steps whose time shows `lag` intervals late."""
    rng = Random(3)
    learned = MeasuredSteps()
    now, spent = 0.0, [0.0] * lag
    for _ in range(3000):
        kind = rng.choice(SEEN_STEPS)
        tokens, pairs, kv_tokens = (type(value)(value * rng.uniform(0.5, 1.5)) for value in kind)
        learned.note(now, True, tokens, pairs, kv_tokens)
        spent.append(true.step_s(tokens, pairs, kv_tokens) * rng.uniform(1 - noise, 1 + noise))
        now += spent[-1 - lag] + (stall if rng.random() < 0.001 else 0.0)
    return learned


@pytest.mark.parametrize(
    ("seen", "rel"),
    [({"lag": 0}, 0.06), ({"lag": 1}, 0.06), ({"noise": 0.3, "stall": 2.0}, 0.12)],
    ids=["at once", "late", "with noise and stalls"],
)
def test_the_cost_model_is_found(seen: dict[str, Any], rel: float) -> None:
    true = CostModel()
    learned = watched(true, **seen)
    for step in SEEN_STEPS:
        assert learned.step_s(*step) == pytest.approx(true.step_s(*step), rel=rel), step


def test_nothing_is_known_at_first_and_idle_time_is_no_step() -> None:
    learned = MeasuredSteps()
    now = 0.0
    for place in range(3 * ENOUGH):
        assert learned.known == (place >= 2 * ENOUGH)
        went_on = place % 2 == 1 or place > 2 * ENOUGH
        learned.note(now, went_on, 10, 0.0, 0)
        now += 0.02 if place % 2 == 0 or place >= 2 * ENOUGH else 60.0
    assert learned.step_s(10, 0.0, 0) == pytest.approx(0.02, rel=1e-3)


def test_no_term_is_negative() -> None:
    """Steps that get shorter with more tokens: the fit takes them for equally long."""
    learned = MeasuredSteps()
    now = 0.0
    for place in range(2 * ENOUGH):
        tokens = 1 + place % 7
        learned.note(now, True, tokens, 0.0, 0)
        now += 0.1 - 0.01 * tokens
    assert 0.02 < learned.step_s(1, 0.0, 0) <= learned.step_s(1000, 0.0, 0) < 0.2
