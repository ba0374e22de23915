"""Runs vLLM's whole engine on the CPU, in a process of its own: `engine_run.py JOB.json RESULT.json`.

A job is `{"model": folder, "runs": [run, ...]}`; a run holds `prompts` (name -> token ids, handed over in
this order), `engine` (arguments of `LLM`) and `max_tokens` (name -> number).  The result has, for each
run, cached tokens and generated tokens by name and, where the engine lives in this process, the adapter's
counters.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def make(llm: Any, model: str, sizes: dict[str, Any]) -> Any:
    """An engine; `llm` is the class."""
    return llm(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=True,
        seed=0,
        **sizes,
    )


def run(model: str, job: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = make(LLM, model, job["engine"])
    sampling = [
        SamplingParams(max_tokens=job["max_tokens"][name], temperature=0, ignore_eos=True, detokenize=False)
        for name in job["prompts"]
    ]
    prompts = [TokensPrompt(prompt_token_ids=tokens) for tokens in job["prompts"].values()]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    named = dict(zip(job["prompts"], outputs, strict=True))
    result = {
        "cached": {name: output.num_cached_tokens for name, output in named.items()},
        "tokens": {name: list(output.outputs[0].token_ids) for name, output in named.items()},
    }
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is not None:
        result.update(_look_inside(core.scheduler))
    del llm, core
    gc.collect()
    return result


def _look_inside(scheduler: Any) -> dict[str, Any]:
    adapter = scheduler.peek.adapter if hasattr(scheduler, "peek") else None
    found = {"scheduler": type(scheduler).__name__}
    if adapter is None:
        return found
    from peek.adapters.metrics import snapshot

    return {
        **found,
        "fallbacks": scheduler.peek.shield.fallbacks,
        "counters": snapshot(adapter),
        "symbols": len(adapter.mirror),
    }


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[1]).read_text())
    results = [run(task["model"], job) for job in task["runs"]]
    Path(sys.argv[2]).write_text(json.dumps(results))
