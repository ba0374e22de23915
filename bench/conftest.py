"""The benchmarks' fixtures, the check of the backend, and the table at the end.

    make bench                                    what is documented
    pytest bench -k whole_cycle                   some of it, in an environment with a compiled peek
    BENCH_BACKEND=interpreted pytest bench        the same on the pure build (`make test-interpreted` has one)

Times are processor time, the minimum and median of many rounds; ratios are of minima.  The garbage
collector stays on, as it does in an engine, but the prompts of the work sets are hidden from it, as
engines do with what they load.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # worksets, engine, report

from report import CLOCK, Report, Row

import peek

REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bench-json", metavar="PATH", help="write the table of the benchmarks as JSON")


def pytest_configure(config: pytest.Config) -> None:
    expected = os.environ.get("BENCH_BACKEND", "compiled")
    if peek.backend() != expected:
        pytest.exit(
            f"benchmarks of the {expected} build, but {peek.__file__} is {peek.backend()}: "
            "run `make build`, or set BENCH_BACKEND=interpreted to measure the pure build",
            4,
        )
    config.option.benchmark_quiet = True  # its table gives way to ours
    config.option.benchmark_timer = f"time.{CLOCK.__name__}"
    config.stash[REPORT] = Report(peek.backend())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    report = config.stash[REPORT]
    if not report.rows:
        return
    terminalreporter.section("benchmarks")
    for line in report.table():
        terminalreporter.write_line(line)
    path = config.getoption("--bench-json")
    if path:
        report.write(Path(path))
        terminalreporter.write_line(f"\nwritten to {path}")


Measure = Callable[..., Row]


@pytest.fixture
def measure(benchmark: Any, request: pytest.FixtureRequest) -> Measure:
    """`measure(what, action, ...)` times `action(*setup())` and adds a row to the table.

    Args:
        setup: makes the arguments of every round, untimed.
        operations: how many operations one call is; times are per operation.
        yardstick, yardstick_s, max_s, max_ratio: see `Row`.
    """
    report = request.config.stash[REPORT]

    def run(
        what: str,
        action: Callable[..., object],
        setup: Callable[[], tuple[object, ...]] = tuple,
        rounds: int = 50,
        operations: int = 1,
        **comparison: Any,
    ) -> Row:
        gc.collect()
        gc.freeze()
        benchmark.pedantic(action, setup=lambda: (setup(), {}), rounds=rounds, warmup_rounds=1)
        gc.unfreeze()
        if benchmark.stats is None:  # --benchmark-disable
            return Row(what, 0.0, 0.0)
        times = benchmark.stats.stats
        row = Row(what, times.min / operations, times.median / operations, **comparison)
        report.rows.append(row)
        return row

    return run
