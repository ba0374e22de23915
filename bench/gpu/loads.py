"""The workloads of the comparison as token ids with arrival times, fixed by the seed.

`w1c` and `w5-short` are the leading requests of the paper's cells under vLLM's heavy load.  `sessions` is
a burst of coding agents that start: the first request of recorded sessions, with Poisson arrivals.
Shrinking takes every n-th token of every prompt, which leaves who shares what with whom as it was.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.recorded import SESSION_BLOCK, asked, block_name, sessions
from peek.simulation.cells import cell
from peek.simulation.workload import SimRequest, Workload, ideal_hit, unique_tokens

LOADS: Final = ("w1c", "w5-short", "sessions")
REQUESTS: Final = {"w1c": 350, "w5-short": 400, "sessions": 24}
WARMUP_SHARE: Final = {"w1c": 5, "w5-short": 15, "sessions": 0}
"""One request in so many is warm-up, as in the cells; a burst has none."""

LONGEST_OUTPUT: Final = 1_024
SESSIONS_PER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """Arrives `arrival_s` after the start and asks for exactly `output` tokens."""

    arrival_s: float
    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of arrival; the first `warmup` are left out of the metrics.

    `ideal_hit` is what a cache that never evicts would serve of the others' prompts.
    """

    name: str
    requests: list[Request]
    warmup: int
    ideal_hit: float


def load(
    name: str,
    seed: int,
    count: int,
    *,
    rate_scale: float = 1.0,
    shrink: int = 1,
    archive: Path | None = None,
) -> Load:
    """The first `count` requests of a workload; `archive` is the sessions' file that "sessions" needs."""
    if name == "sessions":
        if archive is None:
            raise ValueError("the load 'sessions' needs --sessions FILE")
        drawn = _session_starts(archive, seed, count)
    else:
        drawn = list(cell(name, "heavy", seed, "vllm").requests[:count])
    warmup = len(drawn) // WARMUP_SHARE[name] if WARMUP_SHARE[name] else 0
    requests = [
        Request(one.arrival_s / rate_scale, _tokens(one.key)[::shrink], max(2, one.output_tokens // shrink))
        for one in drawn
    ]
    whole = Workload(
        name=name, load="heavy", seed=seed, requests=drawn, warmup=warmup, max_running=0, arena_tokens=0
    )
    return Load(name, requests, warmup, ideal_hit(whole))


def _tokens(key: bytes) -> list[int]:
    return array("i", key).tolist()


def _session_starts(archive: Path, seed: int, count: int) -> list[SimRequest]:
    """The first request of `count` sessions drawn from those whose input is not too long."""
    rng = Random(seed)
    starts = [(session, own[0]) for session in sessions(archive) if (own := asked(session, 1))]
    rng.shuffle(starts)
    names: dict[object, int] = {}
    arrival_s = 0.0
    drawn: list[SimRequest] = []
    for session, first in starts[:count]:
        arrival_s += rng.expovariate(SESSIONS_PER_S)
        blocks = [block_name(session, i, i) for i in range(-(-first["in"] // SESSION_BLOCK))]
        key = b"".join(
            unique_tokens(f"{seed}/{block}", names.setdefault(block, len(names)), SESSION_BLOCK)
            for block in blocks
        )[: 4 * first["in"]]
        output = min(max(first["out"], 2), LONGEST_OUTPUT)
        drawn.append(SimRequest(f"session-{len(drawn)}", arrival_s, key, len(key) // 4, output))
    return drawn
