"""Traffic that the paper does not have, as data: its clients, their rates, and what their prompts share.

    cold-behind-hot    requests of one hot prefix never stop; sessions that share nothing wait behind them
    agents-with-tools  sessions that grow by a tool's answer at a time, with a pause while the tool runs
    tenants            a bulk job, a chat and a search of unequal weight, each with prefixes of its own
    live               apps whose favourites change, conversations, bursts about new documents, and strangers
    flood-*            others send prompts that share nothing, and one tenant floods
    map                100 prefixes of 4,096 tokens; the load is what arrival order could just serve
    batch              a batch that is known beforehand, with a number of prompts at a time

A stream's form changes one number: `map:80:arena200`, `batch:offline:groups50`.  Under the load `named` every
source is a tenant that its requests name; under `new` no request names one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log
from random import Random
from typing import Any

from bench.evaluation.plans import NAMED
from peek.simulation.cells import draw_groups
from peek.simulation.workload import SimRequest, Workload, unique_tokens
from peek.trie.keys import SYMBOL_BYTES


@dataclass(frozen=True)
class Source:
    """One kind of client.

    Attributes:
        name: beginning of its requests' ids.
        per_s: requests, or first requests of sessions, a second; arrivals are Poisson.  0: all at once.
        burst: requests that come at a time.
        own: tokens of a prompt that no other prompt shares.
        output: tokens of an answer.
        prefixes: number of prefixes, of which each request takes one.
        prefix: tokens of a prefix.
        head: tokens in front of all of its prefixes.
        pick: how a request's prefix is chosen: "turn" (in turn), "uniform" or "zipf" (exponent 1).
        drift_s: seconds after which each prefix gets the popularity of the one before it; 0: never.
        sigma: spread of the logarithm of the prefixes' lengths.
        copies: instead of `prefixes`, this many requests share each new one.
        turns: requests of a session; the next one waits for the answer.
        turn: tokens that each turn adds to the prompt.
        pause_s: median of the seconds between answer and next turn; its logarithm has a spread of 1.
    """

    name: str
    per_s: float
    own: int
    output: int
    burst: int = 1
    prefixes: int = 0
    prefix: int = 0
    head: int = 0
    pick: str = "turn"
    drift_s: float = 0.0
    sigma: float = 0.0
    copies: int = 0
    turns: int = 1
    turn: int = 0
    pause_s: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """Sources side by side on one engine.

    Attributes:
        sources: their first requests arrive for `lasts_s`; of a batch, `count` in all.
        arena: KV arena in tokens.
        seats: the engine's cap on running requests.
        jobs: the client's cap on outstanding requests, None for none.
        watched: name of the source whose TTFT is kept apart.
    """

    sources: tuple[Source, ...]
    arena: int
    seats: int = 256
    lasts_s: float = 240.0
    count: int = 0
    jobs: int | None = None
    watched: str = ""


_OTHERS = Source("other", 0.4, own=2048, output=64)
_MAP = Source("user", 1.0, own=32, output=128, prefixes=100, prefix=4096, pick="zipf")
_BATCH = Source("job", 0.0, own=128, output=64, prefixes=100, prefix=2048, pick="uniform")
_AGENT = Source(
    "agent", 0.4, own=1500, output=150, prefixes=3, prefix=4096, pick="zipf", turns=8, turn=900, pause_s=5.0
)

TRAFFIC = {
    "cold-behind-hot": Traffic(
        (Source("hot", 9.5, own=64, output=128, prefixes=1, prefix=4096), Source("cold", 0.5, 3072, 128)),
        arena=100_000,
        seats=64,
        watched="cold",
    ),
    "agents-with-tools": Traffic((_AGENT,), arena=200_000),
    "tenants": Traffic(
        (
            Source("bulk", 6.0, own=256, output=128, prefixes=40, prefix=2048, pick="zipf"),
            Source("chat", 1.0, own=512, output=256, prefixes=4, prefix=1024, pick="uniform"),
            Source("search", 0.5, own=2048, output=64),
        ),
        arena=100_000,
        seats=64,
        watched="chat",
    ),
    "live": Traffic(
        (
            Source(
                "app", 2.5, 150, 200, prefixes=24, prefix=2000, head=256, pick="zipf", drift_s=20.0, sigma=0.9
            ),
            Source("chat", 0.5, 400, 250, prefixes=2, prefix=1024, turns=5, turn=350, pause_s=6.0),
            Source("document", 2.0, 100, 100, burst=8, prefix=3000, copies=8),
            Source("stranger", 0.6, own=1500, output=150),
        ),
        arena=100_000,
    ),
    "flood-one-prefix": Traffic(
        (_OTHERS, Source("flood", 6.0, own=16, output=512, prefixes=1, prefix=4096)),
        120_000,
        32,
        watched="other",
    ),
    "flood-four-prefixes": Traffic(
        (_OTHERS, Source("flood", 4.0, own=512, output=256, prefixes=4, prefix=4096)),
        120_000,
        32,
        watched="other",
    ),
    "flood-small-groups": Traffic(
        (_OTHERS, Source("flood", 6.0, own=64, output=512, prefix=64, copies=3)), 120_000, 32, watched="other"
    ),
    "map": Traffic((_MAP,), arena=100_000, count=1000),
    "batch": Traffic((_BATCH,), arena=40_000, count=1000, jobs=256),
}
"""By the kind of a stream."""

SERVED_PER_S = {50: 1.8, 100: 3.0, 200: 5.2, 400: 8.2}
"""Requests a second of `map` that arrival order serves, by arena in thousands of tokens.

