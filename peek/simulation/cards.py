"""Cards and models by name, and models from their `config.json`: what `CostModel` and `arena_tokens` need.

Of cards, dense bf16 peak and bandwidth are the vendors' data sheets, memory is what the driver reports; of
models, the published `config.json`s and parameter counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from peek.errors import WorkloadError
from peek.simulation.cost import GEMMA2_27B, H100, LLAMA31_70B, MISTRAL_24B, QWEN25_32B, Hardware, Model

CARDS: Final = {
    "h100": H100,
    "h100-nvl": Hardware("H100-NVL-94GB", 835e12, 3.9e12, 93.6),
    "h200": Hardware("H200-SXM-141GB", 989e12, 4.8e12, 140.4),
    "b200": Hardware("B200-SXM-180GB", 2250e12, 8.0e12, 179.1),
    "a100-80gb": Hardware("A100-SXM-80GB", 312e12, 2.039e12, 80.0),
    "a100-40gb": Hardware("A100-SXM-40GB", 312e12, 1.555e12, 40.0),
    "l40s": Hardware("L40S-48GB", 362e12, 0.864e12, 45.0),
    "l4": Hardware("L4-24GB", 121e12, 0.3e12, 22.5),
    "a10g": Hardware("A10G-24GB", 70e12, 0.6e12, 22.5),
    "rtx-4090": Hardware("RTX-4090-24GB", 165e12, 1.008e12, 24.0),
    "mi300x": Hardware("MI300X-192GB", 1307e12, 5.3e12, 192.0),
}

MODELS_BY_NAME: Final = {
    "qwen2.5-7b": Model("Qwen2.5-7B", 7.62e9, 28, 28, 4, 128),
    "qwen2.5-14b": Model("Qwen2.5-14B", 14.8e9, 48, 40, 8, 128),
    "qwen2.5-32b": QWEN25_32B,
    "qwen2.5-72b": Model("Qwen2.5-72B", 72.7e9, 80, 64, 8, 128),
    "qwen3-8b": Model("Qwen3-8B", 8.19e9, 36, 32, 8, 128),
    "qwen3-32b": Model("Qwen3-32B", 32.8e9, 64, 64, 8, 128),
    "llama-3.1-8b": Model("Llama-3.1-8B", 8.03e9, 32, 32, 8, 128),
    "llama-3.1-70b": LLAMA31_70B,
    "mistral-7b": Model("Mistral-7B", 7.25e9, 32, 32, 8, 128),
    "mistral-small-24b": MISTRAL_24B,
    "gemma-2-27b": GEMMA2_27B,
}

_NOT_DENSE: Final = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")
"""Fields of models whose tokens do not read all weights, or whose KV is not that of the formula."""


def card_named(name: str, count: int = 1) -> Hardware:
    """So many such cards taken together (tensor parallelism); `WorkloadError` lists the valid names."""
    if name not in CARDS:
        raise WorkloadError(f"card {name!r} is unknown; valid: {', '.join(CARDS)}")
    card = CARDS[name]
    if count == 1:
        return card
    return replace(
        card,
        name=f"{count}x{card.name} TP={count}",
        flops=count * card.flops,
        bandwidth=count * card.bandwidth,
        memory_gib=count * card.memory_gib,
    )


def model_named(name: str) -> Model:
    """A model of the table; `WorkloadError` lists the valid names."""
    if name not in MODELS_BY_NAME:
        raise WorkloadError(f"model {name!r} is unknown; valid: {', '.join(MODELS_BY_NAME)}")
    return MODELS_BY_NAME[name]


def model_of(name: str, config: Mapping[str, Any]) -> Model:
    """A model by its `config.json` (Hugging Face): a dense transformer with grouped-query attention.

    Parameters are counted from its sizes: embeddings (twice unless tied), four attention matrices and the
    three of a gated feed-forward layer; biases and norms are left out, which is below 0.1 %.

    Raises:
        WorkloadError: a size is missing or no number, or the model is of another kind.
    """
    kinds = config.get("layer_types") or ["full_attention"]
    odd = next((field for field in _NOT_DENSE if config.get(field)), "")
    if odd or set(kinds) != {"full_attention"}:
        raise WorkloadError(
            f"{name}: has {odd or 'layer_types'}, so it is no dense transformer with full attention"
        )
    hidden, layers, heads, inner, words = (
        _size(name, config, field)
        for field in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        )
    )  # fmt: skip
    kv_heads = _size(name, {"num_key_value_heads": heads, **config}, "num_key_value_heads")
    head_dim = _size(name, {**config, "head_dim": config.get("head_dim") or hidden // heads}, "head_dim")
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    embeddings = words * hidden * (1 if config.get("tie_word_embeddings") else 2)
    parameters = layers * (attention + 3 * hidden * inner) + embeddings
    return Model(name, float(parameters), layers, heads, kv_heads, head_dim)


def _size(name: str, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise WorkloadError(f"{name}: {field} is {str(value)[:60]!r}, not a size")
    return value
