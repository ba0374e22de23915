# ruff: noqa: T201
"""Real vLLM replicas behind Ray Serve's routers and behind ours: hits, time to first token, rate.

    PYTHONPATH=tests:tests/vllm python tests/ray_serve/bench_routers.py [--routers peek stock] [--rate 8]

`ray.serve.llm`'s OpenAI endpoint, tiny weights that are made up, and a worker whose steps take the time of a
large model (`paced_worker`): so the machine's own speed matters little.  A replica's KV cache has room for
a part of the prefixes.  Clients stream over HTTP, and come when they like (Poisson).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import string
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai_app
import ray
from ray import serve
from serving import start_cluster, stop_cluster
from support.tokenizers import write_tokenizer
from vllm_lab import TINY_LLAMA, write_model

import peek
from peek.fleet.prompt_keys import BLOCK_BYTES, BLOCK_TOKENS

BLOCK = 32
SHARED, OWN, ANSWER = 1024, 64, 8

LETTERS = BLOCK_BYTES // BLOCK_TOKENS
"""Of a text that peek takes for a token."""


@dataclass
class Answer:
    """What a client saw: seconds to the first token, to the last, and prompt tokens that were cached."""

    first_s: float
    last_s: float
    cached: int


def arguments() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--routers", nargs="*", default=["peek", "prefix", "stock"])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--rate", type=float, default=14.0, help="requests a second")
    parser.add_argument("--blocks", type=int, default=400, help="of 32 tokens, in a replica's KV cache")
    parser.add_argument("--room", type=int, default=16, help="requests that an engine computes at once")
    parser.add_argument("--token-s", type=float, default=0.2e-3, help="what a prompt token takes")
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of the groups' popularity")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def prompts(said: Any) -> list[str]:
    """Texts, because Ray's prefix router reads nothing else; the tokenizer makes a token of each letter."""
    rnd = random.Random(said.seed)
    shared = [letters(rnd, SHARED) for _ in range(said.groups)]
    weights = [(rank + 1) ** -said.zipf for rank in range(said.groups)]
    return [each + letters(rnd, OWN) for each in rnd.choices(shared, weights, k=said.requests)]


def letters(rnd: random.Random, count: int) -> str:
    return "".join(rnd.choices(string.ascii_letters, k=count))


async def ask(session: Any, address: str, prompt: str) -> Answer:
    body = {"model": "m", "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    started = time.perf_counter()
    first_s, cached = 0.0, 0
    async with session.post(f"{address}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            told = json.loads(line[6:])
            if told.get("choices") and not first_s:
                first_s = time.perf_counter() - started
            if told.get("usage"):
                cached = (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(first_s, time.perf_counter() - started, cached)


async def ask_all(address: str, said: Any) -> tuple[list[Answer], float]:
    rnd = random.Random(said.seed + 1)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await ask(session, address, "a" * BLOCK)  # the handles are tied
        started = time.perf_counter()
        tasks = []
        for prompt in prompts(said):
            tasks.append(asyncio.create_task(ask(session, address, prompt)))
            await asyncio.sleep(rnd.expovariate(said.rate))
        answers = list(await asyncio.gather(*tasks))
    return answers, time.perf_counter() - started


def engine(said: Any) -> dict[str, Any]:
    return {
        "load_format": "dummy",
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "block_size": BLOCK,
        "max_model_len": 2048,
        "num_gpu_blocks_override": said.blocks,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": said.room,
        "seed": 0,
        "worker_cls": "paced_worker.PacedWorker",
        "enable_prompt_tokens_details": True,
    }


def run(address: str, folder: Path, router: str, said: Any) -> None:
    options = {"max_ongoing_requests": 16 * said.room}
    if router == "peek":
        text = said.blocks * BLOCK // LETTERS  # as peek counts it: it does not know this tokenizer
        options |= {"seats": said.room, "cache_tokens": text, "decode_tokens": ANSWER // LETTERS}
    told = {"model": str(folder), "replicas": str(said.replicas), "router": router, "cpu": "1"}
    told |= {"options": json.dumps(options), "engine": json.dumps(engine(said))}
    serve.run(openai_app.build(told), name=router)
    answers, wall_s = asyncio.run(ask_all(address, said))
    serve.delete(router)
    ttft = sorted(each.first_s for each in answers)
    hit = sum(each.cached for each in answers) / (len(answers) * (SHARED + OWN))
    print(
        f"{router:8} {hit:.3f} {statistics.mean(ttft):7.2f} {ttft[len(ttft) // 2]:7.2f} "
        f"{ttft[int(0.99 * len(ttft))]:7.2f} {statistics.mean(each.last_s for each in answers):7.2f} "
        f"{len(answers) / wall_s:7.2f}",
        flush=True,
    )


def main() -> None:
    said = arguments()
    folder = Path(tempfile.mkdtemp(prefix="tiny-llama-"))
    write_model(folder)
    write_tokenizer(folder, TINY_LLAMA["vocab_size"])
    address = start_cluster(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", PACED_TOKEN_S=str(said.token_s))
    print(f"Ray {ray.__version__}, peek {peek.backend()}; {said}")
    print("router   hit   TTFT s     p50     p99   E2E s   req/s")
    try:
        for router in said.routers:
            run(address, folder, router, said)
    finally:
        stop_cluster()


if __name__ == "__main__":
    main()
