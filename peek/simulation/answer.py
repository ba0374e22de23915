"""Compare `peek` with every stock setting of an engine, on recorded requests and on resampled arrivals.

For each figure and draw, `peek` is compared with the setting that is best *in that figure and that draw*.  So
a gain in all draws is one that no flag of the engine brings.  A draw is the recorded arrivals, or a resample.
A resample keeps the prompts and their order and draws the gaps between arrivals anew, in runs of successive
gaps as long as the square root of their number (a circular block bootstrap), so that bursts stay bursts.  One
more resample falls into the range of `draws` others with probability `(draws - 1) / (draws + 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isqrt
from random import Random
from statistics import fmean
from typing import Any, Final

from peek.simulation.cost import CostModel
from peek.simulation.simulate import TARGETS, Target, simulate
from peek.simulation.workload import Workload

DRAWS: Final = 19  # resamples by default; one more falls into their range in 9 of 10 cases
SAME: Final = 0.03  # relative difference up to which two times or two rates count as the same
SAME_POINTS: Final = 0.01  # difference up to which two shares count as the same: one percentage point
_ALIKE_S: Final = 1e-5  # difference of two gaps in seconds that rounding of times can make

OURS: Final = "peek"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and the scheduling policies that it offers by itself, the default first."""

    name: str  # in options
    title: str  # in a sentence
    cache: str  # its kind, see `simulate`
    stock: Mapping[str, str]  # the flag that turns each policy on, by its label


_SGLANG: Final = {
    "fcfs+lru": "",
    "lpm+lru": "--schedule-policy lpm",
    "dfs-weight+lru": "--schedule-policy dfs-weight",
    "hrrn-limit+lru": "--schedule-policy hrrn",
    "spf+lru": "--schedule-policy shortest-prefill-first",
}
ENGINES: Final = {
    "vllm": Engine("vllm", "vLLM", "blocks", {"fcfs+lru": ""}),
    "sglang": Engine("sglang", "SGLang", "radix", _SGLANG),
}
"""The engines by name.  Some policies are not simulated: vLLM's `priority` and SGLang's `priority` and
`routing-key` (they order by values that clients send), `lof` (by allowed answer length) and `random`."""


