"""A Llama of two layers, made by hand, for the whole engine on a CPU."""

from __future__ import annotations

from pathlib import Path

from support.models import TINY_LLAMA, write_config


def write_model(folder: Path, words: bool = False) -> str:
    """The configuration, random weights, and, if there are `words`, a tokenizer.

    SGLang's own dummy weights are so small that what it generates hangs on the last token alone; with these,
    a wrong KV slot shows.
    """
    import torch
    from safetensors.torch import save_file

    write_config(folder, torch_dtype="float32")
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
