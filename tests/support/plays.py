"""Random plays for an engine's real scheduler: arrivals, aborts, and how tight the cache is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from support.stepping import MAX_STEPS, STEP_S, Steps, expected_tokens


@dataclass(frozen=True)
class Job:
    """One request of a play.

    Attributes:
        space: its LoRA adapter or extra key.
        abort: steps after its arrival.
        skip: whether it does not read the cache, where an engine has that.
        alone: whether it begins with a token of its own.
    """

    arrival: int
    prefix: int
    prefix_tokens: int
    tail: int
    max_tokens: int
    salt: str | None = None
    space: str | None = None
    abort: int | None = None
    skip: bool = False
    priority: int = 0
    alone: bool = False

    @property
    def prompt(self) -> int:
        return self.prefix_tokens + self.tail

    def tokens(self, number: int) -> list[int]:
        whole = [10 + self.prefix] * self.prefix_tokens + [100 + number % 800] * self.tail
        return [1000 + number, *whole[1:]] if self.alone else whole

    def arrival_s(self, number: int) -> float:
        """Above 0, which a request that never entered a queue has."""
        return (self.arrival + 1) * STEP_S + number * 1e-6


@dataclass(frozen=True)
class Play:
    """Jobs, and an engine for them with a cache in units of so many tokens; engines use what they have of it.

    Attributes:
        slack: units of the cache that nobody needs.
        budget, chunk: most tokens of a step, and of one prompt in it.
        ratio: the share of the tokens still to be generated that an admission reserves.
        resets: steps before which the cache is emptied.
    """

    jobs: Sequence[Job]
    slack: int
    seats: int
    budget: int
    unit: int
    chunk: int | None = None
    ratio: float = 0.3
    priority: bool = False
    max_loras: int | None = None
    resets: Sequence[int] = ()

    @property
    def units(self) -> int:
        """The largest request fits, with the margin that an admission wants, and the slack."""
        most = max(job.prompt + job.max_tokens for job in self.jobs)
        return most // self.unit + 4 + self.slack


def interleaved(unit: int) -> Play:
    """Two prefixes that take turns, one seat: any order by prefix changes it."""
    slack = 0 if unit > 1 else 16
    return Play([Job(0, i % 2, 96, 8, 4) for i in range(8)], slack, seats=1, budget=16384, unit=unit)


@st.composite
def jobs(draw: st.DrawFn, aborts: bool = True, plain: bool = False, talkative: bool = False) -> Job:
    """`talkative` answers are longer than their prompts: several of them outgrow a cache that let them in."""
    prefix_tokens = draw(st.sampled_from([0, 16, 32] if talkative else [0, 16, 32, 48, 64, 96, 128]))
    return Job(
        arrival=draw(st.integers(0, 8 if talkative else 25)),
        prefix=draw(st.integers(0, 3)),
        prefix_tokens=prefix_tokens,
        tail=draw(st.integers(0 if prefix_tokens else 1, 8 if talkative else 40)),
        max_tokens=draw(st.integers(30, 80) if talkative else st.integers(1, 30)),
        salt=None if plain else draw(st.sampled_from([None, None, "s", "t"])),
        space=None if plain else draw(st.sampled_from([None, None, "en", "de"])),
        abort=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20))) if aborts else None,
        skip=not plain and draw(st.integers(0, 7)) == 0,
        priority=draw(st.integers(0, 3)),
    )


@st.composite
def plays(
    draw: st.DrawFn,
    units: tuple[int, ...],
    aborts: bool = True,
    plain: bool = False,
    priority: bool = False,
    budgets: tuple[int, ...] = (64, 256, 16384),
    talk: bool = True,
) -> Play:
    unit, talkative = draw(st.sampled_from(units)), talk and draw(st.booleans())
    return Play(
        jobs=draw(st.lists(jobs(aborts, plain, talkative), min_size=6 if talkative else 2, max_size=24)),
        slack=draw(st.sampled_from([0, 1, 3, 8] if unit > 1 else [0, 16, 48, 128, 320])),
        seats=draw(st.sampled_from([4, 8] if talkative else [1, 2, 4, 8])),
        budget=draw(st.sampled_from(budgets)),
        unit=unit,
        chunk=draw(st.sampled_from([None, None, max(32, unit)])),
        ratio=draw(st.sampled_from([0.05, 0.1] if talkative else [0.1, 0.3, 0.7, 1.0])),
        priority=priority and draw(st.booleans()),
        max_loras=None if plain else draw(st.sampled_from([None, None, 1])),
        resets=[] if plain else draw(st.lists(st.integers(0, 40), max_size=2)),
    )


def play_out(play: Play, stepper: Steps) -> None:
    """Play it to the end; everybody gets what was foretold, and nothing is left behind."""
    arrivals = deque(sorted(enumerate(play.jobs), key=lambda item: (item[1].arrival, item[0])))
    aborts = {f"r{i}": job.arrival + job.abort for i, job in enumerate(play.jobs) if job.abort is not None}
    while arrivals or not stepper.idle:
        assert stepper.at < MAX_STEPS, f"nothing ends: {stepper.records}"
        while arrivals and arrivals[0][1].arrival <= stepper.at:
            number, job = arrivals.popleft()
            stepper.add(stepper.request_of(job, f"r{number}", number, play))
        for rid in [rid for rid, due in aborts.items() if due <= stepper.at]:
            del aborts[rid]
            stepper.abort(rid)
        if stepper.at in play.resets:
            stepper.reset()
        stepper.decisions.append(stepper.essence(stepper.step()))
        stepper.check()
    for number, job in enumerate(play.jobs):
        record = stepper.records[f"r{number}"]
        foretold = expected_tokens(f"r{number}", job.prompt, job.max_tokens)
        assert record.finished != record.aborted, number
        assert record.tokens == (foretold if record.finished else foretold[: len(record.tokens)]), number
    stepper.check_nothing_is_left()
