# ruff: noqa: T201
"""GRPO groups under verl's own balancer, group-sticky hashing, and `peek`'s: makespan and cached tokens.

    make_env.sh's python tests/verl/bench_groups.py [--seeds 42 142 242] [--cells long tools] [--servers 4]

In virtual time, on rollout servers with the step times of Qwen2.5-7B on an H100 (`rollouts.py`).  The
balancers are verl's class and ours, called as verl's client calls them.  As verl does, all samples of a batch
are handed out at once, in eight shares.  With --vllm: on two real engines on this machine's CPU instead
(`vllm_rollouts.py`), by the wall clock.  Reference: verl 0.9.1, `router.py` and `llm_server.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from group_hash import GroupHash
from rollouts import Sample, Served, SimServer, arena, roll_out, run_virtually, tokens

from peek.adapters.verl.load_balancer import FleetLoadBalancer
from peek.simulation.caches import SymbolTable

SHARES = 8
"""Agent loop workers of verl; each hands out its part of the batch in order."""


@dataclass(frozen=True)
class Cell:
    """A batch.

    Attributes:
        groups, samples: prompts, and rollouts of each.
        prompt: tokens of the first prompt, from .. to; 64 more are the same in all.
        answer: mean tokens of an answer; at most four times as many.
        turns: of a rollout.
        tool: tokens that a tool says between turns, and the most seconds it takes.
        batches: the same prompts again, after new weights.
        leave_s, join_s: when a server is removed, when another comes; 0: never.
    """

    title: str
    groups: int
    samples: int
    prompt: tuple[int, int]
    answer: int
    turns: int = 1
    tool: tuple[int, float] = (0, 0.0)
    batches: int = 1
    leave_s: float = 0.0
    join_s: float = 0.0

    def draw(self, seed: int) -> list[list[Sample]]:
        """The samples of each batch, group by group."""
        rnd = random.Random(seed)
        system = tokens(rnd, 64)
        heads = [system + tokens(rnd, rnd.randint(*self.prompt)) for _ in range(self.groups)]
        return [
            [
                self._sample(f"{batch}.{group}/{number}", head, rnd)
                for group, head in enumerate(heads)
                for number in range(self.samples)
            ]
            for batch in range(self.batches)
        ]

    def _sample(self, name: str, head: list[int], rnd: random.Random) -> Sample:
        lengths = [
            max(1, min(4 * self.answer, int(rnd.lognormvariate(0.0, 0.8) * 0.726 * self.answer)))
            for _ in range(self.turns)
        ]
        said = [tokens(rnd, self.tool[0]) for _ in range(self.turns - 1)]
        delays = [0.0, *[rnd.uniform(0.2, 1.0) * self.tool[1] for _ in said]]
        return Sample(name, [head, *said], [tokens(rnd, length) for length in lengths], delays)


CELLS = {
    "math": Cell("questions, 128-512 tokens", 256, 8, (128, 512), 1024),
    "long": Cell("long prompts, 8,192 tokens", 128, 8, (8192, 8192), 512),
    "huge": Cell("long prompts, 24,576 tokens", 64, 8, (24_576, 24_576), 256),
    "tools": Cell("agents, 6 turns, prompts of 4,096", 64, 8, (4096, 4096), 256, 6, (512, 5.0)),
    "search": Cell("agents, 12 turns, tools say 1,536", 32, 8, (2048, 2048), 128, 12, (1536, 3.0)),
    "weights": Cell("agents again after new weights", 32, 8, (4096, 4096), 256, 6, (512, 5.0), 2),
    "elastic": Cell(
        "agents, a server leaves at 20 s, one comes at 40 s", 64, 8, (4096, 4096), 256, 6, (512, 5.0),
        leave_s=20.0, join_s=40.0,
    ),
}  # fmt: skip


def stock(servers: Mapping[str, Any]) -> Any:
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    random.seed(1)  # it breaks ties by the global generator
    return GlobalRequestLoadBalancer(dict(servers))


def fleet(**options: Any) -> Callable[[Mapping[str, Any]], Any]:
    def make(servers: Mapping[str, Any]) -> Any:
        return FleetLoadBalancer(
            servers, {"cache_tokens": arena(), **options}, clock=lambda: asyncio.get_running_loop().time()
        )

    return make


BALANCERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "verl": stock,
    "group hash": GroupHash,
    "peek": fleet(),
}


@dataclass(frozen=True)
class Result:
    makespan_s: float
    cached: float
    computed_m: float
    spread: float
    """Turns of the busiest server over the mean."""


def run(
    cell: Cell, seed: int, make: Callable[[Mapping[str, Any]], Any], policy: str, count: int, seats: int
) -> Result:
    served = Served()
    names = SymbolTable()

    def server(number: int) -> SimServer:
        return SimServer(f"s{number}", arena(), policy, seats, names)

    async def main() -> None:
        servers = {f"s{number}": server(number) for number in range(count)}
        balancer = make(servers)
        changes = asyncio.create_task(change(balancer))
        for number, batch in enumerate(cell.draw(seed)):
            if number:
                balancer.clear_sticky_cache()
                for each in servers.values():
                    each.forget()
            share = len(batch) // SHARES
            in_turns = [batch[part * share + at] for at in range(share) for part in range(SHARES)]
            await asyncio.gather(*[roll_out(sample, balancer, served) for sample in in_turns])
        changes.cancel()

    async def change(balancer: Any) -> None:
        if cell.leave_s:
            await asyncio.sleep(cell.leave_s)
            balancer.remove_servers(["s0"])
            await asyncio.sleep(cell.join_s - cell.leave_s)
            balancer.add_servers({f"s{count}": server(count)})

    makespan_s = run_virtually(main)
    turns = list(served.by_server.values())
    return Result(
        makespan_s,
        served.cached_tokens / served.prompt_tokens,
        served.computed_tokens / 1e6,
        max(turns) * len(turns) / sum(turns),
    )


def on_vllm(runs: int) -> None:
    """Makespans by the wall clock."""
    sys.path.append(str(Path(__file__).parent.parent / "vllm"))
    from vllm_rollouts import cluster, roll_out, router_config

    with TemporaryDirectory() as folder, cluster(Path(folder)) as servers:
        hashing = Path(folder, "hash.yaml")
        hashing.write_text("router_class: group_hash.GroupHash\n")
        configs = {"verl": None, "group hash": str(hashing), "peek": router_config(Path(folder))}
        for config in configs.values():
            roll_out(servers, config)  # processes start, code is read
        print("| balancer | makespan, s | prompt tokens cached |")
        print("|---|---|---|")
        for _ in range(runs):
            for name, config in configs.items():
                rolled = roll_out(servers, config)
                print(f"| {name} | {rolled.seconds:.2f} | {rolled.cached / rolled.asked:.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 142, 242])
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--seats", type=int, default=256, help="requests that run at once on a server")
    parser.add_argument("--policies", nargs="+", default=["stock", "peek"], help="of the engines")
    parser.add_argument("--vllm", type=int, metavar="N", help="N runs on real engines instead")
    parser.add_argument("--balancers", nargs="+", default=list(BALANCERS), choices=list(BALANCERS))
    parser.add_argument("--rows", nargs="*", default=[], help="more rows: options of our balancer, a=1,b=2")
    asked = parser.parse_args()
    if asked.vllm:
        on_vllm(asked.vllm)
        return
    balancers = {name: BALANCERS[name] for name in asked.balancers}
    for row in asked.rows:
        options = dict(option.split("=") for option in row.split(","))
        balancers[f"peek {row}"] = fleet(**{name: int(value) for name, value in options.items()})
    print("| batch | engines | balancer | makespan, s | prompt tokens cached | computed, M | spread |")
    print("|---|---|---|---|---|---|---|")
    for name in asked.cells:
        for policy in asked.policies:
            for balancer, make in balancers.items():
                results = [
                    run(CELLS[name], seed, make, policy, asked.servers, asked.seats) for seed in asked.seeds
                ]
                cells = [
                    f"{mean(result.makespan_s for result in results):.1f}",
                    f"{mean(result.cached for result in results):.1%}",
                    f"{mean(result.computed_m for result in results):.2f}",
                    f"{mean(result.spread for result in results):.2f}",
                ]
                print(f"| {name} | {policy} | {balancer} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
