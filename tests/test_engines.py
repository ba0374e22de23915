"""Both engine kinds on random small workloads, looked at after every step, and on small cases by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parent.parent))  # behind everything, as in test_evaluation_pages

from bench.tiered import Tier, TieredEngine
from peek.config import PeekConfig
from peek.simulation.cost import CostModel
from peek.simulation.engines import (
    BlockEngine,
    Job,
    RadixEngine,
    SimEngine,
    StepWork,
)
from peek.simulation.simulate import make_planner
from peek.simulation.workload import SimRequest, Workload, pack_tokens, shared_symbols
from peek.trie.keys import unpack

KINDS = ["radix", "blocks"]
LABELS = [None, "fcfs+pe", "lpm+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru", "clpm+gm+dl+pe", "peek"]
both_kinds = pytest.mark.parametrize("kind", KINDS)


# -- engines that look at themselves after every step --------------------------------------------------


class Watched(SimEngine):
    """Checks what both kinds must keep, and remembers which job was admitted in which step."""

    admissions: tuple[tuple[int, Job], ...] = ()

    def step(self) -> StepWork:
        assert self.steps < 20_000, "does not end"
        before = {job.request_id: job.computed for job in self.running}
        work = super().step()
        fresh = [job for job in self.running if job.request_id not in before]
        self.admissions += tuple((self.steps, job) for job in fresh)
        for job in fresh:
            before[job.request_id] = job.total_tokens - job.last_uncached
        self.check_jobs()
        assert len({*work.jobs} & {*self.running}) == len(work.jobs)
        assert work.computed_tokens == sum(job.computed - before[job.request_id] for job in work.jobs)
        self.check_memory(work)
        return work

    def check_jobs(self) -> None:
        preempted: list[Job] = getattr(self, "preempted", [])
        places = [job.request_id for job in [*self.waiting, *self.running, *preempted]]
        assert sorted(places) == sorted(job.request_id for job in self.jobs.values() if job.finished_s < 0)
        assert len(self.running) <= self.workload.max_running
        assert len(places) <= (self.workload.client_concurrency or len(places))
        assert all(0 < job.computed <= job.total_tokens for job in self.running)


class WatchedBlocks(Watched, BlockEngine):
    def check_memory(self, work: StepWork) -> None:
        self.cache.check()
        assert work.computed_tokens <= self.max_batched_tokens
        holds: dict[int, int] = {}
        for job in self.running:
            assert len(job.blocks) == -(-job.computed // self.block_tokens)
            names = [*job.symbols, -1 - int(job.request_id)]  # no symbol yet: a name of its own
            for block, name in zip(job.blocks, names, strict=False):
                assert holds.setdefault(block, name) == name, "shared, with other contents"
        assert len(holds) == self.cache.n_blocks - self.cache.free_blocks
        now_admitted = [job for step, job in self.admissions if step == self.steps]
        assert not self.preempted or all(job.preemptions for job in now_admitted), "overtaken"


class WatchedRadix(Watched, RadixEngine):
    def check_memory(self, work: StepWork) -> None:
        self.cache.check()
        prefill = work.attention_pairs > 0
        assert work.computed_tokens <= (self.chunk_tokens if prefill else len(self.running))
        assert self.private_tokens + self.cache.cached_tokens <= self.workload.arena_tokens
        assert self.private_tokens == sum(job.private for job in self.running)
        for job in self.running:
            depth = int(job.node.depth)
            assert depth * self.unit + job.private == job.computed
            segment = memoryview(job.key).cast("i")[:depth]
            assert self.cache.advance(self.cache.root(job.request.namespace), segment, 0)[0] == depth


def engine_for(workload: Workload, kind: str, label: str | None = None, chunk: int = 8192) -> Watched:
    config = PeekConfig.from_label(label or "fcfs+lru")
    planner = None if label is None else make_planner(config, kind, None)
    if kind == "blocks":
        return WatchedBlocks(workload, planner, CostModel(), max_batched_tokens=chunk)
    engine = WatchedRadix(workload, planner, CostModel())
    engine.chunk_tokens = chunk
    return engine


def assert_empty(engine: Watched) -> None:
    engine.cache.check()
    if isinstance(engine, BlockEngine):
        assert engine.cache.free_blocks == engine.cache.n_blocks
    else:
        assert engine.private_tokens == engine.cache.locked_tokens == 0
        assert 0 <= engine.cache.cached_tokens <= engine.workload.arena_tokens


# -- random workloads ----------------------------------------------------------------------------------

GAPS_S = st.sampled_from([0.0, 0.02, 0.05, 0.3, 5.0])
PROMPTS = st.tuples(*[st.integers(0, most) for most in (4, 2, 20, 15)])
"""Group, question, its length, tokens behind the last full unit."""
ROWS = st.tuples(PROMPTS, st.integers(1, 12) | st.integers(30, 90), GAPS_S)
"""Prompt, output tokens, seconds after the request before."""


def heavy(requests: Sequence[SimRequest], seats: int, arena: int, unit: int = 1) -> Workload:
    return Workload(
        name="by hand", load="heavy", seed=0, requests=requests, warmup=0, max_running=seats,
        arena_tokens=arena, unit_tokens=unit,
    )  # fmt: skip


@st.composite
def workloads(draw: st.DrawFn, roomy: bool = False) -> Workload:
    """Prompts of a group start alike; the arena has room for the largest request alone, or for all."""
    unit = draw(st.sampled_from([1, 16]))
    prefixes = draw(st.lists(st.integers(0, 90 // unit), min_size=5, max_size=5))
    most = draw(st.sampled_from([5, 25]))
    requests, at_s = list[SimRequest](), 0.0
    for prompt, output, gap_s in draw(st.lists(ROWS, min_size=most // 5, max_size=most)):
        group, question, length, tail = prompt
        at_s += gap_s
        key = pack_tokens([group + 1] * prefixes[group] + [100 + question] * (length * 4 // (unit + 3)))
        tokens = max(1, len(key) // 4 * unit + tail % unit)
        requests.append(SimRequest(str(len(requests)), at_s, key, tokens, output, "lora" * (question // 2)))
    sizes = [-(-(request.num_tokens + request.output_tokens + 1) // 16) * 16 for request in requests]
    arena = 2 * sum(sizes) if roomy else max(sizes) + draw(st.sampled_from([0, 5, 40, 160, 400, 1000]))
    workload = heavy(requests, draw(st.integers(1, 6)), arena, unit)
    client = draw(st.sampled_from([None, None, closed_loop, sessions]))
    return workload if client is None else client(draw, workload)


def closed_loop(draw: st.DrawFn, workload: Workload) -> Workload:
    ready = [replace(request, arrival_s=0.0) for request in workload.requests]
    return replace(workload, requests=ready, client_concurrency=draw(st.integers(1, 4)))


def sessions(draw: st.DrawFn, workload: Workload) -> Workload:
    """Many a request follows an earlier one."""
    chained = list(workload.requests)
    for number in range(1, len(chained)):
        after = draw(st.none() | st.integers(0, number - 1).map(str))
        chained[number] = replace(chained[number], after=after, think_s=draw(GAPS_S))
    return replace(workload, requests=chained)


def test_the_published_hook_looks_at_four_blocks_for_each_who_waits() -> None:
    requests = [SimRequest(str(n), 0.0, pack_tokens([n] * 32), 32, 1) for n in range(2)]
    workload = heavy(requests, seats=1, arena=160)
    for needed, victim in ((7, 7), (8, 0)):
        engine = engine_for(workload, "blocks", "fcfs+pe")
        engine.waiting.extend(requests)
        blocks = engine.cache.take(10)
        for block in blocks:
            engine.cache.name(block, 1000 + block)
        engine.cache.release(blocks[::-1])
        demanded = dict.fromkeys([1000 + block for block in blocks[:needed]], 5.0)
        engine.eviction_score = lambda demanded=demanded: lambda symbol: demanded.get(symbol, 0.0)
        assert engine._take(1) == [blocks[victim]]


@pytest.mark.parametrize(
    ("policy", "waiting", "refreshed"),
    [
        ("lpm", 128, "every cycle"),
        ("lpm", 129, "each 32nd"),
        ("hrrn", 129, "every cycle"),
        ("hrrn-limit+lru", 128, "every cycle"),
        ("hrrn-limit+lru", 129, "each 32nd"),
        ("fcfs", 1, "each 32nd"),
        ("peek", 1, "never"),
    ],
)
def test_own_policies_of_sglang_refresh_what_is_waited_for(policy: str, waiting: int, refreshed: str) -> None:
    old, new = pack_tokens([1] * 8), pack_tokens([2] * 8)
    requests = [SimRequest(str(n), 0.0, old, 9, 1) for n in range(waiting)]
    engine: Any = engine_for(heavy(requests, seats=1, arena=160), "radix", policy)
    for request in requests:
        engine.accept(request, 0.0)
    for cycle in range(66):
        engine.cache.insert(old, "")
        engine.cache.insert(new, "")
        engine.plan()
        engine.cache.evict(8)
        held = [engine.cache.match(key, "", 8).depth for key in (old, new)]
        refreshes = refreshed == "every cycle" or (refreshed == "each 32nd" and cycle % 32 == 0)
        assert held == ([8, 0] if refreshes else [0, 8])


def test_a_refresh_leaves_the_head_of_the_queue_longest() -> None:
    keys = [pack_tokens([n] * 8) for n in range(130)]
    requests = [SimRequest(str(n), 0.0, key, 9, 1) for n, key in enumerate(keys)]
    engine: Any = engine_for(heavy(requests, seats=1, arena=2000), "radix")
    for key in keys:
        engine.cache.insert(key, "")
    engine.waiting.extend(map(engine.make_job, requests, [0.0] * 130))
    engine.plan()
    gone: list[int] = []
    root = engine.cache.root("")
    for _ in range(130):
        engine.cache.evict(8)
        gone += [
            n
            for n, key in enumerate(keys)
            if n not in gone and engine.cache.advance(root, memoryview(key).cast("i"), 0)[0] == 0
        ]
    assert gone == [128, 129, *range(127, -1, -1)]


def reusable(engine: Watched, position: int) -> int:
    """Prompt tokens that requests admitted before could have left in the cache, by comparing all."""
    step, job = engine.admissions[position]
    earlier = [
        other.request.key
        for other_step, other in engine.admissions[:position]
        if other.request.namespace == job.request.namespace
        and (isinstance(engine, BlockEngine) or other_step < step)
    ]
    shared = max((shared_symbols(key, job.request.key) for key in earlier), default=0)
    return min(shared * engine.workload.unit_tokens, job.prompt_tokens - 1)


@both_kinds
@given(workload=workloads(), label=st.sampled_from(LABELS), chunk=st.sampled_from([16, 50, 8192]))
def test_what_holds_for_every_run(kind: str, workload: Workload, label: str | None, chunk: int) -> None:
    engine = engine_for(workload, kind, label, chunk)
    jobs = engine.run()
    assert sorted(job.request_id for job in jobs) == sorted(r.request_id for r in workload.requests)
    for job in jobs:
        assert job.generated == job.request.output_tokens
        assert job.arrival_s <= job.admitted_s < job.first_token_s <= job.finished_s
        assert job.preemptions or job.prefill_tokens == job.prompt_tokens - job.cached_at_admission
        check_arrival(engine, job)
    if workload.client_concurrency is not None:
        assert list(engine.jobs) == [request.request_id for request in workload.requests]
    first_admissions = {job: position for position, (_, job) in reversed([*enumerate(engine.admissions)])}
    for job, position in first_admissions.items():
        assert 0 <= job.cached_at_admission <= reusable(engine, position)
    assert_empty(engine)
    if engine.planner is not None:
        engine.planner.tree.check()
        assert len(engine.planner) == 0
        expectations = getattr(engine.planner._calls.policy, "expectations", None)
        assert expectations is None or expectations.running == 0, "an answer was told before its admission"


def check_arrival(engine: Watched, job: Job) -> None:
    """Not before its time, not before the request it follows, not before the client has a place."""
    earliest_s = job.request.arrival_s
    if job.request.after is not None:
        earliest_s = max(earliest_s, engine.jobs[job.request.after].finished_s + job.request.think_s)
    if job.arrival_s != earliest_s:
        assert job.arrival_s > earliest_s == 0.0
        assert job.arrival_s in [other.finished_s for other in engine.jobs.values()]


class WatchedTier(WatchedBlocks, TieredEngine):
    def check_memory(self, work: StepWork) -> None:
        super().check_memory(work)
        assert self.tier is not None
        below = self.tier.names()
        assert len(below) <= self.tier.n_blocks
        assert not any(map(self.cache.holds, below))


class StepsSeen(CostModel):
    """Adds up what it has said."""

    said_s = 0.0

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        found = super().step_s(computed_tokens, attention_pairs, kv_tokens)
        self.said_s += found
        return found


@given(
    workload=workloads(),
    label=st.sampled_from(LABELS),
    chunk=st.sampled_from([50, 8192]),
    tokens=st.sampled_from([0, 40, 400, 10**6]),
)
def test_with_a_tier(workload: Workload, label: str | None, chunk: int, tokens: int) -> None:
    """Nothing is computed that was loaded; loading takes its time; a tier with room for all loses nothing."""
    config = PeekConfig.from_label(label or "fcfs+lru")
    planner = None if label is None else make_planner(config, "blocks", None)
    at_once = replace(
        workload,
        requests=[replace(each, arrival_s=0.0, think_s=0.0) for each in workload.requests],
        client_concurrency=None,
    )
    times = StepsSeen()
    engine = WatchedTier(
        at_once, planner, times, max_batched_tokens=chunk, tier=Tier(tokens, tokens_per_s=1000.0)
    )
    jobs = engine.run()
    whole = not any(job.preemptions for job in jobs)
    for job in jobs:
        found = job.cached_at_admission + engine.loaded[job.request_id]
        assert job.preemptions or job.prefill_tokens == job.prompt_tokens - found
    for position, (_, job) in enumerate(engine.admissions):
        found = job.cached_at_admission + engine.loaded[job.request_id]
        most = reusable(engine, position) // engine.block_tokens * engine.block_tokens
        assert job.preemptions or found <= most
        assert tokens < 10**6 or chunk < 8192 or not whole or found == most
    if whole:  # no idle time, and each loaded once
        loaded = sum(engine.loaded.values())
        assert engine.now == pytest.approx(times.said_s + loaded / 1000.0)
    assert_empty(engine)


@both_kinds
@given(workload=workloads(roomy=True), label=st.sampled_from(LABELS))
def test_in_a_roomy_arena_all_that_can_is_hit(kind: str, label: str | None, workload: Workload) -> None:
    engine = engine_for(workload, kind, label)
    jobs = engine.run()
    unit = engine.block_tokens if isinstance(engine, BlockEngine) else workload.unit_tokens
    assert not any(job.preemptions for job in jobs)
    for position, (_, job) in enumerate(engine.admissions):
        assert job.cached_at_admission == reusable(engine, position) // unit * unit


def fates(jobs: list[Job]) -> list[tuple[str, float, float, float, int, int]]:
    figures = "request_id admitted_s first_token_s finished_s cached_at_admission preemptions"
    return list(map(attrgetter(*figures.split()), jobs))


@both_kinds
@given(workload=workloads(), label=st.sampled_from(LABELS))
def test_equal_arguments_give_equal_runs(kind: str, label: str | None, workload: Workload) -> None:
    assert fates(engine_for(workload, kind, label).run()) == fates(engine_for(workload, kind, label).run())


@both_kinds
@given(workload=workloads())
def test_the_stock_engine_admits_in_order_of_arrival(kind: str, workload: Workload) -> None:
    engine = engine_for(workload, kind)
    jobs = engine.run()
    first_admissions = list(dict.fromkeys(job.request_id for _, job in engine.admissions))
    assert first_admissions == list(engine.jobs)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    # Retracted requests of the stock radix engine queue at the end, a planner knows when they arrived.
    if kind == "blocks" or not any(job.preemptions for job in jobs):
        assert fates(jobs) == fates(engine_for(workload, kind, "fcfs+lru").run())


# -- small cases by hand -------------------------------------------------------------------------------


def run(
    kind: str, *rows: tuple[list[int], int, float], arena: int, seats: int = 8, chunk: int = 8192,
    label: str | None = None,
) -> Watched:  # fmt: skip
    """A finished engine, stock without a label; rows are prompt symbols, output tokens and arrival."""
    requests = [
        SimRequest(str(number), at_s, pack_tokens(symbols), len(symbols), output)
        for number, (symbols, output, at_s) in enumerate(rows)
    ]
    engine = engine_for(heavy(requests, seats, arena), kind, label, chunk)
    engine.run()
    assert_empty(engine)
    return engine


def hits(engine: Watched) -> list[int]:
    return [job.cached_at_admission for job in engine.jobs.values()]


def admitted(engine: Watched) -> list[int]:
    return [int(job.request_id) for _, job in engine.admissions]


@pytest.mark.parametrize(("kind", "expected"), [("blocks", [0, 32, 32]), ("radix", [0, 0, 47])])
def test_when_equal_prompts_hit(kind: str, expected: list[int]) -> None:
    """Blocks show when scheduled, so the neighbour in the batch hits; a tree when the prefill ends."""
    prompt = [7] * 48
    engine = run(kind, (prompt, 3, 0.0), (prompt, 3, 0.0), (prompt, 3, 0.1), arena=1000)
    assert [step for step, _ in engine.admissions][:2] == [0, 0]
    assert hits(engine) == expected


@pytest.mark.parametrize(("output", "steps"), [(18, [0, 0]), (20, [0, 30])])
def test_a_batch_leaves_room_for_its_answers(output: int, steps: list[int]) -> None:
    engine = run("radix", ([1] * 30, 30, 0.0), ([2] * 20, output, 0.0), arena=100)
    assert [step for step, _ in engine.admissions] == steps


def test_a_preempted_request_goes_first_again() -> None:
    """Request 1 runs out of blocks; request 2 would fit at once and waits for a seat behind it."""
    engine = run("blocks", ([1] * 48, 60, 0.0), ([2] * 48, 60, 0.0), ([3] * 4, 1, 0.1), arena=160, seats=2)
    assert admitted(engine) == [0, 1, 1, 2]
    assert [job.preemptions for job in engine.jobs.values()] == [0, 1, 0]


def test_the_youngest_is_preempted_and_its_recomputation_is_no_hit() -> None:
    engine = run("blocks", *(([name] * 40, 100, 0.0) for name in (1, 2, 3)), arena=245)
    assert [job.preemptions for job in engine.jobs.values()] == [0, 1, 2]
    assert admitted(engine) == [0, 1, 2, 1, 2, 2]
    assert engine.jobs["2"].last_uncached == 1, "its own blocks were still there"
    assert hits(engine) == [0, 0, 0]


def test_names_of_answers_do_not_repeat() -> None:
    engine: Any = run("radix", ([1] * 10, 20, 0.0), arena=1000)
    names = unpack(b"".join(engine.fresh_symbols(count) for count in (5, 1, 3)))
    assert len(set(names)) == 9
    assert max(names) < 0


def test_a_retracted_request_computes_its_answer_again_at_the_end_of_the_queue() -> None:
    """The third long answer was not foreseen; the one with the fewest tokens goes, behind request 3."""
    late = ([4] * 10, 5, 0.2)
    engine = run("radix", *(([n] * 10, 100, 0.1 * (n // 3)) for n in (1, 2, 3)), late, arena=300, seats=3)
    assert [job.preemptions for job in engine.jobs.values()] == [0, 0, 1, 0]
    assert admitted(engine) == [0, 1, 2, 3, 2]
    assert engine.jobs["2"].prefill_tokens == 10 + engine.jobs["2"].last_uncached > 60
    assert hits(engine) == [0, 0, 0, 0]


def test_a_continued_chunk_counts_against_the_room() -> None:
    """The arena is checked in every step: 64 tokens and 24 must not run side by side in 80."""
    run("radix", ([1] * 64, 2, 0.0), ([2] * 24, 1, 0.0), arena=80, chunk=50)


@pytest.mark.parametrize(("label", "steps"), [("lpm+lru", [0, 3, 3]), ("spf+lru", [0, 1, 1])])
def test_under_shortest_first_a_chunk_leaves_room_for_shorter_prompts(label: str, steps: list[int]) -> None:
    """The numbers of `test_shortest_first_leaves_room_beside_a_chunk` on the real SGLang."""
    rows = ([1] * 200, 2, 0.0), ([2] * 30, 2, 0.001), ([3] * 28, 2, 0.001)
    engine = run("radix", *rows, arena=1000, chunk=64, label=label)
    assert sorted(step for step, _ in engine.admissions) == steps


@pytest.mark.parametrize(("output", "retracted"), [(4, 0), (5, 1)])
def test_a_long_prompt_waits_while_others_use_its_memory(output: int, retracted: int) -> None:
    """18 tokens go in beside the chunks of 47, and 64 cannot hold both: the long one waits, or goes back."""
    beside = ([3] * 18, output, 0.17)
    engine = run(
        "radix", ([2], 1, 0.05), ([3], 1, 0.1), ([3] * 18, 1, 0.1), ([1] * 47, 3, 0.15), beside,
        arena=64, seats=2, chunk=16, label="spf+lru",
    )  # fmt: skip
    long, short = engine.jobs["3"], engine.jobs["4"]
    assert long.admitted_s < short.admitted_s < short.finished_s < long.first_token_s
    assert [job.preemptions for job in engine.jobs.values()] == [0, 0, 0, retracted, 0]
