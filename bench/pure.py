"""Measures how much slower the same source is without the compiler.

    python -m bench.pure build/pure      needs a compiled `peek` and, in the folder, an uncompiled one

For the whole table of the pure build, run `BENCH_BACKEND=interpreted PYTHONPATH=../.. python -m pytest
-c ../../pyproject.toml ../../bench` in build/pure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import peek
from bench.builds import PYTHON, environment, require_compiled
from bench.worksets import rig_of, work_set
from peek.timing import CLOCK

MAX_RATIO = 10.0
ROUNDS = 15


def measure() -> dict[str, float]:
    """Return the time of the fastest round of each operation, in seconds, on this process's build."""
    work = work_set("A")
    ids, keys = work.ids(), work.packed()
    rig = rig_of(work, "peek")
    filling = cycle = draining = float("inf")
    for _ in range(ROUNDS):
        tree = peek.PendingTree()
        started = CLOCK()
        for request_id, key in zip(ids, keys, strict=True):
            tree.insert(request_id, key)
        filled = CLOCK()
        for request_id in ids:
            tree.remove(request_id)
        drained = CLOCK()
        rig.turn_over()
        before_cycle = CLOCK()
        rig.cycle()
        cycle = min(cycle, CLOCK() - before_cycle)
        filling = min(filling, filled - started)
        draining = min(draining, drained - filled)
    return {
        "insert packed, A": filling / len(work),
        "remove, A": draining / len(work),
        "whole cycle, A, peek": cycle,
    }


def main(folder: str) -> int:
    require_compiled()
    compiled = measure()
    child = subprocess.run(  # started in the folder, so that it finds the folder's `peek` first
        [*PYTHON, "-m", "bench.pure"],
        cwd=folder, env=environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    backend, pure = json.loads(child.stdout)
    if backend != "interpreted":
        sys.exit(f"{Path(folder).resolve()} holds no pure build")
    print(f"\n{'pure against compiled':24}  {'compiled':>10}  {'pure':>10}  ratio  target {MAX_RATIO:g} x")
    for what, seconds in compiled.items():
        ratio = pure[what] / seconds
        verdict = "ok" if ratio <= MAX_RATIO else "short"
        print(f"{what:24}  {seconds * 1e6:7.2f} us  {pure[what] * 1e6:7.2f} us  {ratio:5.1f}  {verdict}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(sys.argv[1]))
    print(json.dumps([peek.backend(), measure()]))
