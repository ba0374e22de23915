"""A Llama of two layers, made by hand, for the whole engine on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "use_cache": True,
}


def write_model(folder: Path, words: bool = False) -> str:
    """The configuration, random weights, and, if there are `words`, a tokenizer.

    SGLang's own dummy weights are so small that what it generates hangs on the last token alone; with these,
    a wrong KV slot shows.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    rnd = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=rnd) * 0.2
        for name, shape in _shapes().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if words:
        from support.tokenizers import write_tokenizer

        write_tokenizer(folder, TINY_LLAMA["vocab_size"])
    return str(folder)


def _shapes() -> dict[str, tuple[int, ...]]:
    wide, inner, words = (TINY_LLAMA[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, wide),
        "model.norm.weight": (wide,),
        "lm_head.weight": (words, wide),
    }
    for layer in range(TINY_LLAMA["num_hidden_layers"]):
        own = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[f"{own}self_attn.{name}_proj.weight"] = (wide, wide)
        shapes[f"{own}mlp.gate_proj.weight"] = (inner, wide)
        shapes[f"{own}mlp.up_proj.weight"] = (inner, wide)
        shapes[f"{own}mlp.down_proj.weight"] = (wide, inner)
        shapes[f"{own}input_layernorm.weight"] = (wide,)
        shapes[f"{own}post_attention_layernorm.weight"] = (wide,)
    return shapes
