"""A known batch through vLLM's whole engine, as it came and reordered: `offline_run.py [RESULT.json]`.

500 prompts of 20 groups, in random order, on the CPU with a tiny model, and a KV cache with room for the
prefixes of two groups.  This is also how to use `peek.offline` with `LLM.generate`: see `generate`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine_run import run

from peek.offline import reorder

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


def generate(model: str, prompts: list[list[int]], order: list[int]) -> tuple[int, list[list[int]]]:
    """Run the prompts in `order`; cached tokens, and what was generated, in the prompts' own order."""
    names = [str(index) for index in order]
    job = {
        "prompts": {name: prompts[int(name)] for name in names},
        "max_tokens": dict.fromkeys(names, 4),
        "engine": ENGINE,
    }
    result = run(model, job)
    return sum(result["cached"].values()), [result["tokens"][str(i)] for i in range(len(prompts))]


def main(where: str | None) -> None:
    from vllm_lab import write_model

    prompts = batch()
    plan = reorder(prompts, cache_tokens=(BLOCKS - 1) * BLOCK, block_tokens=BLOCK)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder, "model"))
        stock_cached, stock_tokens = generate(model, prompts, list(range(len(prompts))))
        cached, tokens = generate(model, prompts, plan.order)
    total = sum(map(len, prompts))
    found: dict[str, Any] = {
        "prompt_tokens": total,
        "cached_stock": stock_cached,
        "cached_reordered": cached,
        "hit_stock": stock_cached / total,
        "hit_reordered": cached / total,
        "expected_before": plan.expected_hit_before,
        "expected_after": plan.expected_hit_after,
        "same_results": tokens == stock_tokens,
    }
    text = json.dumps(found, indent=2)
    if where is None:
        print(text)  # noqa: T201
    else:
        Path(where).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
