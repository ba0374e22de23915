"""A Llama of two layers, made by hand, for an engine on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": False, "mlp_bias": False,
    "vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    "max_position_embeddings": 8192, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16", "initializer_range": 0.02, "use_cache": True,
}  # fmt: skip


def write_config(folder: Path, **other: Any) -> str:
    """Write its `config.json`, with what is `other`; return the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY_LLAMA, **other}))
    return str(folder)
