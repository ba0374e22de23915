"""Compares routers in front of several engines.

    python -m bench.fleet --csv docs/data/fleet.csv    the table of docs/fleet_results.md (40 minutes)
    python -m bench.fleet --cells zipf --seeds 42 --routers peek round-robin
    python -m bench.fleet --drawn --csv docs/data/fleet_drawn.csv    mixes of which every number is drawn
    python -m bench.fleet --decisions           the time that decisions of `FleetPlanner` take
    python -m bench.fleet --large               large fleets: homes chosen among a few replicas or among all
    python -m bench.fleet --shards              very large fleets: one planner, or several for a share each

The engines are simulated, vLLM-like, in modelled time.  All figures depend on the arguments alone, except the
times of decisions, which are processor time of this machine.  Most cells are a load of the paper on several
replicas, at an arrival rate of their own; `zipf` draws the prompts anew, so that many share few prefixes.
"""

from __future__ import annotations

import argparse
import csv
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from multiprocessing import Pool
from random import Random
from statistics import geometric_mean, mean, median
from time import thread_time
from typing import Any, Final
from zlib import crc32

from bench.arena.drawn import FIRST, Mix
from bench.arena.kinds import at_load, build
from bench.builds import require_compiled
from bench.evaluation.plans import parts_of
from bench.evaluation.traffic import Source, Traffic, mixed
from bench.evaluation.traffic import workload as traffic
from bench.routers import model as routers
from bench.routers.traffic import CELLS as ROUTERS_CELLS
from bench.routers.traffic import LONG
from peek import PendingRequest
from peek.fleet import FleetConfig, FleetPlanner
from peek.simulation.cells import cell
from peek.simulation.fleet import ROUTERS, FleetShape, simulate_fleet
from peek.simulation.routers import HASHED_TOKENS, Arrival, PeekRouter, Router, Site
from peek.simulation.workload import Workload, faster, unique_tokens
from peek.trie.keys import SYMBOL_BYTES

PREFIX: Final = 4096 * SYMBOL_BYTES
"""Bytes of the prefix that a group of prompts shares in W1 C and D."""

SEEDS: Final = (42, 142, 242, 342, 442, 542)

DECISIONS: Final = ((4, 1_000), (4, 10_000), (4, 100_000), (64, 20_000), (256, 100_000), (1_000, 100_000))
"""Pairs of a number of replicas and a number of waiting requests."""


ONE_PROMPT: Final = Traffic(
    (Source("user", 100.0, 200, 128, prefixes=1, prefix=16_384, turns=3, turn=200, pause_s=1.0),),
    arena=200_000,
    seats=16,
    count=100,
)


@dataclass(frozen=True)
class FleetCell:
    """A load for a fleet.

    Attributes:
        name: a cell of the paper, a stream of the evaluation (`bench.evaluation.traffic`), `kind:NAME:LOAD`
            (a kind of `bench.arena` at LOAD times the capacity of all replicas), `drawn:NUMBER` (a mix of
            `bench.arena.drawn`, whatever the seed), `one-prompt`, or `routers:NAME` (a cell of
            `bench.routers` on the servers that are measured there, stock vLLM).
        title: description of the load.
        rate: requests per second at the fleet; 0 for the load's own arrivals.
        speeds: speed of each replica.
        skew: exponent of the popularity of prefixes; 0 for the load's own prompts.
        stale_s, losses, joins: as in `FleetShape`.
        arena: tokens of a replica's cache; 0 for the load's own.
    """

    name: str
    title: str
    rate: float = 0.0
    speeds: Sequence[float] = (1.0,) * 4
    skew: float = 0.0
    stale_s: float = 0.0
    losses: Sequence[tuple[float, int]] = field(default=())
    joins: Sequence[tuple[float, float]] = field(default=())
    arena: int = 0

    def workload(self, seed: int) -> Workload:
        if self.name == "one-prompt":
            base = mixed(ONE_PROMPT, self.name, "new", seed)
            return replace(
                base, requests=[replace(r, session=r.request_id.rpartition("-")[0]) for r in base.requests]
            )
        if self.name.startswith("drawn:"):
            mix = Mix(int(self.name.partition(":")[2]), EACH * len(self.speeds))
            return faster(mix.workload(), len(self.speeds))
        if self.name.startswith("kind:"):
            _, kind, load = self.name.split(":")
            base = build(kind, seed, self.arena) if self.arena else build(kind, seed)
            return at_load(base, float(load) * len(self.speeds), "blocks")
        if self.name.startswith("routers:"):
            return routers.workload(self.name.partition(":")[2], seed)
        kind, load, form, number = parts_of(self.name)
        base = traffic(kind, load, form, number, seed) if load else cell(kind, "heavy", seed, "vllm")
        if self.rate:
            base = faster(base, self.rate * base.requests[-1].arrival_s / len(base.requests))
        return skewed(base, self.skew) if self.skew else base

    def run(self, seed: int, router: str) -> dict[str, Any]:
        """Return the figures of one run."""
        shape = FleetShape(router, self.speeds, self.stale_s, self.losses, self.joins)
        if self.name.startswith("routers:"):
            return simulate_fleet(self.workload(seed), "fcfs+lru", shape, cost=routers.Paced())
        return simulate_fleet(self.workload(seed), "peek", shape)


