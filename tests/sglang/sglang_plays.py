"""Random plays for SGLang's real cache and policy: who arrives when, who is aborted, how tight a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from sglang_lab import World, expected_tokens, leaked, make_request, make_world
from sglang_records import Admission, Record
from sglang_stepper import STEP_S, Stepper
from sglang_tree import locked

MAX_STEPS = 4000


@dataclass(frozen=True)
class Job:
    """One request of a play."""

    arrival: int
    prefix: int
    prefix_tokens: int
    tail: int
    max_tokens: int
    namespace: str | None
    salt: str | None
    priority: int
    abort: int | None

    @property
    def prompt(self) -> int:
        return self.prefix_tokens + self.tail

    def tokens(self, number: int) -> list[int]:
        return [10 + self.prefix] * self.prefix_tokens + [100 + number % 800] * self.tail

    def request(self, rid: str, number: int, with_priority: bool) -> Any:
        return make_request(
            rid,
            self.tokens(number),
            self.max_tokens,
            extra_key=self.namespace,
            cache_salt=self.salt,
            priority=self.priority if with_priority else None,
            arrival=(self.arrival + 1) * STEP_S + number * 1e-6,
        )


@dataclass(frozen=True)
class Play:
    jobs: list[Job]
    slack: int
    max_running: int
    budget: int
    chunk: int | None
    ratio: float
    page_size: int = 1
    priority: bool = False

    @property
    def slots(self) -> int:
        """The largest request fits, with the margin that an admission wants and the slack."""
        most = max(job.prompt + job.max_tokens for job in self.jobs)
        return (most // self.page_size + 4 + self.slack) * self.page_size


INTERLEAVED = Play(
    [Job(0, i % 2, 96, 8, 4, None, None, 0, None) for i in range(8)],
    slack=16, max_running=1, budget=16384, chunk=None, ratio=0.3,
)  # fmt: skip
"""Two prefixes that take turns, one seat: any order by prefix changes it."""


@st.composite
def jobs(draw: st.DrawFn, aborts: bool = True, plain: bool = False, talkative: bool = False) -> Job:
    """`talkative` answers are longer than their prompts: several of them outgrow a pool that let them in."""
    prefix_tokens = draw(st.sampled_from([0, 16, 32] if talkative else [0, 16, 32, 48, 64, 96, 128]))
    return Job(
        arrival=draw(st.integers(0, 8 if talkative else 25)),
        prefix=draw(st.integers(0, 3)),
        prefix_tokens=prefix_tokens,
        tail=draw(st.integers(0 if prefix_tokens else 1, 8 if talkative else 40)),
        max_tokens=draw(st.integers(30, 80) if talkative else st.integers(1, 30)),
        namespace=None if plain else draw(st.sampled_from([None, None, "en"])),
        salt=None if plain else draw(st.sampled_from([None, None, None, "s"])),
        priority=draw(st.integers(0, 3)),
        abort=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20))) if aborts else None,
    )


@st.composite
def plays(
    draw: st.DrawFn,
    aborts: bool = True,
    plain: bool = False,
    page_sizes: tuple[int, ...] = (1, 64),
    priority: bool = False,
) -> Play:
    page_size = draw(st.sampled_from(page_sizes))
    talkative = draw(st.booleans())
    return Play(
        jobs=draw(st.lists(jobs(aborts, plain, talkative), min_size=6 if talkative else 2, max_size=24)),
        slack=draw(st.sampled_from([0, 1, 3, 8] if page_size > 1 else [0, 16, 48, 128, 320])),
        max_running=draw(st.sampled_from([4, 8] if talkative else [1, 2, 4, 8])),
        budget=draw(st.sampled_from([64, 256, 16384])),
        chunk=draw(st.sampled_from([None, None, max(32, page_size)])),
        ratio=draw(st.sampled_from([0.05, 0.1] if talkative else [0.1, 0.3, 0.7, 1.0])),
        page_size=page_size,
        priority=priority and draw(st.booleans()),
    )


@dataclass
class Outcome:
    """What a play led to."""

    stepper: Stepper
    attached: Any = None
    """What `attach` gave back."""
    steps: int = 0
    batches: list[list[str]] = field(default_factory=list)
    """Who was in each launched batch."""

    @property
    def world(self) -> World:
        return self.stepper.world

    @property
    def records(self) -> dict[str, Record]:
        return self.stepper.records

    @property
    def admissions(self) -> list[Admission]:
        return self.stepper.admissions

    @property
    def tokens(self) -> dict[str, list[int]]:
        return {rid: record.tokens for rid, record in self.records.items()}

    @property
    def retractions(self) -> int:
        return sum(record.retractions for record in self.records.values())


def perform(
    play: Play,
    attach: Callable[[Stepper], Any] | None = None,
    *,
    policy: str = "fcfs",
    core: str | None = None,
    overlap: bool = False,
    eviction: str = "lru",
    events: bool = False,
    each_step: Callable[[Stepper, Any], None] | None = None,
) -> Outcome:
    """Play it to the end.  `attach(stepper)` may wrap `stepper.policy` and the cache before the start.

    `each_step(stepper, batch)` is called before each step, with None, and after it.
    """
    world = make_world(
        play.slots,
        policy=policy,
        page_size=play.page_size,
        core=core,
        max_running=play.max_running,
        eviction=eviction,
        priority=play.priority,
        events=events,
    )
    stepper = Stepper(
        world,
        overlap=overlap,
        chunk=play.chunk,
        max_running=play.max_running,
        max_prefill_tokens=play.budget,
        ratio=play.ratio,
    )
    outcome = Outcome(stepper)
    if attach is not None:
        outcome.attached = attach(stepper)
    _run(play, outcome, each_step)
    return outcome


def _run(play: Play, outcome: Outcome, each_step: Callable[[Stepper, Any], None] | None) -> None:
    stepper = outcome.stepper
    arrivals = deque(sorted(enumerate(play.jobs), key=lambda item: (item[1].arrival, item[0])))
    aborts = {f"r{i}": job.arrival + job.abort for i, job in enumerate(play.jobs) if job.abort is not None}
    while arrivals or not stepper.idle:
        assert stepper.at < MAX_STEPS, f"nothing ends: {[r.rid for r in stepper.waiting_queue]} wait"
        while arrivals and arrivals[0][1].arrival <= stepper.at:
            number, job = arrivals.popleft()
            stepper.add(job.request(f"r{number}", number, play.priority))
        for rid in [rid for rid, due in aborts.items() if due <= stepper.at]:
            del aborts[rid]
            stepper.abort(rid)
        if each_step is not None:
            each_step(stepper, None)
        batch = stepper.step()
        outcome.batches.append([] if batch is None else [request.rid for request in batch.reqs])
        _nobody_is_lost(stepper)
        if each_step is not None:
            each_step(stepper, batch)
    outcome.steps = stepper.at


def _nobody_is_lost(stepper: Stepper) -> None:
    waiting = [request.rid for request in stepper.waiting_queue]
    assert len(waiting) == len(set(waiting)), "somebody waits twice"
    inside = [*stepper.running.reqs, *(stepper.last.reqs if stepper.last else [])]
    inside += [stepper.chunked] if stepper.chunked else []
    running = {request.rid for request in inside if not request.finished()}
    assert not running & set(waiting), "somebody waits and runs"
    open_ones = {rid for rid, record in stepper.records.items() if not (record.finished or record.aborted)}
    assert running | set(waiting) == open_ones, "somebody is in no list"


def check_outcome(play: Play, outcome: Outcome) -> None:
    """Everybody got what was foretold, and nothing is left behind."""
    for number, job in enumerate(play.jobs):
        rid = f"r{number}"
        record = outcome.records[rid]
        foretold = expected_tokens(rid, job.prompt, job.max_tokens)
        if record.aborted:
            assert record.tokens == foretold[: len(record.tokens)], rid
        else:
            assert record.finished, rid
            assert record.tokens == foretold, rid
    world = outcome.world
    assert leaked(world) == 0, "slots leaked"
    assert locked(world) == 0, "somebody still holds a part of the tree"
    assert len(world.pool.free_slots) == world.pool.size, "a row is still taken"
