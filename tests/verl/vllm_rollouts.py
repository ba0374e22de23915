"""Real vLLM engines on the CPU as rollout servers of verl: a Ray actor around each, as verl has one.

The model is tiny and made by hand, its weights are drawn from a seed.  Samples are drawn with seeds of their
own, so what they say must not depend on where they are served, and beside whom.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from support.waiting import PATIENCE_S, start_ray
from verl.workers.rollout.router import get_router_handle
from vllm_lab import TINY_LLAMA as MODEL

BLOCK = 32
ENGINE = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": 120,
    "max_model_len": 1024,
    "max_num_batched_tokens": 8192,  # no prompt is cut: vLLM on a CPU cannot draw with seeds behind a chunk
    "max_num_seqs": 8,
}
GROUPS, SAMPLES, TURNS = 8, 6, 2
PROMPT, ANSWER, TOOL = 512, 24, 40

ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}


@ray.remote(num_cpus=0)
class VllmServer:
    """A whole engine, which steps while it has something to do."""

    def __init__(self, model: str, scheduler: str | None = None) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        more = {} if scheduler is None else {"scheduler_cls": scheduler}
        arguments = EngineArgs(
            model=model,
            load_format="dummy",
            dtype="float32",
            seed=0,
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=True,
            disable_log_stats=True,
            distributed_executor_backend="uni",
            **ENGINE,
            **more,
        )
        self._engine = LLMEngine.from_engine_args(arguments, enable_multiprocessing=False)
        self._serial = 0
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._steps: asyncio.Task[None] | None = None
        self.cached = 0
        self.asked = 0

    async def generate(self, prompt_ids: list[int], seed: int) -> list[int]:
        """The answer to a prompt, drawn with a seed."""
        from vllm import SamplingParams, TokensPrompt

        self._serial += 1
        name = str(self._serial)
        sampling = SamplingParams(
            max_tokens=ANSWER, temperature=1.0, seed=seed, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, TokensPrompt(prompt_token_ids=prompt_ids), sampling)
        self._waiting[name] = asyncio.get_running_loop().create_future()
        if self._steps is None:
            self._steps = asyncio.create_task(self._step())
        output = await self._waiting[name]
        self.cached += output.num_cached_tokens or 0
        self.asked += len(prompt_ids)
        return list(output.outputs[0].token_ids)

    async def _step(self) -> None:
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    if output.finished:
                        self._waiting.pop(output.request_id).set_result(output)
                await asyncio.sleep(0)  # others may come now
        except Exception as error:  # noqa: BLE001 - told to those who wait
            for future in self._waiting.values():
                future.set_exception(error)
        self._steps = None

    async def counts(self) -> tuple[int, int]:
        """Prompt tokens found in the cache, and all, since the last call."""
        counted = self.cached, self.asked
        self.cached = self.asked = 0
        return counted

    async def forget(self) -> bool:
        """Empty the prefix cache."""
        return bool(self._engine.reset_prefix_cache())


@dataclass(frozen=True)
class Rolled:
    """Answers by sample and turn, cached tokens, all prompt tokens, and the seconds it took."""

    answers: dict[str, list[list[int]]]
    cached: int
    asked: int
    seconds: float


def prompts() -> list[tuple[str, list[int]]]:
    """Names and first prompts; the groups take turns, as with a worker of verl's for each."""
    rnd = random.Random(5)
    heads = [[rnd.randrange(3, 1000) for _ in range(PROMPT)] for _ in range(GROUPS)]
    return [(f"g{group}/{sample}", heads[group]) for sample in range(SAMPLES) for group in range(GROUPS)]


async def converse(
    router: Any, asked: list[str], told: list[str], name: str, head: list[int]
) -> list[list[int]]:
    """One sample's turns, as verl's agent loop and client take them."""
    rnd = random.Random(name)
    prompt, answers = list(head), []
    for turn in range(TURNS):
        extra = {"prompt_ids": prompt} if asked else {}
        server_id, server = await router.acquire_server.remote(request_id=name, **extra)
        try:
            answer = await server.generate.remote(prompt, _seed(name, turn))
        finally:
            router.release_server.remote(server_id=server_id, **({"request_id": name} if told else {}))
        answers.append(answer)
        prompt = prompt + answer + [rnd.randrange(3, 1000) for _ in range(TOOL)]
    return answers


def _seed(name: str, turn: int) -> int:
    return random.Random(f"{name} {turn}").randrange(2**31)


async def change(router: Any, servers: dict[str, Any]) -> None:
    """A server leaves soon, what it has goes on there; it comes back, and all stickiness is forgotten."""
    await asyncio.sleep(0.3)
    await router.remove_servers.remote(["s0"])
    await asyncio.sleep(0.7)
    await router.add_servers.remote({"s0": servers["s0"]})
    await router.clear_sticky_cache.remote()


def roll_out(servers: dict[str, Any], router_config: str | None, changing: bool = False) -> Rolled:
    """The whole batch through a balancer that verl makes, in front of engines with empty caches.

    With `changing` servers come and go meanwhile, see `change`.
    """
    ray.get([server.forget.remote() for server in servers.values()])
    ray.get([server.counts.remote() for server in servers.values()])
    router = get_router_handle(servers, router_config)
    ray.get(router.require_acquire_fields.remote())  # it is there

    async def batch() -> list[list[list[int]]]:
        asked = await router.require_acquire_fields.remote()
        told = await router.require_release_fields.remote()
        samples = [converse(router, asked, told, *each) for each in prompts()]
        answers = asyncio.gather(*samples)
        if changing:
            await change(router, servers)
        return list(await answers)

    started = time.perf_counter()
    answers = asyncio.run(batch())
    seconds = time.perf_counter() - started
    counts = ray.get([server.counts.remote() for server in servers.values()])
    _wait_until_quiet(router)
    ray.kill(router)
    named = {name: said for (name, _), said in zip(prompts(), answers, strict=True)}
    return Rolled(named, sum(cached for cached, _ in counts), sum(asked for _, asked in counts), seconds)


def _wait_until_quiet(router: Any) -> None:
    """Until all that was acquired is released; verl's client does not wait for that."""
    deadline = time.monotonic() + PATIENCE_S
    while ray.get(router.get_total_inflight.remote()):
        assert time.monotonic() < deadline, "something was never released"
        time.sleep(0.01)


def router_config(folder: Path) -> str:
    """The YAML file that names our balancer for these servers."""
    path = folder / "router.yaml"
    path.write_text(
        "router_class: peek.adapters.verl.load_balancer.FleetLoadBalancer\n"
        f"max_inflight: {ENGINE['max_num_seqs']}\n"
        f"cache_tokens: {ENGINE['num_gpu_blocks_override'] * BLOCK}\n"
    )
    return str(path)


@contextmanager
def cluster(folder: Path, scheduler: str | None = None) -> Iterator[dict[str, Any]]:
    """Two servers on a Ray of their own; the model's files go to `folder`."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    start_ray(
        num_cpus=2,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": {**ENVIRON, **path}},
    )
    try:
        servers = {f"s{number}": VllmServer.remote(str(folder), scheduler) for number in range(2)}
        ray.get([server.counts.remote() for server in servers.values()])  # they are there
        yield servers
    finally:
        ray.shutdown()