CELLS: Final = {
    "uniform": FleetCell("w1d", "W1 D, 40 req/s", 40.0),
    "zipf": FleetCell("w1d", "W1 D, Zipf 1.4, 30 req/s", 30.0, skew=1.4),
    "calm": FleetCell("w1d", "W1 D, 14 req/s", 14.0),
    "w1c": FleetCell("w1c", "W1 C, 14 req/s", 14.0),
    "w3b": FleetCell("w3b", "W3 B, closed loop, 2 replicas", speeds=(1.0, 1.0)),
    "w3c": FleetCell("w3c", "W3 C, closed loop, 2 replicas", speeds=(1.0, 1.0)),
    "mixed": FleetCell("w1d", "W1 D, 14 req/s, speeds 1, 1, 1/2, 1/2", 14.0, (1.0, 1.0, 0.5, 0.5)),
    "stale1": FleetCell("w1d", "W1 D, Zipf 1.4, 30 req/s, news 1 s late", 30.0, skew=1.4, stale_s=1.0),
    "stale5": FleetCell("w1d", "W1 D, Zipf 1.4, 30 req/s, news 5 s late", 30.0, skew=1.4, stale_s=5.0),
    "stale5calm": FleetCell("w1d", "W1 D, 14 req/s, news 5 s late", 14.0, stale_s=5.0),
    "death": FleetCell(
        "w1d", "W1 D, 14 req/s, one dies after 30 s, one joins after 60 s", 14.0,
        losses=((30.0, 0),), joins=((60.0, 1.0),),
    ),
    "live": FleetCell("live:new:arena100", "live mix, 30 req/s", 30.0),
    "short": FleetCell("w5-short", "W5 short (nothing shared), 200 req/s", 200.0),
    "many": FleetCell("w1d", "W1 D, 100 req/s, 16 replicas", 100.0, (1.0,) * 16),
    "agents": FleetCell("kind:agents:1.1", "agents with fan-out, load 1.1"),
    "agents2": FleetCell("kind:agents:1.1", "agents with fan-out, load 1.1, 2 replicas", speeds=(1.0,) * 2),
    "agents8": FleetCell("kind:agents:1.1", "agents with fan-out, load 1.1, 8 replicas", speeds=(1.0,) * 8),
    "agents200": FleetCell("kind:agents:1.6", "agents, load 1.6, caches of 200,000 tokens", arena=200_000),
    "code2": FleetCell("kind:code:1.1", "coding agents, load 1.1, 2 replicas", speeds=(1.0,) * 2),
    "code": FleetCell("kind:code:1.1", "coding agents, load 1.1"),
    "chats": FleetCell("kind:chat:1.1", "chats, load 1.1"),
    "rag": FleetCell("kind:rag:1.1", "RAG, load 1.1"),
    "rag16": FleetCell("kind:rag:1.6", "RAG, load 1.6"),
    "documents": FleetCell("kind:documents:1.1", "questions on long documents, load 1.1"),
    "one-prompt": FleetCell("one-prompt", "100 users of one prompt of 16,384 tokens, 16 seats"),
    **{
        f"routers{number}": FleetCell(f"routers:{each.name}", f"paced servers: {each.name}")
        for number, each in enumerate((*ROUTERS_CELLS, *LONG))
    },
}  # fmt: skip

EACH: Final = 250
"""Requests for each replica, of a drawn mix."""

