"""Simulated engines in stock order with a shadow engine beside them, and small workloads for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from random import Random
from typing import Any

import pytest

from peek import PeekConfig
from peek.adapters.shadow import Shadow
from peek.simulation.cells import draw_groups
from peek.simulation.engines import (
    CHUNK_TOKENS,
    MAX_PREFILL_TOKENS,
    BlockEngine,
    Job,
    RadixEngine,
    SimEngine,
    StepWork,
)
from peek.simulation.live import Limits, LiveBlocks, LiveRadix
from peek.simulation.workload import SimRequest, Workload, pack_tokens, unique_tokens

CONFIG = PeekConfig.from_label("peek")
TOKEN_S = 1 / 6000
BLOCK = 16


def grouped(seed: int, requests: int = 400, groups: int = 50, alone: bool = False) -> Workload:
    """Requests of groups that share 1,024 tokens, by popularity, at more than an engine can serve.

    The arena holds about nine of the prefixes.  `alone`: the same, but nobody shares anything.
    """
    rng = Random(seed)
    made, arrival_s = [], 0.0
    for place, group in enumerate(draw_groups(rng, groups, requests)):
        arrival_s += rng.expovariate(12.0)
        own = unique_tokens(f"{seed}/own/{place}", groups + place, rng.randrange(17, 80))
        shared = place if alone else group
        key = unique_tokens(f"{seed}/group/{shared}", shared, 1024) + own
        made.append(SimRequest(f"r{place}", arrival_s, key, len(key) // 4, rng.randrange(24, 48)))
    return Workload(
        name="grouped", load="", seed=seed, requests=tuple(made), warmup=0, max_running=16,
        arena_tokens=600 * BLOCK,
    )  # fmt: skip


def hit(jobs: list[Job]) -> float:
    """Per cent of the prompt tokens that were cached at admission."""
    return 100.0 * sum(job.cached_at_admission for job in jobs) / sum(job.prompt_tokens for job in jobs)


def foretold(shadow: Shadow) -> tuple[float, float]:
    """The shadow's account in per cent: in the order of `peek`, and as it was."""
    ours, theirs = shadow.hit_tokens, shadow.stock_hit_tokens
    return 100.0 * ours / shadow.prompt_tokens, 100.0 * theirs / shadow.prompt_tokens


def limits_of(workload: Workload, unit_tokens: int = 1) -> Limits:
    return Limits(workload.arena_tokens, unit_tokens, workload.max_running, CHUNK_TOKENS, MAX_PREFILL_TOKENS)


class Followed(SimEngine):
    """Mixed into an engine kind; `allowed` times the true length is what an answer may have."""

    shadow: Shadow
    allowed = 1
    went_on = False

    def step(self) -> StepWork:
        self.shadow.step(self.now)
        work = super().step()  # type: ignore[safe-super]
        if work.jobs:
            pairs, kv_tokens = work.attention_pairs, work.kv_tokens
            self.shadow.steps.note(self.now, self.went_on, work.computed_tokens, pairs, kv_tokens)
        self.went_on = bool(work.jobs)
        return work

    def leave(self, count: int) -> None:
        for job in self.waiting[:count]:
            self.shadow.admitted(job.request_id, job.cached_at_admission)
        super().leave(count)

    def finish(self, job: Job) -> None:
        super().finish(job)
        self.shadow.ended(job.request_id, job.generated)

    def tell(self, job: Job, key: bytes, arrival_s: float) -> Job:
        allowed = job.allowed_tokens * self.allowed
        self.shadow.arrived(job.request_id, key, job.prompt_tokens, allowed, arrival_s)
        return job


class FollowedBlocks(Followed, BlockEngine):
    def __init__(self, workload: Workload, cost: Any, config: PeekConfig = CONFIG) -> None:
        super().__init__(workload, None, cost)
        limits = limits_of(workload, self.block_tokens)
        self.shadow = Shadow(lambda steps: LiveBlocks(limits, config, steps))

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        job = super().make_job(request, arrival_s)
        return self.tell(job, block_key(job), arrival_s)


