"""A Ray Serve of one machine, and deployments whose replicas only take their time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any
from urllib.request import urlopen

import pytest
import ray
from ray import serve
from ray.serve._private.common import DeploymentID
from ray.serve.handle import DeploymentHandle
from support.waiting import free_port, start_ray

from peek.adapters.ray_serve.settings import find_exchange

needs_its_vllm = pytest.mark.skipif(
    not ray.__version__.startswith("2.60."),
    reason="ray.serve.llm of this Ray needs a vLLM that has no build for the CPU; take Ray 2.60",
)

HIT_S, MISS_S = 0.01, 0.1
PROMPT = 320
"""Tokens that the prompts of a group share."""


def start_cluster(**environ: str) -> str:
    """Starts Ray and Serve; the address of its proxy."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves replicas on a machine with others
    variables = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "OMP_NUM_THREADS": "1"}
    start_ray(
        num_cpus=8,  # they are only counted
        object_store_memory=100 * 2**20,
        logging_level="ERROR",
        log_to_driver=bool(os.environ.get("RAY_TO_DRIVER")),
        runtime_env={"env_vars": {**variables, **environ}},
    )
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return f"http://127.0.0.1:{port}"


def stop_cluster() -> None:
    serve.shutdown()
    ray.shutdown()


@ray.remote(num_cpus=0)
class Ledger:
    """Who was computed, on which replica, and how many at once there."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []
        self._most: dict[str, int] = {}

    def note(self, number: int, replica: str, at_once: int) -> None:
        self._entries.append((number, replica))
        self._most[replica] = max(at_once, self._most.get(replica, 0))

    def entries(self) -> list[tuple[int, str]]:
        return self._entries

    def most(self) -> dict[str, int]:
        return self._most


class Engine:
    """Keeps the newest prompts of four groups; a prompt of another takes ten times as long."""

    def __init__(self, ledger: Any, groups: int = 4, slower: float = 1.0) -> None:
        self._ledger = ledger
        self._groups = groups
        self._slower = slower
        self._held: OrderedDict[int, None] = OrderedDict()
        self._at_once = 0

    async def _compute(self, prompt: list[int]) -> bool:
        self._at_once += 1
        try:
            return await self._take_time(prompt)
        finally:
            self._at_once -= 1

    async def _take_time(self, prompt: list[int]) -> bool:
        group = prompt[0]
        hit = group in self._held
        self._held.pop(group, None)
        self._held[group] = None
        while len(self._held) > self._groups:
            self._held.popitem(last=False)
        replica = serve.get_replica_context().replica_tag
        await self._ledger.note.remote(prompt[-1], replica, self._at_once)
        await asyncio.sleep((HIT_S if hit else MISS_S) * self._slower)
        return hit

    async def __call__(self, prompt: list[int]) -> tuple[int, bool]:
        return prompt[-1], await self._compute(prompt)

    async def stream(self, prompt: list[int]) -> AsyncIterator[int]:
        await self._compute(prompt)
        for place in range(5):
            yield prompt[-1] + place
            await asyncio.sleep(HIT_S)


class Gateway:
    """Reads HTTP requests, and asks the engines."""

    def __init__(self, engine: DeploymentHandle) -> None:
        self._engine = engine

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        prompt = json.loads(await request.body())["prompt"]
        if request.url.path.endswith("/twice"):
            answers = await asyncio.gather(self._engine.remote(prompt), self._engine.remote([*prompt, 0]))
            return [number for number, _ in answers]
        if request.url.path.endswith("/stream"):
            parts = self._engine.options(stream=True, method_name="stream").remote(prompt)
            return StreamingResponse(f"{part}\n" async for part in parts)
        return (await self._engine.remote(prompt))[0]


def engines(ledger: Any, *args: Any, **options: Any) -> Any:
    """The engines' deployment, bound."""
    fixed = {"name": "Engine", "ray_actor_options": {"num_cpus": 0.01}, "graceful_shutdown_timeout_s": 5}
    return serve.deployment(Engine).options(**fixed, **options).bind(ledger, *args)


def prompt_of(number: int, group: int) -> list[int]:
    """A prompt of `group`, which ends in `number`."""
    return [group] * PROMPT + [number] * 16


def exchange(name: str = "Engine", app: str = "default") -> Any:
    """The exchange of a deployment, None if there is none."""
    return find_exchange(DeploymentID(name=name, app_name=app))


def router(handle: DeploymentHandle) -> Any:
    """The router of a handle of this process that has been asked."""
    return handle._router._asyncio_router.request_router


def exported(series: str) -> list[tuple[dict[str, str], float]]:
    """The labels and values that a series of ours has on Ray's /metrics now."""
    from prometheus_client.parser import text_string_to_metric_families

    node = ray.nodes()[0]
    with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return [(sample.labels, sample.value) for sample in samples if sample.name == f"ray_{series}"]


def told(name: str = "Engine", app: str = "default") -> dict[str, Any]:
    """What the routers of a deployment have told each other last: of each what it has under way."""
    found = exchange(name, app)
    return {} if found is None else dict(ray.get(found.status.remote())["routers"])
