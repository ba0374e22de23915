"""Is it worth it: a policy against what its engine offers by itself, with the spread over other arrivals.

Every stock setting of the engine and the policy run on the recorded requests and on resamples of their
arrivals.  For each figure the policy is held against the setting that is best *in that figure and that draw*,
so a gain that stands in all draws is one that no flag has.

Resampling: the requests keep their prompts and their order, so what waits together still shares what it
shared.  The gaps between arrivals are drawn anew, in runs of as many successive gaps as the square root of
their number, so bursts stay bursts (a circular block bootstrap).  The range of `draws` resamples holds a
further one with probability `(draws - 1) / (draws + 1)`: 0.9 for the 19 that are the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isqrt
from random import Random
from statistics import fmean
from typing import Any, Final

from peek.simulation.cost import CostModel
from peek.simulation.simulate import TARGETS, Target, simulate
from peek.simulation.workload import SimRequest, Workload

DRAWS: Final = 19
"""Resamples; the range of 19 holds a further one in 9 of 10 cases."""

SAME: Final = 0.03
"""Times and rates that differ by no more than this part are the same."""

SAME_POINTS: Final = 0.01
"""Shares that differ by no more than one point in a hundred are the same."""

OURS: Final = "peek"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and the orders that it offers by itself.

    Attributes:
        title: its name in a sentence.
        cache: the kind of its prefix cache, see `simulate`.
        stock: label of each setting -> what turns it on; the first is the default.
    """

    title: str
    cache: str
    stock: Mapping[str, str]


ENGINES: Final = {
    "vllm": Engine("vLLM", "blocks", {"fcfs+lru": ""}),
    "sglang": Engine(
        "SGLang",
        "radix",
        {
            "fcfs+lru": "",
            "lpm+lru": "--schedule-policy lpm",
            "dfs-weight+lru": "--schedule-policy dfs-weight",
            "hrrn+lru": "--schedule-policy hrrn",
            "spf+lru": "--schedule-policy shortest-prefill-first",
        },
    ),
}
"""vLLM's other policy, `priority`, and SGLang's `priority` and `routing-key` go by what clients send; `lof`
goes by what answers are allowed, and `random` by nothing.  They are not simulated."""


def engine_of(cache: str) -> Engine:
    """The engine with this kind of prefix cache."""
    return next(each for each in ENGINES.values() if each.cache == cache)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run by which policies are compared.

    Attributes:
        name: its place in a run, with dots; of `goodput` the number of the target.
        is_share: differences count in points; else as a part of the value before.
        more_is_better: or less.
    """

    name: str
    is_share: bool = False
    more_is_better: bool = False

    def value(self, run: Any) -> float:
        """The figure of a run."""
        for part in self.name.split("."):
            run = run[int(part)] if part.isdecimal() else run[part]
        return float(run)

    def gain(self, before: float, after: float) -> float:
        """How much better `after` is: a part of `before`, or for shares their difference."""
        better = after - before if self.more_is_better else before - after
        return better if self.is_share else better / max(before, 1e-9)

    @property
    def same(self) -> float:
        """Gains up to this are none."""
        return SAME_POINTS if self.is_share else SAME


FIGURES: Final = (
    Figure("ttft_s.mean"),
    Figure("ttft_s.p99"),
    Figure("e2e_s.mean"),
    Figure("goodput.0.share", is_share=True, more_is_better=True),
    Figure("goodput.1.share", is_share=True, more_is_better=True),
    Figure("throughput_rps", more_is_better=True),
    Figure("cache_hit", is_share=True, more_is_better=True),
)


JOB: Final = Figure("job_s.mean")
"""Where requests are turns of sessions."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a policy changes in one figure.

    Attributes:
        figure: which.
        against: the setting that is best in it on the recorded arrivals.
        before, after: that setting's and the policy's value there.
        gain: see `Figure.gain`.
        low, high: range of the gain over all draws, in each against the setting that is best in it.
    """

    figure: Figure
    against: str
    before: float
    after: float
    gain: float
    low: float
    high: float

    @property
    def is_gain(self) -> bool:
        """Better in every draw, and by enough to matter."""
        return self.gain > self.figure.same and self.low > 0.0

    @property
    def is_loss(self) -> bool:
        """Worse in every draw, and by enough to matter."""
        return self.gain < -self.figure.same and self.high < 0.0


Runs = Mapping[str, Any]
"""Label of a policy -> its run."""


def changes(draws: Sequence[Runs], ours: str, rivals: Sequence[str]) -> list[Change]:
    """Compare a policy with the best of others, figure by figure.

    Args:
        draws: of each draw the runs by label; the first is the recorded traffic.
        ours: the policy.
        rivals: labels of the others; of those as good as each other the first counts.
    """
    found = []
    for figure in FIGURES if "job_s" not in draws[0][ours] else (*FIGURES, JOB):
        pick = max if figure.more_is_better else min
        values = [{label: figure.value(runs[label]) for label in (*rivals, ours)} for runs in draws]
        gains = [figure.gain(pick(each[label] for label in rivals), each[ours]) for each in values]
        first = values[0]
        against = pick(rivals, key=first.__getitem__)
        found.append(Change(figure, against, first[against], first[ours], gains[0], min(gains), max(gains)))
    return found


@dataclass(frozen=True)
class Answer:
    """All that is known after the runs; what is said, shown and written comes from here.

    Attributes:
        engine: whose settings were tried.
        workload: the recorded requests.
        draws: of each draw the runs by label; the first is the recorded traffic.
        best: the first stock setting whose mean time to first token, over all draws, is as short as any.
        stock: what it changes beside the default.
        ours: what `peek` changes beside the best of all stock settings, figure by figure.
    """

    engine: Engine
    workload: Workload
    draws: Sequence[Runs]
    best: str
    stock: list[Change]
    ours: list[Change]

    @property
    def default(self) -> str:
        """The label of the engine's default."""
        return next(iter(self.engine.stock))

    @property
    def advised(self) -> str:
        """The stock setting to turn on; the default where none is better beyond the spread."""
        mean = self.stock[0]
        return self.best if self.best != self.default and mean.is_gain else self.default

    @property
    def gains(self) -> list[Change]:
        """What `peek` gains over every stock setting."""
        return [each for each in self.ours if each.is_gain]

    @property
    def losses(self) -> list[Change]:
        """What `peek` loses to some stock setting."""
        return [each for each in self.ours if each.is_loss]

    @property
    def verdict(self) -> str:
        """gain, mixed, nothing or loss.

        The hit and the share of a target alone are no gain: they matter by what they do to times.
        """
        timed = [each for each in self.gains if each.figure.name != "cache_hit"]
        if timed:
            return "mixed" if self.losses else "gain"
        return "loss" if self.losses else "nothing"

    def spread(self, label: str, figure: Figure) -> tuple[float, float]:
        """Least and greatest value of a figure over all draws."""
        values = [figure.value(runs[label]) for runs in self.draws]
        return min(values), max(values)


