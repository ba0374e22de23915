"""A known batch through SGLang's whole engine, as it came and through `generate_sglang`.

    offline_run.py MODEL RESULT.json

300 prompts of 15 groups, in random order, on the CPU with a tiny model, and a cache for four prefixes.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_run  # sets up the environment, before SGLang is imported

from peek.offline import generate_sglang, reorder
from peek.offline.engines import sglang_cache

PREFIX, OWN, GROUPS, PROMPTS = 400, 24, 15, 300
ENGINE = {
    "max_total_tokens": 4 * PREFIX,
    "context_length": 500,
    "chunked_prefill_size": 1024,
    "max_running_requests": 4,
    "schedule_policy": "fcfs",
}


def batch() -> list[list[int]]:
    rnd = random.Random(0)
    prefixes = [[rnd.randrange(20, 1000) for _ in range(PREFIX)] for _ in range(GROUPS)]
    own = [[rnd.randrange(20, 1000) for _ in range(OWN)] for _ in range(PROMPTS)]
    return [rnd.choice(prefixes) + tokens for tokens in own]


GREEDY = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 3}
OTHERS: dict[str, dict[str, Any]] = {
    "two answers to each": {"sampling_params": {**GREEDY, "n": 2}},
    "a tuple": {"sampling_params": tuple({**GREEDY, "max_new_tokens": 2 + place % 3} for place in range(40))},
    "as many tokens as prompts": {
        "sampling_params": GREEDY,
        "return_logprob": True,
        "token_ids_logprob": list(range(100, 140)),
    },
}
"""Arguments for the first 40 prompts that `generate_sglang` hands on or puts into another order."""


def told(output: dict[str, Any]) -> list[Any]:
    """The tokens of an answer, and the tokens whose probabilities were asked for, as ordered."""
    asked = output["meta_info"].get("output_token_ids_logprobs") or []
    return [output["output_ids"], [[token for _, token, *_ in each] for each in asked]]


def stock(engine: Any, **options: Any) -> list[Any]:
    answers: list[Any] = engine.generate(**options)
    return answers


def played(model: str, prompts: list[list[int]], generate: Callable[..., list[Any]]) -> dict[str, Any]:
    """What a new engine answers."""
    engine = engine_run.engine_class(engine_run.STOCK)(model_path=model, **{**engine_run.ON_CPU, **ENGINE})
    try:
        lengths = [3 + place % 3 for place in range(len(prompts))]
        sampling = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": length} for length in lengths]
        size = sglang_cache(engine)
        started = time.perf_counter()
        outputs = generate(engine, input_ids=prompts, sampling_params=sampling)
        seconds = time.perf_counter() - started
        more = {name: generate(engine, input_ids=prompts[:40], **asked) for name, asked in OTHERS.items()}
    finally:
        engine.shutdown()
    tokens = [list(output["output_ids"]) for output in outputs]
    assert [len(each) for each in tokens] == lengths
    cached = sum(output["meta_info"]["cached_tokens"] for output in outputs)
    others = {name: [told(output) for output in outputs] for name, outputs in more.items()}
    return {"cached": cached, "tokens": tokens, "seconds": seconds, "cache": list(size), "others": others}


def main(model: str, where: str) -> None:
    prompts = batch()
    total = sum(map(len, prompts))
    came, ours = played(model, prompts, stock), played(model, prompts, generate_sglang)
    tokens, block = ours["cache"]
    plan = reorder(prompts, cache_tokens=tokens, block_tokens=block, engine="sglang")
    found = {
        "cache": ours["cache"],
        "hit_stock": came["cached"] / total,
        "hit_reordered": ours["cached"] / total,
        "expected": [plan.expected_hit_before, plan.expected_hit_after],
        "same_results": came["tokens"] == ours["tokens"],
        "same_others": {name: came["others"][name] == ours["others"][name] for name in OTHERS},
        "seconds": [came["seconds"], ours["seconds"]],
    }
    Path(where).write_text(json.dumps(found))


if __name__ == "__main__":  # the spawned processes import this file
    main(*sys.argv[1:])
