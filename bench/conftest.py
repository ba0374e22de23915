"""The fixture of the benchmarks, the check of the backend, and the table at the end.

    make bench                                     all documented benchmarks
    python -m pytest bench -k whole_cycle          some of them, in an environment with a compiled peek
    make bench-against BASE=../other-checkout      this build beside another one, in turns

Times are processor time, as minimum and median of many rounds; ratios are of minima.  The garbage collector
stays on, as in an engine.  But it skips the prompts of the work sets, as it skips objects that engines freeze
after loading.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import peek
from bench.measure import TURNS, Measure, Turns
from bench.timing import TimingTable
from peek.timing import CLOCK

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

TABLE = pytest.StashKey[TimingTable]()
LINE = pytest.StashKey["Turns | None"]()


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
    config.stash[TABLE] = TimingTable(peek.backend())
    config.stash[LINE] = Turns(os.environ[TURNS]) if TURNS in os.environ else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=CLOCK))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash[TABLE]
    if not table.timings:
        return
    terminalreporter.section("benchmarks")
    for line in table.lines():
        terminalreporter.write_line(line)
    path = config.getoption("--bench-json")
    if path:
        table.write(Path(path))
        terminalreporter.write_line(f"\nwritten to {path}")


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Return the `Measure` of a benchmark, which times an action and adds a row to the table."""
    stash, place = request.config.stash, request.session.items.index(request.node)
    alone = stash[LINE] is None  # pytest-benchmark objects to a fixture that is made and not used
    benchmark: BenchmarkFixture | None = request.getfixturevalue("benchmark") if alone else None
    return Measure(benchmark, stash[TABLE], place, request.node.nodeid, stash[LINE])