def answer(
    workload: Workload,
    engine: Engine,
    cost: CostModel,
    rng: Random,
    draws: int = DRAWS,
    targets: Sequence[Target] = TARGETS,
    progress: Callable[[int], None] | None = None,
) -> Answer:
    """Run all stock settings and `peek` on the recorded arrivals and on `draws` resamples.

    Args:
        progress: called with the number of runs that are done.

    Raises:
        WorkloadError: a request does not fit the arena.

    Cost: `(draws + 1) x (stock settings + 1)` simulated runs.
    """
    labels = [*engine.stock, OURS]
    done: list[Runs] = []
    for number in range(draws + 1):
        drawn = resampled(workload, rng) if number else workload
        runs: dict[str, Any] = {}
        for label in labels:
            runs[label] = simulate(drawn, label, engine.cache, cost=cost, targets=targets)
            if progress is not None:
                progress(len(done) * len(labels) + len(runs))
        done.append(runs)
    means = {label: fmean(FIGURES[0].value(runs[label]) for runs in done) for label in engine.stock}
    best = next(label for label in means if means[label] <= (1.0 + SAME) * min(means.values()))
    stock, ours = changes(done, best, labels[:1]), changes(done, OURS, list(engine.stock))
    return Answer(engine, workload, done, best, stock, ours)


def resampled(workload: Workload, rng: Random) -> Workload:
    """The same requests in the same order, at gaps drawn from theirs; O(N)."""
    times = [request.arrival_s for request in workload.requests]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    if not gaps:
        return workload
    length = isqrt(len(gaps))
    drawn: list[float] = []
    while len(drawn) < len(gaps):
        start = rng.randrange(len(gaps))
        drawn += [gaps[(start + place) % len(gaps)] for place in range(length)]
    starts = accumulate(drawn[: len(gaps)], initial=0.0)
    requests = [replace(each, arrival_s=at_s) for each, at_s in zip(workload.requests, starts, strict=True)]
    return replace(workload, requests=requests)


def busiest(workload: Workload, limit: int) -> Workload:
    """The `limit` successive requests that came in the shortest time, the first of them at 0.  O(N).

    A tenth of them warms up.
    """
    requests = workload.requests
    spare = len(requests) - limit
    if spare <= 0:
        return workload
    first = min(range(spare + 1), key=lambda i: requests[i + limit - 1].arrival_s - requests[i].arrival_s)
    start_s = requests[first].arrival_s
    kept: list[SimRequest] = [
        replace(each, arrival_s=each.arrival_s - start_s) for each in requests[first : first + limit]
    ]
    return replace(workload, requests=kept, warmup=limit // 10)