DRAWN: Final = {
    f"drawn{number}": FleetCell(
        f"drawn:{number}", f"mix {number}, {replicas} replicas", speeds=(1.0,) * replicas
    )
    for number, replicas in zip(range(FIRST, FIRST + 24), cycle((2, 4, 8)), strict=False)
}


def skewed(base: Workload, exponent: float) -> Workload:
    """Return the same arrivals, each with the prefix of a group drawn anew and a tail of its own."""
    groups = {each.key[:PREFIX]: each for each in base.requests}
    models = [groups[name] for name in sorted(groups)]
    rng = Random(base.seed)
    rng.shuffle(models)
    weights = list(accumulate(1.0 / (rank + 1) ** exponent for rank in range(len(models))))
    found = []
    for number, request in enumerate(base.requests):
        drawn = bisect_right(weights, rng.random() * weights[-1], 0, len(models) - 1)
        model = models[drawn]
        own = unique_tokens(f"{base.seed}/tail/{number}", 200_000 + number, model.num_tokens - 4096)
        found.append(replace(request, key=model.key[:PREFIX] + own, num_tokens=model.num_tokens))
    return replace(base, requests=found)


# -- routers --------------------------------------------------------------------------------------------


Row = dict[str, Any]
"""A cell under a router: the columns of `figures`."""

OURS: Final = ("peek", "peek-early")
COMPARED: Final = (("mean_s", 1.0), ("p99_s", 1.0), ("requests_per_s", -1.0))
"""Columns of the printed table; 1.0 where less is better, -1.0 where more is."""


def figures(job: tuple[str, str, Sequence[int]]) -> Row:
    """Return the figures of a cell under a router, averaged over the seeds."""
    name, router, seeds = job
    cell = (CELLS | DRAWN)[name]
    runs = [cell.run(seed, router) for seed in seeds]
    return {
        "cell": cell.title,
        "router": router,
        "hit": round(mean(each["cache_hit"] for each in runs), 4),
        "mean_s": round(mean(each["ttft_s"]["mean"] for each in runs), 4),
        "p50_s": round(mean(each["ttft_s"]["p50"] for each in runs), 4),
        "p99_s": round(mean(each["ttft_s"]["p99"] for each in runs), 4),
        "requests_per_s": round(mean(each["throughput_rps"] for each in runs), 4),
        "imbalance": round(mean(each["imbalance"] for each in runs), 3),
        "job_s": round(mean(each["job_s"]["mean"] for each in runs), 3) if "job_s" in runs[0] else None,
    }


def beside(rows: Sequence[Row]) -> list[str]:
    """Return a cell's columns: the best of the others, figure by figure, and ours, bold where it is worse."""
    columns: dict[str, list[str]] = {"": [], **{router: [] for router in OURS}}
    for figure, sign in COMPARED:
        best = min((row for row in rows if row["router"] not in OURS), key=lambda row: sign * row[figure])
        columns[""].append(f"{best[figure]:#.3g} ({best['router']})")
        for row in rows:
            if row["router"] in OURS:
                worse = sign * row[figure] > sign * best[figure] * (1.0 + 0.01 * sign)
                columns[row["router"]].append(f"**{row[figure]:#.3g}**" if worse else f"{row[figure]:#.3g}")
    return [" / ".join(each) for each in columns.values()]


