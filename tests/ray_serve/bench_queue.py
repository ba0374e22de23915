# ruff: noqa: T201
"""How many requests a second one queue takes, with routers that do nothing but ask it.

    OMP_NUM_THREADS=1 python tests/ray_serve/bench_queue.py [--routers 1 2] [--replicas 4 16]
    PYTHONPATH=tests OMP_NUM_THREADS=1 python tests/ray_serve/bench_queue.py --handles 5

The second asks replicas that answer at once through Ray Serve's handles, by power of two choices and by the
queue, in turns: a handle's first request, one after the other, eight at once.

Every request is acquired, and ends at once.  First the queue alone, called in its own process; then as an
actor, with each router in a process of its own.  Prompts share 64 symbols (1,024 tokens) with the others of
one of 200 groups.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from statistics import median
from typing import Any

import ray
from ray import serve

import peek
from peek.adapters.ray_serve import fleet_options
from peek.adapters.ray_serve.queue import FleetQueue
from peek.adapters.ray_serve.queue_client import Arrival, News, QueueClient
from peek.fleet import token_key

GROUPS, SHARED, OWN = 200, 1024, 64
OPTIONS = {"window": 32, "max_ongoing_requests": 64, "max_waiting": 100_000}


class BenchQueue(FleetQueue):
    """Has replicas that nobody works at."""

    def __init__(self, replicas: int) -> None:
        super().__init__(OPTIONS)
        self.set_replicas({f"replica{number}": 64 for number in range(replicas)})

    async def busy_s(self) -> float:
        """Processor time of the actor so far."""
        return time.process_time()


def arrivals(count: int, seed: int) -> list[Arrival]:
    rnd = random.Random(seed)
    groups = [[rnd.randrange(1000) for _ in range(SHARED)] for _ in range(GROUPS)]
    made = []
    for serial in range(count):
        key = token_key(rnd.choice(groups) + [rnd.randrange(1000) for _ in range(OWN)])
        made.append(Arrival(serial, key.key, key.num_tokens, "", 128, 0.0))
    return made


async def alone(replicas: int, seconds: float, at_once: int) -> float:
    """Requests a second where no call leaves the process."""
    queue = BenchQueue(replicas)
    await queue.hello("router")
    prompts = arrivals(2000, 1)
    serial, ended, n = 0, list[tuple[int, bool]](), 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        coming = [prompts[(serial + i) % 2000]._replace(serial=serial + i) for i in range(at_once)]
        serial += at_once
        await queue.tell("router", News(ended, [], [], coming))
        ended = [(one, True) for one, _ in await queue.poll("router") or []]
        n += len(ended)
    return n / (time.perf_counter() - started)


@ray.remote(num_cpus=0)
class Client:
    """A router with nothing to route."""

    async def run(self, queue: Any, seconds: float, at_once: int, seed: int) -> tuple[int, list[float]]:
        client = QueueClient(lambda: queue)
        client.want(True)
        prompts = arrivals(500, seed)
        waits: list[float] = []
        until = time.perf_counter() + seconds

        async def one(number: int) -> None:
            while (started := time.perf_counter()) < until:
                number += 1
                serial, _ = await client.acquire(prompts[number % 500])
                waits.append(time.perf_counter() - started)
                client.end(serial, True)

        await asyncio.gather(*[one(number * 7) for number in range(at_once)])
        return len(waits), sorted(waits)[:: max(1, len(waits) // 1000)]


def as_actor(routers: int, replicas: int, seconds: float, at_once: int) -> str:
    queue = ray.remote(num_cpus=0)(BenchQueue).options(max_concurrency=10_000).remote(replicas)
    before = ray.get(queue.busy_s.remote())
    clients = [Client.remote() for _ in range(routers)]
    told = ray.get([each.run.remote(queue, seconds, at_once, seed) for seed, each in enumerate(clients)])
    state, busy_s = ray.get([queue.status.remote(), queue.busy_s.remote()])
    n = sum(count for count, _ in told)
    waits = sorted(wait for _, some in told for wait in some)
    for each in [*clients, queue]:
        ray.kill(each)
    figures = [n / seconds, 1e3 * waits[len(waits) // 2], 1e3 * waits[int(0.99 * len(waits))]]
    figures += [n / max(1, state["tells"]), 1e6 * state["telling_s"] / n, 1e6 * (busy_s - before) / n]
    return " ".join([f"{figure:9.1f}" for figure in figures])


class Echo:
    """Answers at once."""

    async def __call__(self, prompt: list[int]) -> int:
        return prompt[-1]


async def asked(handle: Any, number: int) -> float:
    """Seconds until it is answered."""
    started = time.perf_counter()
    await handle.remote([number % 50] * SHARED + [number])
    return time.perf_counter() - started


async def eight_at_once(handle: Any, seconds: float) -> float:
    """Requests a second."""
    until = time.perf_counter() + seconds

    async def one(number: int) -> int:
        count = 0
        while time.perf_counter() < until:
            await asked(handle, number)
            count += 1
        return count

    return sum(await asyncio.gather(*map(one, range(8)))) / seconds


async def compare_handles(rounds: int) -> None:
    routers = {"stock": {"max_ongoing_requests": 64}, "peek": fleet_options(max_ongoing_requests=64)}
    handles = {}
    for name, options in routers.items():
        deployment = serve.deployment(Echo).options(num_replicas=4, ray_actor_options={"num_cpus": 0.01})
        handles[name] = serve.run(deployment.options(**options).bind(), name=name, route_prefix=None)
        print(f"{name}: the first after {1e3 * await asked(handles[name], 0):.0f} ms", flush=True)
    await asyncio.sleep(5.0)
    for _ in range(rounds):
        for name, handle in handles.items():
            alone = median([await asked(handle, number) for number in range(100)])
            print(f"{name}: {1e3 * alone:.1f} ms, {await eight_at_once(handle, 2.0):.0f} req/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--routers", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--replicas", nargs="*", type=int, default=[4, 16])
    parser.add_argument(
        "--at-once", nargs="*", type=int, default=[1, 32, 128], help="requests of each router"
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--handles", type=int, default=0, metavar="ROUNDS")
    said = parser.parse_args()
    if said.handles:
        from serving import start_cluster, stop_cluster

        start_cluster()
        asyncio.run(compare_handles(said.handles))
        stop_cluster()
        return
    print(f"Ray {ray.__version__}, peek {peek.backend()}; {os.cpu_count()} cores")
    print("alone: replicas, requests a second")
    for replicas in said.replicas:
        print(f"{replicas:4} {asyncio.run(alone(replicas, said.seconds, 32)):8.0f}", flush=True)
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", runtime_env={"env_vars": variables})
    print("actor: routers, replicas, at once; req/s, p50 ms, p99 ms, requests a call, us deciding, us busy")
    for replicas in said.replicas:
        for routers in said.routers:
            for at_once in said.at_once:
                figures = as_actor(routers, replicas, said.seconds, at_once)
                print(f"{routers:4} {replicas:4} {at_once:5} {figures}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