The throughput of `fcfs+lru` if all come at once (`map:flash`), the lower of both simulated engines'.
"""


def workload(kind: str, load: str, form: str, number: int, seed: int) -> Workload:
    """Return one of `TRAFFIC`, with the number that `form` names changed; `load` is per cent for `map`."""
    traffic = _changed(TRAFFIC[kind], form, number)
    if kind == "map":
        served = 0.0 if load == "flash" else SERVED_PER_S[traffic.arena // 1000]
        traffic = _with(traffic, per_s=served * int(load) / 100 if served else 0.0)
    return mixed(traffic, kind, load, seed)


def mixed(traffic: Traffic, kind: str, load: str, seed: int) -> Workload:
    """Return the requests of all sources; with the load `NAMED`, each source is a tenant.

    A tenth of them is warm-up; none of a batch, and none where a source is watched.
    """
    rng = Random(seed)
    requests: list[SimRequest] = []
    for place, source in enumerate(traffic.sources):
        tenant = source.name if load == NAMED else ""
        requests += _requests(source, traffic, rng, f"{kind}/{seed}/{place}", place * 1_000_000, tenant)
    requests.sort(key=lambda request: request.arrival_s)  # stable: turns stay in order
    whole = traffic.jobs is not None or traffic.watched
    return Workload(
        name=kind, load=load, seed=seed, requests=tuple(requests), warmup=0 if whole else len(requests) // 10,
        max_running=traffic.seats, arena_tokens=traffic.arena, client_concurrency=traffic.jobs,
    )  # fmt: skip


def _changed(traffic: Traffic, form: str, number: int) -> Traffic:
    if form == "arena":
        return replace(traffic, arena=1000 * number)
    if form == "jobs":
        return replace(traffic, jobs=number)
    if form == "sigma":
        return _with(traffic, sigma=number / 100)
    return _with(traffic, **{{"groups": "prefixes"}.get(form, form): number}) if form else traffic


def _with(traffic: Traffic, **changes: Any) -> Traffic:
    """Return the same traffic with another first source."""
    first, *others = traffic.sources
    return replace(traffic, sources=(replace(first, **changes), *others))


def _requests(
    source: Source, traffic: Traffic, rng: Random, texts: str, first: int, tenant: str
) -> Iterator[SimRequest]:
    """Return the requests of one source, session by session; draws arrivals, then prefixes, then pauses.

    `texts` keeps its texts apart from other sources'; its names begin at `first`.
    """
    starts = list(_starts(source, traffic, rng))
    picked = _picked(source, starts, rng)
    lengths = _lengths(source, rng)
    head = unique_tokens(f"{texts}/head", first + 499_999, source.head)
    for number, (start_s, prefix) in enumerate(zip(starts, picked, strict=True)):
        shared = b""
        if source.prefixes or source.copies:
            shared = head + unique_tokens(
                f"{texts}/shared/{prefix}", first + prefix, lengths.get(prefix, source.prefix)
            )
        longest = source.own + source.turn * (source.turns - 1)
        words = unique_tokens(f"{texts}/own/{number}", first + 500_000 + number, longest)
        name, before = f"{source.name}-{number}", None
        for turn in range(source.turns):
            key = shared + words[: SYMBOL_BYTES * (source.own + turn * source.turn)]
            pause_s = rng.lognormvariate(log(source.pause_s), 1.0) if before else 0.0
            rid = name if source.turns == 1 else f"{name}-{turn}"
            length = len(key) // SYMBOL_BYTES
            yield SimRequest(
                rid, start_s, key, length, source.output, after=before, think_s=pause_s, tenant=tenant
            )
            before = rid


def _starts(source: Source, traffic: Traffic, rng: Random) -> Iterator[float]:
    if not source.per_s:
        yield from [0.0] * traffic.count
        return
    bursts_s = source.per_s / source.burst
    at_s, number = rng.expovariate(bursts_s), 0
    while number < traffic.count if traffic.count else at_s < traffic.lasts_s:
        yield from [at_s] * source.burst
        at_s += rng.expovariate(bursts_s)
        number += source.burst


def _picked(source: Source, starts: list[float], rng: Random) -> list[int]:
    """Return the number of each request's prefix."""
    count = len(starts)
    if source.copies:
        return [number // source.copies for number in range(count)]
    if source.pick == "zipf":
        ranks = draw_groups(rng, source.prefixes, count)
        moved = [int(start_s / source.drift_s) if source.drift_s else 0 for start_s in starts]
        return [(rank + by) % source.prefixes for rank, by in zip(ranks, moved, strict=True)]
    if source.pick == "uniform":
        return [rng.randrange(source.prefixes) for _ in range(count)]
    return [number % max(1, source.prefixes) for number in range(count)]


def _lengths(source: Source, rng: Random) -> dict[int, int]:
    """Return the prefixes' lengths, where they differ: log-normal, with the stated length as mean."""
    if not source.sigma:
        return {}
    middle = log(source.prefix) - source.sigma**2 / 2.0
    return {number: round(rng.lognormvariate(middle, source.sigma)) for number in range(source.prefixes)}