def overall(rows: Sequence[Row]) -> list[str]:
    """Return each router's mean TTFT, p99 and job time over those of the best router of each cell.

    Geometric means, and the worst.  Cells without sessions have no job time.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for title in dict.fromkeys(row["cell"] for row in rows):
        there = [row for row in rows if row["cell"] == title]
        for figure in ("mean_s", "p99_s", "job_s") if there[0]["job_s"] else ("mean_s", "p99_s"):
            best = min(row[figure] for row in there)
            for row in there:
                ratios.setdefault(row["router"], {}).setdefault(figure, []).append(row[figure] / best)
    return [
        f"| `{router}` | "
        + " | ".join(f"{geometric_mean(each):.2f} | {max(each):.1f}" for each in found.values())
        + " |"
        for router, found in sorted(ratios.items(), key=lambda each: geometric_mean(each[1]["mean_s"]))
    ]


def compare(cells: Sequence[str], chosen: Sequence[str], seeds: Sequence[int], path: str, jobs: int) -> None:
    """Run every cell under every router, write the rows, and print the tables of docs/fleet_results.md."""
    with Pool(jobs) as pool:
        rows = pool.map(figures, [(name, router, seeds) for name in cells for router in chosen], chunksize=1)
    if path:
        with open(path, "w", newline="") as sink:
            out = csv.DictWriter(sink, list(rows[0]), lineterminator="\n")
            out.writeheader()
            out.writerows(rows)
    print("| cell | best of the others: mean TTFT, p99, req/s | `peek` | `peek-early` |")
    print("|---|---|---|---|")
    for name in cells:
        title = (CELLS | DRAWN)[name].title
        print(f"| {title} | {' | '.join(beside([row for row in rows if row['cell'] == title]))} |")
    print("\n| router | mean TTFT / the best of the cell | at worst | p99 | at worst | job time | at worst |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(overall(rows)))


# -- large fleets ----------------------------------------------------------------------------------------

LARGE: Final = {
    "agents, 3 x": FleetCell("kind:agents:3", "", speeds=(1.0,) * 32),
    "chats, 3 x": FleetCell("kind:chat:3", "", speeds=(1.0,) * 32),
    "RAG, 3 x": FleetCell("kind:rag:3", "", speeds=(1.0,) * 32),
    "W1 D, Zipf 1.4, 720 req/s": FleetCell("w1d", "", 720.0, (1.0,) * 48, skew=1.4),
    "W1 D, 640 req/s": FleetCell("w1d", "", 640.0, (1.0,) * 32),
    "live mix, 480 req/s": FleetCell("live:new:arena100", "", 480.0, (1.0,) * 32),
}


def large(seed: int) -> None:
    """Print each large cell with homes chosen among 16 replicas, and among all."""
    print("| load | replicas | binding | hit | mean TTFT, s | p99, s | req/s |")
    print("|---|---|---|---|---|---|---|")
    for name, chosen in LARGE.items():
        workload = chosen.workload(seed)
        for early in (False, True):
            runs = [
                simulate_fleet(
                    workload, "peek", FleetShape("peek", chosen.speeds),
                    router=PeekRouter(early, config=FleetConfig(asked_whole=asked)),
                )
                for asked in (16, 256)
            ]  # fmt: skip
            cells = [
                " / ".join(f"{each[key]:.3f}" for each in runs) for key in ("cache_hit", "throughput_rps")
            ]
            ttft = [" / ".join(f"{each['ttft_s'][key]:.3f}" for each in runs) for key in ("mean", "p99")]
            binding = "early" if early else "late"
            row = [name, str(len(chosen.speeds)), binding, cells[0], *ttft, cells[1]]
            print(f"| {' | '.join(row)} |", flush=True)


# -- several planners -----------------------------------------------------------------------------------

EXCHANGE_S: Final = 0.25
"""Seconds between two exchanges of loads."""

UNEVEN: Final = 1.25
"""Ratio of two planners' loads from which replicas change hands."""

MUCH: Final = 1000.0
"""Tokens to compute for each of its replicas below which a planner needs no other."""

SHARDED: Final = (
    *(
        ("prompts", 1, *sizes)
        for sizes in ((64, 1), (64, 4), (1_000, 1), (1_000, 4), (1_000, 16), (10_000, 16))
    ),
    *(("sessions", 4, *sizes) for sizes in ((1_000, 1), (1_000, 4), (1_000, 16))),
)
"""A load, its turns of a session, a number of replicas, and a number of planners."""


