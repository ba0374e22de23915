"""Qwen2.5 shapes written by hand, and the engine's arguments for each of them.

No weights and no tokenizer: prompts are token ids and the weights are random, so what is measured is
the work of such a model, never what it says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ARENA_TOKENS: Final = 50_000
"""KV arena of the paper's single card; the tiny shape's is smaller by its `shrink`."""

POLICIES: Final = ("stock", "clpm+gm+dl+pe", "peek")
GRAPHS: Final = ("decode", "compile", "off")


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and what belongs to it.

    Attributes:
        hidden, layers, heads, kv_heads, inner: as in Qwen2's configuration.
        block: tokens of a KV block.
        shrink: prompts, outputs and arena are so many times smaller than the workload says.
        rate_scale: requests arrive so many times faster than the workload says.
        tied: input and output embeddings are one.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    block: int = 16
    shrink: int = 1
    rate_scale: float = 1.0
    tied: bool = False

    @property
    def max_model_len(self) -> int:
        return 34_816 // self.shrink

    @property
    def blocks(self) -> int:
        return ARENA_TOKENS // self.shrink // self.block


SHAPES: Final = {
    "tiny": Shape(128, 2, 4, 2, 256, block=32, shrink=16, rate_scale=20.0, tied=True),
    "7b": Shape(3584, 28, 28, 4, 18_944, rate_scale=4.0),
    "32b": Shape(5120, 64, 40, 8, 27_648),
}


def write_model(folder: Path, shape: Shape) -> str:
    """Write `config.json` of the shape into `folder`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.inner,
        "vocab_size": 152_064,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return str(folder)


def engine_arguments(model: str, shape: Shape, policy: str, *, cpu: bool, graphs: str) -> dict[str, Any]:
    """What `AsyncEngineArgs` is given: the same for every policy but for the scheduler class.

    Schedules asynchronously on a GPU, vLLM's default there, and synchronously on a CPU, where vLLM does
    nothing else.  `graphs`: "decode" captures CUDA graphs of decode steps and compiles nothing (starts
    fast), "compile" is vLLM's default, "off" runs eagerly.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "seed": 0,
        "block_size": shape.block,
        "num_gpu_blocks_override": shape.blocks,
        "max_model_len": shape.max_model_len,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192 // (4 if cpu else 1),
        "stream_interval": 8,  # the first token is sent at once all the same
        "async_scheduling": not cpu,
        "enforce_eager": cpu or graphs == "off",
    }
    if not cpu and graphs == "decode":
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if policy != "stock":
        name = "PeekScheduler" if cpu else "PeekAsyncScheduler"
        arguments["scheduler_cls"] = f"peek.adapters.vllm.{name}"
        arguments["additional_config"] = {"peek": {"policy": policy}}
    return arguments
