"""Times one action over many rounds: alone, or in turns with the same benchmark of another build.

Alone, pytest-benchmark does the timing, so its options work (`--benchmark-save`, `--benchmark-compare`).
In turns, the process waits for orders from `against.py` and then does a slice of the rounds.  So both builds
have the same prompts in memory and run in the same minute of a shared machine.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import peek
from bench.timing import Timing, TimingTable
from peek.timing import Rounds

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

TURNS = "BENCH_TURNS"
"""Environment variable with the two file descriptors `read,write` over which turns are agreed."""
SLICES = 8
"""Number of turns in which the rounds of a benchmark are done."""


class Turns:
    """The process's connection to `against.py`: it reports what is set up, and measures when told to."""

    def __init__(self, descriptors: str) -> None:
        read, write = map(int, descriptors.split(","))
        self._orders = os.fdopen(read, "r", encoding="ascii")
        self._answers = os.fdopen(write, "w", encoding="ascii")
        self._say(peek.__file__)

    def play(self, place: int, test: str, what: str, rounds: Rounds, count: int, operations: int) -> None:
        """Report a benchmark and do its rounds in turns; `place` is the index of `test` in the run."""
        self._say([place, test, what])
        while self._orders.readline() == "go\n":
            rounds.do(max(1, count // SLICES))
            self._say(min(rounds.times_s) / operations)

    def _say(self, answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


class Measure:
    """The fixture of a benchmark: a call times an action and adds a row to the table."""

    def __init__(
        self,
        benchmark: BenchmarkFixture | None,
        table: TimingTable,
        place: int,
        test: str,
        turns: Turns | None,
    ) -> None:
        self._benchmark = benchmark
        self._table = table
        self._place = place
        self._test = test
        self._turns = turns

    def __call__(
        self,
        what: str,
        action: Callable[..., object],
        setup: Callable[[], tuple[object, ...]] = tuple,
        rounds: int = 50,
        operations: int = 1,
        **comparison: Any,
    ) -> Timing:
        """Time `action(*setup())`, `rounds` times.

        Args:
            what: name of the row.
            action: function to time.
            setup: function that makes the arguments of each round, untimed.
            rounds: number of rounds.
            operations: number of operations in a call; times are per operation.
            comparison: yardstick, yardstick_s, max_s, max_ratio as in `Timing`.
        """
        gc.collect()
        gc.freeze()
        if self._turns is None:
            times_s = self._alone(what, action, setup, rounds)
        else:
            run = Rounds(action, setup)
            self._turns.play(self._place, self._test, what, run, rounds, operations)
            times_s = run.times_s
        gc.unfreeze()
        timing = Timing(what, min(times_s) / operations, median(times_s) / operations, **comparison)
        self._table.timings.append(timing)
        return timing

    def _alone(
        self, what: str, action: Callable[..., object], setup: Callable[[], tuple[object, ...]], rounds: int
    ) -> list[float]:
        benchmark: Any = self._benchmark
        benchmark.extra_info["row"] = what
        benchmark.pedantic(action, setup=lambda: (setup(), {}), rounds=rounds, warmup_rounds=1)
        times_s: list[float] = benchmark.stats.stats.data
        return times_s
