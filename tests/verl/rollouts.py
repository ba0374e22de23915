"""Rollout servers with the simulated engine's step times, in an event loop whose time is virtual.

What verl's agent loops do with a load balancer (acquire, generate, release), on verl's own balancer as it is
and on any other, without Ray: a run depends on its arguments alone.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from peek import PeekConfig, Planner
from peek.simulation.caches import SymbolTable
from peek.simulation.cost import CostModel, arena_tokens, card_named, model_named
from peek.simulation.engines import BlockEngine, Job
from peek.simulation.workload import SimRequest, Workload
from peek.trie.keys import pack


class VirtualTime(selectors.SelectSelector):
    """A selector that does not wait: the time it was to wait for has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for somebody"
        self.now += max(0.0, timeout)
        return super().select(0)


def run_virtually(main: Callable[[], Awaitable[None]]) -> float:
    """Seconds that `main` takes."""
    clock = VirtualTime()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main())
        return clock.now
    finally:
        loop.close()


@dataclass(frozen=True)
class Sample:
    """One rollout of a prompt: turn by turn what is appended to it, and how long the answers are.

    Attributes:
        name: `group/sample`.
        prompts: the first prompt, then what a tool says after each answer.
        answers: tokens of each answer.
        delays_s: before each turn; the tool's time.
    """

    name: str
    prompts: list[list[int]]
    answers: list[list[int]]
    delays_s: list[float]


@dataclass
class Served:
    """What became of all turns.

    Attributes:
        prompt_tokens, cached_tokens: of all turns, and how many of them were found in a cache.
        computed_tokens: prompt tokens computed, preempted ones again.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    by_server: dict[str, int] = field(default_factory=dict)


class SimServer:
    """One vLLM-like engine whose steps take virtual time."""

    def __init__(self, name: str, arena: int, policy: str, seats: int, names: SymbolTable) -> None:
        self.name = name
        limits = Workload(
            name="grpo", load="", seed=0, requests=(), warmup=0, max_running=seats, arena_tokens=arena
        )
        self._cost = CostModel(card_named("h100"), model_named("qwen2.5-7b"))
        self._limits = limits
        self._policy = policy
        self._names = names
        self._serial = 0
        self._waiting: dict[str, asyncio.Future[Job]] = {}
        self._task: asyncio.Task[None] | None = None
        self.engine = self._new_engine()

    def _new_engine(self) -> BlockEngine:
        planner = None if self._policy == "stock" else Planner(PeekConfig.from_label(self._policy))
        return BlockEngine(self._limits, planner, self._cost, symbols=self._names)

    def forget(self) -> None:
        """New weights: the prefix cache is empty.  Only while nobody runs."""
        assert not self._waiting
        self.engine = self._new_engine()

    async def generate(self, prompt_ids: list[int], answer: list[int]) -> Job:
        """Serve one turn; returns when its answer is there."""
        loop = asyncio.get_running_loop()
        self._serial += 1
        request_id = f"{self.name}-{self._serial}"
        request = SimRequest(request_id, loop.time(), pack(prompt_ids), len(prompt_ids), len(answer))
        job = self.engine.accept(request, loop.time())
        job.symbols = self._names.intern(pack([*prompt_ids, *answer]), 64, "")  # the next turn has them
        future: asyncio.Future[Job] = loop.create_future()
        self._waiting[request_id] = future
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            self.engine.now = loop.time()
            if not self.engine.turn():
                raise self.engine.too_small(self.engine.stuck())
            await asyncio.sleep(self.engine.now - loop.time())
            for request_id in [name for name in self._waiting if self.engine.jobs[name].finished_s >= 0.0]:
                self._waiting.pop(request_id).set_result(self.engine.jobs.pop(request_id))
        self._task = None


async def roll_out(sample: Sample, balancer: Any, served: Served) -> None:
    """All turns of one sample, as verl's agent loop and client take them."""
    prompt: list[int] = []
    for more, answer, delay_s in zip(sample.prompts, sample.answers, sample.delays_s, strict=True):
        await asyncio.sleep(delay_s)
        prompt += more
        fields = {"prompt_ids": prompt} if balancer.require_acquire_fields() else {}
        acquired = balancer.acquire_server(request_id=sample.name, **fields)
        server_id, server = await acquired if inspect.isawaitable(acquired) else acquired
        try:
            job = await server.generate(list(prompt), answer)
        finally:
            fields = {"request_id": sample.name} if balancer.require_release_fields() else {}
            balancer.release_server(server_id=server_id, **fields)
        served.prompt_tokens += job.prompt_tokens
        served.cached_tokens += job.cached_at_admission
        served.computed_tokens += job.prefill_tokens
        served.by_server[server_id] = served.by_server.get(server_id, 0) + 1
        prompt += answer


def tokens(rnd: random.Random, count: int) -> list[int]:
    return [rnd.randrange(150_000) for _ in range(count)]


def arena() -> int:
    """KV tokens of a rollout server that shares its card with the trainer, as verl sets it by default."""
    return arena_tokens(card_named("h100"), model_named("qwen2.5-7b"), 0.5)
