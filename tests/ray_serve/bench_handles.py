# ruff: noqa: T201
"""Measures what a `peek` router costs and saves a request, beside Ray's power of two choices.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/ray_serve/bench_handles.py [cost crowd families ...]

In `cost` replicas answer at once; it times a handle's first request, requests one by one, and eight at once.
In the other cases a replica computes one prompt at a time, in modelled time, and caches the newest prompts:

    crowd       100 users of one prompt of 16,384 tokens, all at once
    families    60 requests a second for 48 prompts of 1,024 tokens, through one handle
    handles     the same, through two handles
    alone       the same, through two handles while the exchange is stopped
    killed      as `families`, while a replica is killed
    flood       800 requests at once for 160 prompts, which are more than the caches hold
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import OrderedDict
from contextlib import suppress
from statistics import mean, median
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from serving import start_cluster, stop_cluster

import peek
from peek.adapters.ray_serve import fleet_options, settings

REPLICAS = 4
TOKEN_S, ANSWER_S, SEATS = 1e-4, 0.2, 32
CACHE_TOKENS = 18_000
SIZES = {"max_ongoing_requests": 64, "seats": SEATS}
CASES = ("cost", "crowd", "families", "handles", "alone", "killed", "flood")


class Echo:
    """Answers at once."""

    async def __call__(self, prompt: list[int]) -> int:
        return prompt[-1]


class Paced:
    """Computes one prompt after another, answers up to `SEATS` at once, and keeps the newest prefixes.

    Args:
        ordered: of those that wait it takes one whose prefix it has, else the first.
    """

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._seats = SEATS
        self._computes = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._held: OrderedDict[int, int] = OrderedDict()

    async def __call__(self, prompt: list[int]) -> tuple[int, int]:
        """Prompt tokens, and how many were cached."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt[0], turn))
        self._next()
        await turn
        shared = prompt.count(prompt[0])
        cached = self._held.pop(prompt[0], 0)
        self._held[prompt[0]] = shared
        while sum(self._held.values()) > CACHE_TOKENS:
            self._held.popitem(last=False)
        await asyncio.sleep((len(prompt) - cached) * TOKEN_S)
        self._computes = False
        self._next()
        await asyncio.sleep(ANSWER_S)
        self._seats += 1
        self._next()
        return len(prompt), cached

    def _next(self) -> None:
        if self._waiting and self._seats and not self._computes:
            held = [place for place, (first, _) in enumerate(self._waiting) if first in self._held]
            self._seats -= 1
            self._computes = True
            self._waiting.pop(held[0] if held and self._ordered else 0)[1].set_result(None)


async def asked(handle: Any, prompt: list[int]) -> float:
    """Seconds until it is answered."""
    started = time.perf_counter()
    await handle.remote(prompt)
    return time.perf_counter() - started


async def eight_at_once(handle: Any, seconds: float) -> float:
    """Requests a second."""
    until = time.perf_counter() + seconds

    async def one(number: int) -> int:
        count = 0
        while time.perf_counter() < until:
            await asked(handle, [number % 50] * 1024 + [number])
            count += 1
        return count

    return sum(await asyncio.gather(*map(one, range(8)))) / seconds


def deployed(kind: Any, router: str, name: str, options: dict[str, Any], *args: Any) -> Any:
    chosen = fleet_options(**options) if router == "peek" else {"max_ongoing_requests": 64}
    deployment = serve.deployment(kind).options(num_replicas=REPLICAS, ray_actor_options={"num_cpus": 0.01})
    return serve.run(deployment.options(**chosen).bind(*args), name=name, route_prefix=None)


async def cost(said: Any) -> None:
    handles, alone, rates = {}, {}, {}
    for router in said.routers:
        handles[router] = deployed(Echo, router, f"cost-{router}", said.options)
        first_s = await asked(handles[router], [0] * 1024)
        print(f"{router}: the first after {1e3 * first_s:.0f} ms", flush=True)
    await asyncio.sleep(5.0)
    for _ in range(said.rounds):
        for router, handle in handles.items():
            prompts = [[number % 50] * 1024 + [number] for number in range(100)]
            alone.setdefault(router, []).append(median([await asked(handle, each) for each in prompts]))
            rates.setdefault(router, []).append(await eight_at_once(handle, 2.0))
            print(f"{router}: {1e3 * alone[router][-1]:.1f} ms, {rates[router][-1]:.0f} req/s", flush=True)
    for router in handles:
        times, share = [median(each[router]) / median(each["stock"]) for each in (alone, rates)]
        print(f"{router}: {times:.2f} x the time alone, {share:.2f} x the rate of stock", flush=True)