class FollowedRadix(Followed, RadixEngine):
    def __init__(self, workload: Workload, cost: Any, config: PeekConfig = CONFIG) -> None:
        super().__init__(workload, None, cost)
        limits = limits_of(workload)
        self.shadow = Shadow(lambda steps: LiveRadix(limits, config, steps, TOKEN_S))

    def make_job(self, request: SimRequest, arrival_s: float) -> Job:
        return self.tell(super().make_job(request, arrival_s), request.key, arrival_s)


def block_key(job: Job) -> bytes:
    """The symbols of a job of a `BlockEngine`, as a shadow takes them."""
    return b"".join(symbol.to_bytes(4, "little") for symbol in job.symbols)


def in_blocks(workload: Workload) -> Workload:
    """The same requests with a symbol for each whole block, equal where all before it is equal."""
    names: dict[bytes, int] = {}
    made = []
    for request in workload.requests:
        ends = range(4 * BLOCK, len(request.key) + 1, 4 * BLOCK)
        symbols = [names.setdefault(request.key[:end], len(names)) for end in ends]
        key = b"".join(symbol.to_bytes(4, "little") for symbol in symbols)
        made.append(replace(request, key=key))
    return replace(workload, requests=tuple(made), unit_tokens=BLOCK)


def conversations(answer_at: Callable[[str, int], int], sessions: int = 40, rounds: int = 4) -> Workload:
    """Each round repeats the one before with its answer; there is room and time for all of them.

    `answer_at(request id, position)`: the token that the engine's model says there.
    """
    made = []
    for session in range(sessions):
        text = unique_tokens(f"session {session}", session, 200)
        before = None
        for turn in range(rounds):
            name = f"s{session}-{turn}"
            tokens = len(text) // 4
            made.append(
                SimRequest(
                    name, 0.4 * session, text, tokens, 100, after=before, think_s=2.0 if before else 0.0
                )
            )
            said = [answer_at(name, tokens + place) for place in range(100)]
            text += pack_tokens(said) + unique_tokens(f"turn {name}", 10_000 + len(made), 20)
            before = name
    made.sort(key=attrgetter("arrival_s"))
    return Workload(
        name="conversations", load="", seed=0, requests=tuple(made), warmup=0, max_running=64,
        arena_tokens=3000 * BLOCK,
    )  # fmt: skip


Played = Callable[[Workload, str], tuple[float, Any]]
"""Plays a workload on a real engine in a mode: the hit, and the account of the shadow if there is one."""

POINTS = 2.0
"""Per cent of the prompt tokens by which a gain may differ from the one foretold."""


def check_foretold_comes_true(played: Played, seed: int) -> None:
    workload = grouped(seed)
    stock, account = played(workload, "shadow")
    planned, none = played(workload, "on")
    ours, theirs = foretold(account)
    assert none is None
    assert theirs == pytest.approx(stock, abs=1e-9)
    assert account.requests == len(workload.requests)
    assert ours - theirs == pytest.approx(planned - stock, abs=POINTS)
    assert planned - stock > 15, "there is something to foretell"


def check_nothing_is_foretold_where_nothing_is_shared(played: Played) -> None:
    stock, account = played(grouped(1, alone=True), "shadow")
    assert (stock, *foretold(account)) == (0.0, 0.0, 0.0)


def check_answers_are_found_where_they_are_repeated(played: Played, token_at: Callable[..., int]) -> None:
    """Conversations in an engine with room: the order does not matter, and so nothing is gained or lost."""
    stock, account = played(conversations(token_at), "shadow")
    ours, theirs = foretold(account)
    assert account.requests == 160
    assert theirs == pytest.approx(stock, abs=1e-9)
    assert stock > 60
    assert ours == pytest.approx(theirs, abs=0.5)
