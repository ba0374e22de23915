"""Compares this checkout's build with another checkout's, by running the benchmarks on both in turns.

    python -m bench.against /path/of/another/checkout [--strict] [-k EXPRESSION]

Each build runs in a process of its own, with the benchmarks of *this* checkout.  A benchmark is set up in
both processes, which then do slices of its rounds alternately; the fastest round counts.  If the two builds
differ by more than `LIMIT`, whichever is faster, they continue for longer.  Then they run again in new
processes, whose objects have other places in memory.  With `--strict` the exit status is 1 if a row is still
slower by more than `LIMIT`, or could be measured on the other build only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from bench.builds import PYTHON, ROOT, environment, expose
from bench.measure import SLICES, TURNS
from peek.timing import aligned, readable

LIMIT = 0.03
"""Relative difference of a row's times that may be noise."""
PATIENCE = 3
"""Factor by which rows that differ by more than `LIMIT` are measured longer."""
PASSES = 4
"""Number of processes per build, one after another, in which such rows are measured."""


class Side:
    """One build: its measured times, and its process while one runs."""

    def __init__(self, name: str, build: Path, folder: Path) -> None:
        self.name = name
        self.best_s: dict[str, float] = {}
        self.tests: dict[str, str] = {}
        """The test that makes a row, by the row's name."""
        self.ready: tuple[int, str] | None = None
        """Place and name of the benchmark that is set up; None when the process has ended."""
        self._place = expose(build, folder / name)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes]
        self._orders: int
        self._lines: TextIO

    def start(self, tests: Sequence[str], seed: int) -> None:
        """Start a new process; another seed gives its dictionaries and sets another layout in memory."""
        orders, self._orders = os.pipe()
        lines, answers = os.pipe()
        command = [*PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        command += ["-c", str(ROOT / "pyproject.toml"), *tests]
        settings = {TURNS: f"{orders},{answers}", "PYTHONHASHSEED": str(seed)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._place, stdout=log, stderr=log, pass_fds=(orders, answers),
                env=environment() | settings,
            )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self._lines = os.fdopen(lines, "r", encoding="ascii")
        found = self._hear()
        if found and self._place not in Path(found).parents:
            raise SystemExit(f"the {self.name} build's process has {found}")

    def _hear(self) -> Any:
        """Return the next message from the process; None at its end."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def wait(self) -> None:
        """Wait until a benchmark is set up, or there are no more."""
        ready = self._hear()
        self.ready = None
        if ready:
            place, test, what = ready
            self.ready, self.tests[what] = (place, what), test

    def go(self) -> float:
        """Measure for one turn; return the time of the fastest round so far, seconds."""
        os.write(self._orders, b"go\n")
        best_s: float | None = self._hear()
        if best_s is None or self.ready is None:
            raise SystemExit(f"the {self.name} build's process ended:\n{self._log.read_text()}")
        what = self.ready[1]
        self.best_s[what] = min(best_s, self.best_s.get(what, best_s))
        return self.best_s[what]

    def go_on(self) -> None:
        """Tell the process to go on to the next benchmark."""
        os.write(self._orders, b"next\n")

    def end(self) -> str:
        """Wait for the process to end; return its log if it failed, else ""."""
        failed = self._process.wait() != 0
        os.close(self._orders)
        self._lines.close()
        return f"-- {self.name} build --\n{self._log.read_text()}" if failed else ""


def show(what: str) -> None:
    """Show on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def play(sides: Sequence[Side]) -> None:
    """Measure the benchmark that `sides`, one or two, have set up."""
    for turn in range(SLICES * PATIENCE):
        times = [side.go() for side in (sides if turn % 2 else sides[::-1])]
        if turn + 1 >= SLICES and max(times) <= (1 + LIMIT) * min(times):
            break
    for side in sides:
        side.go_on()
    for side in sides:
        side.wait()


def measure(sides: Sequence[Side], tests: Sequence[str], seed: int) -> str:
    """Run the tests on both builds in turns; return the logs of processes that failed."""
    for side in sides:
        side.start(tests, seed)
    for side in sides:
        side.wait()
    while ready := [side.ready for side in sides if side.ready]:
        show(min(ready)[1])
        play([side for side in sides if side.ready == min(ready)])
    show("")
    return "".join(side.end() for side in sides)


def differing(old: Side, new: Side) -> list[str]:
    """Return the tests whose rows differ by more than `LIMIT`."""
    both = old.best_s.keys() & new.best_s.keys()
    apart = [what for what in both if abs(new.best_s[what] / old.best_s[what] - 1) > LIMIT]
    return sorted({str(ROOT / new.tests[what]) for what in apart})


def table(old: Side, new: Side) -> tuple[list[str], int]:
    """Return the lines of the table, and the number of rows that are missing or slower by over `LIMIT`."""
    cells = [["what", "old", "new", "ratio", ""]]
    slower = 0
    for what in {**new.best_s, **old.best_s}:
        before, after = old.best_s.get(what), new.best_s.get(what)
        ratio = after / before if before and after else None
        verdict = "" if ratio is not None or after else "missing"
        if ratio is not None and abs(ratio - 1) > LIMIT:
            verdict = "slower" if ratio > 1 else "faster"
        slower += verdict in ("slower", "missing")
        times = ("-" if one is None else readable(one) for one in (before, after))
        cells.append([what, *times, "" if ratio is None else f"{ratio:.3f}", verdict])
    return aligned(cells, "<>>><"), slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base", type=Path, help="a checkout with a compiled build (`make build` there)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a row is slower")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these benchmarks, as pytest selects")
    arguments = parser.parse_args()
    tests = [str(ROOT / "bench"), *(["-k", arguments.k] if arguments.k else [])]
    with tempfile.TemporaryDirectory(prefix="peek-against-") as name:
        folder = Path(name).resolve()
        old, new = Side("old", arguments.base, folder), Side("new", ROOT, folder)
        failures = measure((old, new), tests, seed=0)
        for seed in range(1, PASSES):
            if again := differing(old, new):
                measure((old, new), again, seed)
    lines, slower = table(old, new)
    print("\n".join(lines))
    print(f"\n{slower} of {len(lines) - 1} rows are slower by more than {LIMIT:.0%} or missing")
    if failures:
        print(failures, file=sys.stderr)
    return 1 if arguments.strict and (slower or not new.best_s) else 0


if __name__ == "__main__":
    sys.exit(main())
