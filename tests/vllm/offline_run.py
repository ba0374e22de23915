"""A known batch through vLLM's whole engine, as it came and through `generate_vllm`.

    offline_run.py [RESULT.json]

500 prompts of 20 groups, in random order, on the CPU with a tiny model, and a KV cache with room for the
prefixes of two groups.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_run  # sets up the environment, before vLLM is imported

from peek.offline import generate_vllm, reorder
from peek.offline.engines import vllm_cache

BLOCK = 32
PREFIX_BLOCKS = 8
GROUPS = 20
PROMPTS = 500
BLOCKS = 2 * (PREFIX_BLOCKS + 2) + 1
"""Two prefixes, two running prompts' own tokens, and vLLM's null block."""

ENGINE = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": BLOCKS,
    "max_model_len": 320,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 2,
}


def batch() -> list[list[int]]:
    rnd = random.Random(0)
    prefixes = [[rnd.randrange(3, 1000) for _ in range(PREFIX_BLOCKS * BLOCK)] for _ in range(GROUPS)]
    own = [[rnd.randrange(3, 1000) for _ in range(BLOCK - 8)] for _ in range(PROMPTS)]
    return [rnd.choice(prefixes) + tokens for tokens in own]


def played(model: str, prompts: list[list[int]], generate: Callable[..., list[Any]]) -> dict[str, Any]:
    """What a new engine answers; `generate` is called as `LLM.generate` is."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = engine_run.make(LLM, model, ENGINE)
    asked = [TokensPrompt(prompt_token_ids=tokens) for tokens in prompts]
    lengths = [3 + place % 3 for place in range(len(prompts))]
    sampling = [
        SamplingParams(max_tokens=length, temperature=0, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    size = vllm_cache(llm)
    started = time.perf_counter()
    outputs = generate(llm, asked, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    assert [len(each) for each in tokens] == lengths
    cached = sum(output.num_cached_tokens for output in outputs)
    del llm, outputs
    gc.collect()
    return {"cached": cached, "tokens": tokens, "seconds": seconds, "cache_tokens": size.tokens}


def main(where: str | None) -> None:
    from vllm import LLM
    from vllm_lab import write_model

    prompts = batch()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder, "model"))
        stock = played(model, prompts, LLM.generate)
        ours = played(model, prompts, generate_vllm)
    plan = reorder(prompts, cache_tokens=ours["cache_tokens"], block_tokens=BLOCK)
    total = sum(map(len, prompts))
    found: dict[str, Any] = {
        "prompt_tokens": total,
        "cache_tokens": ours["cache_tokens"],
        "cached_stock": stock["cached"],
        "cached_reordered": ours["cached"],
        "hit_stock": stock["cached"] / total,
        "hit_reordered": ours["cached"] / total,
        "expected_before": plan.expected_hit_before,
        "expected_after": plan.expected_hit_after,
        "same_results": stock["tokens"] == ours["tokens"],
        "seconds": [stock["seconds"], ours["seconds"]],
    }
    text = json.dumps(found, indent=2)
    if where is None:
        print(text)  # noqa: T201
    else:
        Path(where).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
