"""Both engine kinds on random small workloads, looked at after every step, and on small cases by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.adapters.simulated.block_engine import BlockEngine
from peek.adapters.simulated.cost import CostModel
from peek.adapters.simulated.engine import Job, SimEngine, StepWork
from peek.adapters.simulated.radix_engine import RadixEngine
from peek.adapters.simulated.simulate import make_planner
from peek.adapters.simulated.workload import SimRequest, Workload, pack_tokens, shared_symbols
from peek.config import PeekConfig

KINDS = ["radix", "blocks"]
LABELS = [None, "fcfs+pe", "lpm+lru", "dfs-weight+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek"]
both_kinds = pytest.mark.parametrize("kind", KINDS)
every_label = pytest.mark.parametrize("label", LABELS)


# -- engines that look at themselves after every step --------------------------------------------------


class Watched(SimEngine):
    """Checks what both kinds must keep, and remembers who was admitted in which step."""

    admissions: list[tuple[int, Job]]

    def step(self) -> StepWork:
        assert self.steps < 20_000, "does not end"
        before = {job.request_id: job.computed for job in self.running}
        work = super().step()
        fresh = [job for job in self.running if job.request_id not in before]
        self.admissions = [*getattr(self, "admissions", []), *((self.steps, job) for job in fresh)]
        for job in fresh:
            before[job.request_id] = job.total_tokens - job.last_uncached
        self.check_jobs()
        assert len({job.request_id for job in work.jobs}) == len(work.jobs)
        assert all(job in self.running for job in work.jobs)
        assert work.computed_tokens == sum(job.computed - before[job.request_id] for job in work.jobs)
        self.check_memory(work)
        return work

    def complete(self, work: StepWork) -> None:
        super().complete(work)
        self.check_memory(work)

    def check_jobs(self) -> None:
        preempted: list[Job] = getattr(self, "preempted", [])
        places = [job.request_id for job in [*self.waiting, *self.running, *preempted]]
        assert sorted(places) == sorted(job.request_id for job in self.jobs.values() if job.finished_s < 0)
        assert len(self.running) <= self.workload.max_running
        assert len(places) <= (self.workload.client_concurrency or len(places))
        assert all(0 < job.computed <= job.total_tokens for job in self.running)

    def check_memory(self, work: StepWork) -> None:
        raise NotImplementedError


class WatchedBlocks(Watched, BlockEngine):
    def check_memory(self, work: StepWork) -> None:
        self.cache.check()
        assert work.computed_tokens <= self.max_batched_tokens
        holds: dict[int, list[int]] = {}
        for job in self.running:
            assert len(job.blocks) == -(-job.computed // self.block_tokens)
            for number, block in enumerate(job.blocks):
                known = job.symbols[: number + 1]  # shared blocks have equal contents
                assert holds.setdefault(block, known) == known
        assert len(holds) == self.cache.n_blocks - self.cache.free_blocks


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
    planner = None if label is None else make_planner(PeekConfig.from_label(label), kind, None)
    if kind == "blocks":
        return WatchedBlocks(workload, planner, CostModel(), max_batched_tokens=chunk)
    return WatchedRadix(workload, planner, CostModel(), chunk_tokens=chunk)


def assert_empty(engine: Watched) -> None:
    engine.cache.check()
    if isinstance(engine, BlockEngine):
        assert engine.cache.free_blocks == engine.cache.n_blocks
    else:
        assert engine.private_tokens == engine.cache.locked_tokens == 0
        assert 0 <= engine.cache.cached_tokens <= engine.workload.arena_tokens


# -- random workloads ----------------------------------------------------------------------------------

GAPS_S = st.sampled_from([0.0, 0.0, 0.02, 0.3, 5.0])
ROWS = st.tuples(
    st.integers(0, 4), st.integers(0, 2), st.integers(0, 20), st.integers(0, 15), st.integers(1, 40), GAPS_S
)  # group, question, its length, tokens behind the last full unit, output, gap


@st.composite
def workloads(draw: st.DrawFn, roomy: bool = False) -> Workload:
    """Prompts of a group start alike; the arena has room for the largest request alone, or for all."""
    unit = draw(st.sampled_from([1, 16]))
    prefixes = draw(st.lists(st.integers(0, 90 // unit), min_size=5, max_size=5))
    requests: list[SimRequest] = []
    at_s = 0.0
    for group, question, length, tail, output, gap_s in draw(st.lists(ROWS, min_size=1, max_size=25)):
        at_s += gap_s
        key = pack_tokens([group + 1] * prefixes[group] + [100 + question] * (length * 4 // (unit + 3)))
        tokens = max(1, len(key) // 4 * unit + tail % unit)
        requests.append(SimRequest(str(len(requests)), at_s, key, tokens, output, "lora" * (question // 2)))
    block = max(16, unit)
    sizes = [-(-(request.num_tokens + request.output_tokens + 1) // block) * block for request in requests]
    arena = 2 * sum(sizes) if roomy else max(sizes) + draw(st.sampled_from([0, 5, 40, 160, 1000]))
    return Workload(
        name="random", load="heavy", seed=0, requests=tuple(requests), warmup=0,
        max_running=draw(st.integers(1, 6)), arena_tokens=arena, unit_tokens=unit,
    )  # fmt: skip


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


@every_label
@both_kinds
@given(workload=workloads(), chunk=st.sampled_from([16, 50, 8192]))
def test_every_request_ends_and_nothing_leaks(
    kind: str, label: str | None, workload: Workload, chunk: int
) -> None:
    engine = engine_for(workload, kind, label, chunk)
    jobs = engine.run()
    assert sorted(job.request_id for job in jobs) == sorted(r.request_id for r in workload.requests)
    for job in jobs:
        assert job.generated == job.request.output_tokens
        assert job.request.arrival_s == job.arrival_s <= job.admitted_s < job.first_token_s <= job.finished_s
        if not job.preemptions:
            assert job.prefill_tokens == job.prompt_tokens - job.cached_at_admission
    assert_empty(engine)
    if engine.planner is not None:
        engine.planner.tree.check()


@both_kinds
@given(workload=workloads(), label=st.sampled_from(LABELS))
def test_a_hit_is_what_an_admitted_request_left(kind: str, label: str | None, workload: Workload) -> None:
    engine = engine_for(workload, kind, label)
    engine.run()
    admitted: set[str] = set()
    for position, (_, job) in enumerate(engine.admissions):
        if job.request_id not in admitted:
            assert 0 <= job.cached_at_admission <= reusable(engine, position)
        admitted.add(job.request_id)


@both_kinds
@given(workload=workloads(roomy=True), label=st.sampled_from(LABELS))
def test_in_a_roomy_arena_everything_reusable_is_hit(
    kind: str, label: str | None, workload: Workload
) -> None:
    engine = engine_for(workload, kind, label)
    jobs = engine.run()
    unit = engine.block_tokens if isinstance(engine, BlockEngine) else workload.unit_tokens
    assert not any(job.preemptions for job in jobs)
    for position, (_, job) in enumerate(engine.admissions):
        assert job.cached_at_admission == reusable(engine, position) // unit * unit


@both_kinds
@given(workload=workloads(), data=st.data())
def test_sessions_wait_for_their_answers(kind: str, workload: Workload, data: st.DataObject) -> None:
    requests = [workload.requests[0]]
    for number, request in enumerate(workload.requests[1:], start=1):
        before = data.draw(st.one_of(st.none(), st.integers(0, number - 1)))
        think_s = data.draw(GAPS_S)
        after = None if before is None else str(before)
        requests.append(replace(request, after=after, think_s=think_s))
    engine = engine_for(replace(workload, requests=tuple(requests)), kind, "peek")
    engine.run()
    for job in engine.jobs.values():
        if job.request.after is not None:
            end_s = engine.jobs[job.request.after].finished_s
            assert job.arrival_s == max(job.request.arrival_s, end_s + job.request.think_s)
    assert_empty(engine)


@both_kinds
@given(workload=workloads(), limit=st.integers(1, 4))
def test_a_client_has_so_many_requests_outstanding(kind: str, workload: Workload, limit: int) -> None:
    ready = tuple(replace(request, arrival_s=0.0) for request in workload.requests)
    engine = engine_for(replace(workload, requests=ready, client_concurrency=limit), kind, "peek")
    arrivals = [job.arrival_s for job in engine.run()]
    assert len(arrivals) == len(ready)
    assert arrivals == sorted(arrivals)
    assert arrivals[:limit] == [0.0] * len(arrivals[:limit])
    assert_empty(engine)


def fates(jobs: list[Job]) -> list[tuple[Any, ...]]:
    return [
        (
            job.request_id,
            job.admitted_s,
            job.first_token_s,
            job.finished_s,
            job.cached_at_admission,
            job.preemptions,
        )
        for job in jobs
    ]


@both_kinds
@given(workload=workloads(), label=st.sampled_from(LABELS))
def test_equal_arguments_give_equal_runs(kind: str, label: str | None, workload: Workload) -> None:
    assert fates(engine_for(workload, kind, label).run()) == fates(engine_for(workload, kind, label).run())