class ShardedRouter(Router):
    """Several planners, each with replicas of its own, for the prompts with a hash of their first tokens.

    A few times a second the planners tell each other their loads, in tokens to compute for each of their
    replicas.  The one with the least then gives replicas with nothing to do to the one with the most.
    """

    def __init__(self, planners: int) -> None:
        super().__init__()
        self.decided_s = 0.0
        """Processor time of all planners."""
        self.given = 0
        """Number of times that a replica has changed hands."""
        self._shards = [PeekRouter(early=True) for _ in range(planners)]
        self._of: dict[str, PeekRouter] = {}
        self._stirred: dict[PeekRouter, None] = {}
        """Planners with news since they last said what to send."""
        self._exchanged_s = 0.0

    def joined(self, site: Site) -> None:
        super().joined(site)
        self._shards[site.name % len(self._shards)].joined(site)

    def arrived(self, arrival: Arrival) -> None:
        head = arrival.key[: SYMBOL_BYTES * HASHED_TOKENS // self.sites[0].unit_tokens]
        shard = self._shards[crc32(head, crc32(arrival.namespace.encode())) % len(self._shards)]
        self._of[arrival.request_id] = shard
        self._stirred[shard] = None
        began = thread_time()
        shard.arrived(arrival)
        self.decided_s += thread_time() - began

    def ready(self, now: float) -> list[tuple[str, int]]:
        began = thread_time()
        if len(self._shards) > 1 and now >= self._exchanged_s + EXCHANGE_S:
            self._exchanged_s = now
            self._exchange()
        sent = [each for shard in self._stirred for each in shard.ready(now)]
        self._stirred.clear()
        self.decided_s += thread_time() - began
        return sent

    def _exchange(self) -> None:
        """Let the planners with the least to do give replicas to those with the most."""
        known = [shard.fleet.status() for shard in self._shards]
        status = [[each for each in replicas if each.accepting] for replicas in known]
        loads = [sum(each.backlog for each in replicas) / len(replicas) for replicas in status]
        order = sorted(range(len(loads)), key=loads.__getitem__)
        for poor, rich in zip(order, order[: len(order) // 2 - 1 : -1], strict=False):
            if loads[rich] < max(MUCH, UNEVEN * loads[poor]):
                return
            even = (loads[poor] + loads[rich]) / 2
            most = min(round(len(status[rich]) * (loads[rich] / even - 1.0)), len(status[poor]) // 4)
            leaving = {each.name for each in known[rich]}  # it may still have a request there
            free = [each for each in status[poor] if each.name not in leaving]
            for each in sorted(free, key=lambda each: each.backlog)[:most]:
                self.given += 1
                self._shards[poor].fleet.leave(each.name)
                self._shards[rich].joined(self.sites[int(each.name)])
            self._stirred[self._shards[rich]] = None

    def started(self, request_id: str, name: int) -> None:
        shard = self._of[request_id]
        self._stirred[shard] = None
        shard.started(request_id, name)

    def finished(self, request_id: str, name: int) -> None:
        shard = self._of.pop(request_id)
        self._stirred[shard] = None
        shard.finished(request_id, name)


def shared_prompts(replicas: int, turns: int, seed: int) -> Workload:
    """Draw requests for prompts that are four times what the caches hold, or sessions of so many turns."""
    source = Source(
        "user", 8.0 * replicas / turns, 128, 32, prefixes=50 * replicas, prefix=1024, pick="zipf",
        turns=turns, turn=160, pause_s=1.0,
    )  # fmt: skip
    return mixed(
        Traffic((source,), arena=12_000, seats=16, count=16 * replicas // turns), "shared", "new", seed
    )


def sharded(seed: int) -> None:
    """Print what several planners cost beside one."""
    print("| load | replicas | planners | hit | mean TTFT, s | p99, s | req/s | us a request | given |")
    print("|---|---|---|---|---|---|---|---|---|")
    for load, turns, replicas, planners in SHARDED:
        workload = shared_prompts(replicas, turns, seed)
        router = ShardedRouter(planners)
        shape = FleetShape("peek-early", (1.0,) * replicas)
        run = simulate_fleet(workload, "peek", shape, router=router)
        ttft = run["ttft_s"]
        print(
            f"| {load} | {replicas:,} | {planners} | {run['cache_hit']:.3f} | {ttft['mean']:.3f} | "
            f"{ttft['p99']:.2f} | {run['throughput_rps']:.0f} | "
            f"{1e6 * router.decided_s / len(workload.requests):.0f} | {router.given} |",
            flush=True,
        )


# -- decisions ------------------------------------------------------------------------------------------


class Filled:
    """A fleet with a number of waiting requests, ten per prefix of 256 blocks; others are under way."""

    def __init__(self, replicas: int, waiting: int) -> None:
        self._rng = Random(1)
        self._prefixes = [unique_tokens(f"prefix/{group}", group, 256) for group in range(waiting // 10)]
        self._serial = 0
        self.fleet = FleetPlanner()
        self.under_way: list[tuple[str, str]] = []
        for number in range(replicas):
            self.fleet.join(f"gpu{number}", cache_tokens=3125)
        while len(self.fleet) < waiting:
            self.fleet.add(*self.drawn())
            if self._serial % 16 == 0:
                self.dispatch()

    def drawn(self) -> tuple[PendingRequest, int]:
        """Return the next request and the tokens that it decodes."""
        self._serial += 1
        own = unique_tokens(f"own/{self._serial}", self._serial, 4)
        key = self._rng.choice(self._prefixes) + own
        return PendingRequest(f"r{self._serial}", key, float(self._serial)), 128

    def dispatch(self) -> int:
        sent = self.fleet.dispatch(float(self._serial))
        self.under_way += sent
        return len(sent)


def decisions(replicas: int, waiting: int, rounds: int = 300) -> None:
    """Time an arrival with the choice of its home, and a replica's news with all requests sent for it."""
    filled = Filled(replicas, waiting)
    arrival_us, news_us, sent = [], [], 0
    for _ in range(rounds):
        filled.fleet.finished(*filled.under_way.pop(0))
        began = thread_time()
        sent += filled.dispatch()
        news_us.append((thread_time() - began) * 1e6)
        while len(filled.fleet) < waiting:
            request, decode_tokens = filled.drawn()
            began = thread_time()
            filled.fleet.add(request, decode_tokens)
            arrival_us.append((thread_time() - began) * 1e6)
    print(
        f"| {replicas} | {waiting:,} | {median(arrival_us):.0f} | {median(news_us):.0f} | "
        f"{sorted(news_us)[int(0.99 * rounds)]:.0f} | {sent / rounds:.1f} | "
        f"{(sum(news_us) + sum(arrival_us)) / sent:.0f} |",
        flush=True,
    )


def beside_a_backlog(idle: int, waiting: int, rounds: int = 100) -> None:
    """Time an arrival with `dispatch` where some replicas have room, and nothing is worth taking over.

    One replica has a document of 200,000 tokens, for which all questions wait.
    """
    fleet = FleetPlanner(FleetConfig(unit_tokens=16))
    document = unique_tokens("document", 0, 12_500)

    def question(number: int) -> PendingRequest:
        own = unique_tokens(f"question/{number}", number, 1)
        return PendingRequest(f"question {number}", document + own, float(number))

    fleet.join("busy", cache_tokens=400_000)
    fleet.place(PendingRequest("document", document, 0.0), at="busy")
    fleet.finished("document", "busy")
    fleet.other_load("busy", fleet.config.warm_requests, 1)  # it has no room
    for number in range(idle):
        fleet.join(f"gpu{number}", cache_tokens=400_000)
        fleet.place(PendingRequest(f"decodes {number}", [number], 0.0), 10, at=f"gpu{number}")
        fleet.started(f"decodes {number}", f"gpu{number}")
    for number in range(waiting):
        fleet.add(question(number))
    fleet.dispatch(float(waiting))
    spent_us = []
    for number in range(waiting, waiting + rounds):
        request = question(number)
        began = thread_time()
        fleet.add(request)
        fleet.dispatch(float(number))
        spent_us.append((thread_time() - began) * 1e6)
    assert len(fleet) == waiting + rounds
    print(f"| {idle} | {waiting:,} | {median(spent_us):.0f} | {sorted(spent_us)[int(0.99 * rounds)]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), default=list(CELLS), metavar="CELL")
    parser.add_argument(
        "--routers", nargs="*", choices=list(ROUTERS), default=list(ROUTERS), metavar="ROUTER"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--csv", default="", help="file for the figures of every router")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--drawn", action="store_true", help="drawn mixes in place of the cells, each once")
    parser.add_argument("--decisions", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--shards", action="store_true")
    arguments = parser.parse_args()
    require_compiled()
    if arguments.shards:
        sharded(arguments.seeds[0])
        return
    if arguments.decisions:
        print("| replicas | waiting | arrival, µs | news, µs | p99 | sent | µs in all for each sent |")
        print("|---|---|---|---|---|---|---|")
        for replicas, waiting in DECISIONS:
            decisions(replicas, waiting)
        print("\n| with room | waiting elsewhere | arrival and dispatch, µs | p99 |\n|---|---|---|---|")
        for idle in (1, 10):
            beside_a_backlog(idle, 10_000)
        return
    if arguments.large:
        large(arguments.seeds[0])
        return
    cells, seeds = (list(DRAWN), [0]) if arguments.drawn else (arguments.cells, arguments.seeds)
    compare(cells, arguments.routers, seeds, arguments.csv, arguments.jobs)


if __name__ == "__main__":
    main()
