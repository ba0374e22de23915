"""How much slower the same source is without the compiler.

    python bench/pure.py build/pure      needs a compiled `peek` and, in the folder, an uncompiled one

The whole table of the pure build: `BENCH_BACKEND=interpreted pytest bench` where that build is found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from engine import Engine
from report import CLOCK
from worksets import work_set

import peek

MAX_RATIO = 10.0
ROUNDS = 15


def measure() -> dict[str, float]:
    """Seconds of the fastest round of what is compared, on whichever build this process has."""
    work = work_set("A")
    ids, keys = work.ids(), work.packed()
    engine = Engine(work, "peek")
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
        engine.turn_over()
        before_cycle = CLOCK()
        engine.cycle()
        cycle = min(cycle, CLOCK() - before_cycle)
        filling = min(filling, filled - started)
        draining = min(draining, drained - filled)
    return {
        "insert packed, A": filling / len(work),
        "remove, A": draining / len(work),
        "whole cycle, A, peek": cycle,
    }


def main(folder: str) -> int:
    if peek.backend() != "compiled":
        sys.exit(f"{peek.__file__} is not compiled: nothing to compare with")
    compiled = measure()
    environment = os.environ | {"PYTHONPATH": str(Path(folder).resolve())}
    child = subprocess.run(
        [sys.executable, __file__], env=environment, check=True, capture_output=True, text=True
    )
    backend, pure = json.loads(child.stdout)
    if backend != "interpreted":
        sys.exit(f"{folder} holds no pure build")
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
