"""Models and pools of the measured servers: a small model for a CPU, Qwen2.5's sizes for a GPU.

Only the work of such a model is measured, not its answers: its weights are random.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama and the sizes that a server and its traffic get with it.

    Attributes:
        hidden, layers, heads, kv_heads, inner, vocabulary: as in the model's configuration.
        device: "cpu" or "gpu".
        pool: tokens that the KV pool holds.
        seats: requests that may run at once.
        step: tokens of one step.
        context: the longest prompt with its answer.
        prefix: tokens of a shared prefix; the other lengths of the traffic follow it.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    device: str
    pool: int
    seats: int
    step: int
    context: int
    prefix: int


SHAPES: Final = {
    "small": Shape(256, 4, 4, 4, 1024, 4096, "cpu", 8_192, 16, 1_024, 2_048, 512),
    "7b": Shape(3584, 28, 28, 4, 18_944, 152_064, "gpu", 50_000, 256, 8_192, 34_816, 4_096),
    "32b": Shape(5120, 64, 40, 8, 27_648, 152_064, "gpu", 50_000, 256, 8_192, 34_816, 4_096),
}


def configuration(shape: Shape) -> dict[str, Any]:
    """Return the contents of `config.json` for a shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32" if shape.device == "cpu" else "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the sizes of all weights, by name."""
    wide, head = shape.hidden, shape.hidden // shape.heads
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, wide),
        "model.norm.weight": (wide,),
        "lm_head.weight": (shape.vocabulary, wide),
    }
    for layer in range(shape.layers):
        own = f"model.layers.{layer}."
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            sizes[f"{own}self_attn.{name}_proj.weight"] = (heads * head, wide)
        sizes[f"{own}self_attn.o_proj.weight"] = (wide, shape.heads * head)
        sizes[f"{own}mlp.gate_proj.weight"] = (shape.inner, wide)
        sizes[f"{own}mlp.up_proj.weight"] = (shape.inner, wide)
        sizes[f"{own}mlp.down_proj.weight"] = (wide, shape.inner)
        sizes[f"{own}input_layernorm.weight"] = (wide,)
        sizes[f"{own}post_attention_layernorm.weight"] = (wide,)
    return sizes


def write_weights(path: Path, sizes: dict[str, tuple[int, ...]], seed: int = 0) -> None:
    """Write random float32 weights as a safetensors file: eight bytes of length, a JSON header, the data.

    They are spread widely enough that an answer depends on the whole prompt.  With the engines' own dummy
    weights it depends on the last token alone, and a wrong KV block would not show.
    """
    drawn = np.random.default_rng(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in sizes.items():
        begin, end = end, end + 4 * int(np.prod(size))
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as sink:
        sink.write(len(text).to_bytes(8, "little") + text)
        for size in sizes.values():
            scale = size[-1] ** -0.5
            values = np.ones(size) if len(size) == 1 else drawn.standard_normal(size) * 2.0 * scale
            sink.write(values.astype("<f4").tobytes())


def write_model(folder: Path, shape: Shape) -> None:
    """Write the configuration, the tokenizer, and weights unless the engine draws them (on a GPU)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration(shape), indent=1))
    if shape.device == "cpu":
        write_weights(folder / "model.safetensors", tensors(shape))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(shape.vocabulary)))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    chat = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


def tokenizer(vocabulary: int) -> dict[str, Any]:
    """Return a tokenizer with words between spaces as tokens: a decoded text has the same tokens again."""
    names = ["<unk>", "<s>", "</s>", *(f"w{place}" for place in range(vocabulary - 3))]
    added = [
        {"id": place, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for place, name in enumerate(names[:3])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {name: place for place, name in enumerate(names)},
            "unk_token": "<unk>",
        },
    }