def traffic(case: str, seed: int) -> list[tuple[float, list[int]]]:
    """When a prompt comes, and the prompt."""
    rnd = random.Random(seed)
    if case == "crowd":
        return [(0.0, [7] * 16_384 + [100 + user] * 200) for user in range(100)]
    if case == "flood":
        return [(0.0, [rnd.randrange(160)] * 1024 + [200 + number] * 64) for number in range(800)]
    found, at_s = [], 0.0
    for number in range(900):
        at_s += rnd.expovariate(60.0)
        found.append((at_s, [rnd.randrange(48)] * 1024 + [100 + number] * 64))
    return found


async def play(handles: list[Any], requests: list[tuple[float, list[int]]]) -> tuple[list[float], float, int]:
    """Seconds of each, the share of prompt tokens that was cached, and how many had to be asked again."""
    started = time.perf_counter()
    again = 0

    async def one(number: int, at_s: float, prompt: list[int]) -> tuple[float, int, int]:
        nonlocal again
        await asyncio.sleep(at_s - (time.perf_counter() - started))
        begun = time.perf_counter()
        while True:
            try:
                tokens, cached = await handles[number % len(handles)].remote(prompt)
            except RayActorError:
                again += 1
                continue
            return time.perf_counter() - begun, tokens, cached

    answers = await asyncio.gather(*[one(number, *each) for number, each in enumerate(requests)])
    hit = sum(cached for _, _, cached in answers) / sum(tokens for _, tokens, _ in answers)
    return sorted(seconds for seconds, _, _ in answers), hit, again


async def disturb(case: str, name: str) -> int:
    """What a case does to the cluster; the process that was stopped."""
    if case == "alone":
        find = getattr(settings, "find_exchange", None) or settings.find_queue
        from ray.serve._private.common import DeploymentID

        actor = find(DeploymentID(name="Paced", app_name=name))
        pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGSTOP)
        return pid
    if case == "killed":
        await asyncio.sleep(5.0)
        actors = ray.util.list_named_actors(all_namespaces=True)
        victim = min(each["name"] for each in actors if f"{name}#Paced#" in each["name"])
        ray.kill(ray.get_actor(victim, namespace="serve"))
    return 0


async def case_of(case: str, said: Any) -> None:
    for router in said.routers:
        if case == "alone" and router == "stock":
            continue
        name = f"{case}-{router}"
        options = {**SIZES, "cache_tokens": CACHE_TOKENS, "decode_tokens": 128, **said.options}
        handles = [deployed(Paced, router, name, options, said.ordered)]
        if case in ("handles", "alone"):
            handles.append(serve.get_deployment_handle("Paced", name))
        await asyncio.gather(*[asked(each, [999] * 64) for each in handles])
        await asyncio.sleep(3.0)
        disturbing = asyncio.create_task(disturb(case, name))
        seconds, hit, again = await play(handles, traffic(case, said.seed))
        with suppress(ProcessLookupError):
            pid = await disturbing
            if pid:
                os.kill(pid, signal.SIGCONT)
        serve.delete(name)
        p99 = seconds[int(0.99 * len(seconds))]
        print(
            f"{case:9} {router:6} hit {hit:.3f}, mean {mean(seconds):.2f} s, p50 {median(seconds):.2f}, "
            f"p99 {p99:.2f}, last {seconds[-1]:.2f}, asked again {again}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--routers", nargs="*", default=["stock", "peek"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ordered", action="store_true", help="replicas order what waits there")
    parser.add_argument("--options", type=json.loads, default={}, help="of fleet_options, in JSON")
    said = parser.parse_args()
    start_cluster()
    print(f"Ray {ray.__version__}, peek {peek.backend()}; {os.cpu_count()} cores")
    for case in said.cases:
        asyncio.run(cost(said) if case == "cost" else case_of(case, said))
    stop_cluster()


if __name__ == "__main__":
    main()