def engine_of(cache: str) -> Engine:
    """Return the engine with this kind of prefix cache, "radix" or "blocks"."""
    return next(each for each in ENGINES.values() if each.cache == cache)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run by which policies are compared."""

    name: str  # path of the figure in the result of `simulate`, with dots; a number is a place in a list
    words: str = ""  # the figure in a sentence; "" if it depends on a target or is in no sentence
    is_share: bool = False  # True if differences count in points; else they are relative to the value before
    more_is_better: bool = False  # True if a larger value is better; else a smaller value is better

    def value(self, run: Any) -> float:
        for part in self.name.split("."):
            run = run[int(part)] if part.isdecimal() else run[part]
        return float(run)

    def gain(self, before: float, after: float) -> float:
        """Return how much better `after` is, as a part of `before`, or for shares as a difference."""
        better = after - before if self.more_is_better else before - after
        return better if self.is_share else better / max(before, 1e-9)

    def best(self, values: Iterable[float]) -> float:
        return (max if self.more_is_better else min)(values)

    @property
    def same(self) -> float:
        """Gain up to which two values count as the same."""
        return SAME_POINTS if self.is_share else SAME


FIGURES: Final = (
    Figure("ttft_s.mean", "the mean time to first token"),
    Figure("ttft_s.p99", "the p99 time to first token"),
    Figure("e2e_s.mean", "the mean time to the last token"),
    Figure("goodput.0.share", is_share=True, more_is_better=True),
    Figure("goodput.1.share", is_share=True, more_is_better=True),
    Figure("throughput_rps", "the throughput", more_is_better=True),
    Figure("cache_hit", "the cache hit", is_share=True, more_is_better=True),
)
JOB: Final = Figure("job_s.mean", "the mean job time")  # compared only where requests have sessions


def figure_named(name: str) -> Figure:
    """Return the figure of this name; if it is not one that is compared, a smaller value is better."""
    return next((each for each in (*FIGURES, JOB) if each.name == name), Figure(name))


@dataclass(frozen=True, slots=True)
class Change:
    """How much one figure changes under a policy, against the best of other settings."""

    figure: Figure
    against: str  # label of the setting that is best in the figure on the recorded arrivals
    before: float  # its value there
    after: float  # that of the policy
    gain: float  # gain on the recorded arrivals, see `Figure.gain`
    low: float  # least gain over all draws, each against the setting that is best in that draw
    high: float  # greatest

    @property
    def is_gain(self) -> bool:
        """True if the policy is better in every draw, and by more than `Figure.same` as recorded."""
        return self.gain > self.figure.same and self.low > 0.0

    @property
    def is_loss(self) -> bool:
        """True if the policy is worse in every draw, and by more than `Figure.same` as recorded."""
        return self.gain < -self.figure.same and self.high < 0.0


Runs = Mapping[str, Any]  # the runs of one draw, by label of the policy


def changes(draws: Sequence[Runs], ours: str, rivals: Sequence[str]) -> list[Change]:
    """Compare a policy, `ours`, with the best of others in each figure; the first draw is as recorded."""
    found = []
    for figure in FIGURES if "job_s" not in draws[0][ours] else (*FIGURES, JOB):
        values = [{label: figure.value(runs[label]) for label in (*rivals, ours)} for runs in draws]
        bests = [figure.best(each[label] for label in rivals) for each in values]
        gains = [figure.gain(best, each[ours]) for best, each in zip(bests, values, strict=True)]
        first = values[0]
        against = next(label for label in rivals if first[label] == bests[0])
        found.append(Change(figure, against, first[against], first[ours], gains[0], min(gains), max(gains)))
    return found


@dataclass(frozen=True)
class Answer:
    """The result of `answer`."""

    engine: Engine
    workload: Workload
    draws: Sequence[Runs]  # the runs of each draw; the first draw has the recorded arrivals
    best: str  # label of the first stock setting whose mean TTFT over all draws is within `SAME` of the least
    stock: list[Change]  # changes of `best` against the default
    ours: list[Change]  # changes of `peek` against the best of all stock settings in each figure

    @property
    def default(self) -> str:
        return next(iter(self.engine.stock))

    @property
    def advised(self) -> str:
        """Label of the stock setting to turn on; the default if `best` is not better in every draw."""
        mean = self.stock[0]
        return self.best if self.best != self.default and mean.is_gain else self.default

    @property
    def gains(self) -> list[Change]:
        return [each for each in self.ours if each.is_gain]

    @property
    def losses(self) -> list[Change]:
        return [each for each in self.ours if each.is_loss]

    @property
    def verdict(self) -> str:
        """The answer in one word: "gain", "mixed", "nothing" or "loss".

        A better hit alone is no gain, since the hit matters only by what it does to times.
        """
        timed = [each for each in self.gains if each.figure.name != "cache_hit"]
        if timed:
            return "mixed" if self.losses else "gain"
        return "loss" if self.losses else "nothing"

    def spread(self, label: str, figure: Figure) -> tuple[float, float]:
        """Return the least and the greatest value of a figure over all draws."""
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

    `progress` is called with the number of finished runs, of `(draws + 1) x (stock settings + 1)`.
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


def _gaps(workload: Workload) -> list[float]:
    return [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(workload.requests)]


def is_even(workload: Workload) -> bool:
    """Return whether all gaps between arrivals are alike, so that a resample is the workload again.  O(N)."""
    gaps = _gaps(workload) or [0.0]
    return max(gaps) - min(gaps) < _ALIKE_S


def resampled(workload: Workload, rng: Random) -> Workload:
    """Return the same requests in the same order, with resampled gaps between arrivals.  O(N)."""
    gaps = _gaps(workload)
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
    """Return the `limit` successive requests that arrived in the shortest time, the first at 0.  O(N).

    The first tenth of them is warm-up.  A workload of at most `limit` requests is returned as it is.
    """
    requests = workload.requests
    spare = len(requests) - limit
    if spare <= 0:
        return workload
    first = min(range(spare + 1), key=lambda i: requests[i + limit - 1].arrival_s - requests[i].arrival_s)
    start_s = requests[first].arrival_s
    kept = [replace(each, arrival_s=each.arrival_s - start_s) for each in requests[first : first + limit]]
    return replace(workload, requests=kept, warmup=limit // 10)
