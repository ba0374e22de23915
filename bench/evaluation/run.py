"""Runs policies over request streams on real and simulated engines; JSON lines out.

    python -m bench.evaluation.run --plan quick --out build/eval.jsonl [--python vllm=PATH] [--data FOLDER]

One command for everything.  A real engine runs in a process of its own, in the interpreter given with
`--python ENGINE=PATH` or in this one if it is installed here; otherwise it is left out with a line that says
so.  Runs that are in the output already are not repeated.  All figures but `cpu_us` come from virtual time
and are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from bench.builds import ROOT, require_compiled
from bench.evaluation.plans import ALL, FAMILY, PLANS, SIMULATED
from bench.evaluation.policies import EngineMissing
from bench.evaluation.record import record
from bench.evaluation.results import KEYS, read
from bench.evaluation.streams import build
from bench.recorded import RecordingMissing

DONE = "{engine:16} {stream:28} {seed:4} {policy:24} hit {hit:.3f}  ttft {ttft:8.2f} / {ttft_p99:8.2f}"


def missing(engine: str, arguments: argparse.Namespace) -> list[tuple[str, int, str]]:
    """(stream, seed, policy) of what the plan wants of an engine and the output lacks."""
    done = {tuple(record[key] for key in KEYS) for record in read(arguments.out)}
    only = [arguments.streams, [*arguments.seeds, 0] if arguments.seeds else [], arguments.policies]
    planned = dict.fromkeys(run for sweep in PLANS[arguments.plan] for run in sweep.runs())
    return [
        run[1:]
        for run in planned
        if run[0] == engine and run not in done
        if all(not few or part in few for few, part in zip(only, run[1:], strict=True))
    ]


def run_here(engine: str, arguments: argparse.Namespace, deadline: float) -> None:
    """All missing runs of an engine, in this process, as long as there is time."""
    absent: set[str] = set()
    for (stream, seed), runs in groupby(missing(engine, arguments), key=lambda run: run[:2]):
        try:
            workloads = build(stream, seed, FAMILY[engine], arguments.data)
        except RecordingMissing as error:
            if stream not in absent:
                print(f"left out: {stream}: {error}", flush=True)
            absent.add(stream)
            continue
        for _, _, policy in runs:
            if time.monotonic() > deadline:
                print("time is up; the same command goes on from here", flush=True)
                return
            started = time.perf_counter()
            try:
                entry = record(engine, stream, workloads, policy)
            except EngineMissing as error:
                print(f"left out: {engine} {stream} {policy}: {error}", flush=True)
                continue
            with arguments.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(f"{DONE.format(**entry)}  ({time.perf_counter() - started:.1f} s)", flush=True)


def run_elsewhere(engine: str, python: str, deadline: float) -> int:
    """The same command for one real engine, where its lab in tests/ can be imported; the exit status."""
    left = max(0.0, (deadline - time.monotonic()) / 60.0)
    command = [python, "-m", "bench.evaluation.run", *sys.argv[1:]]
    command += ["--engines", engine, "--minutes", str(left)]  # the last of an option counts
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / engine)])
    settings = {"OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path}
    return subprocess.run(command, check=False, env={**os.environ, **settings}).returncode


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plan", choices=sorted(PLANS), default="quick")
    parser.add_argument("--engines", default=",".join((*SIMULATED, "vllm", "sglang")))
    for part, kind in (("seeds", int), ("streams", str), ("policies", str)):
        parser.add_argument(
            f"--{part}", type=kind, nargs="*", default=[], help=f"only these of the plan's {part}"
        )
    parser.add_argument("--out", type=Path, default=Path("build/eval.jsonl"))
    parser.add_argument("--data", type=Path, default=None, help="folder with the recorded traffic")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no run after so many minutes")
    return parser.parse_args()


def main() -> int:
    require_compiled()
    logging.disable(logging.WARNING)  # engines warn a lot about a machine without a GPU
    arguments = parse()
    deadline = time.monotonic() + 60.0 * arguments.minutes
    pythons = dict(text.split("=", 1) for text in arguments.python)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for engine in arguments.engines.split(","):
        if engine not in ALL:
            raise SystemExit(f"unknown engine {engine!r}; valid: {', '.join(ALL)}")
        given = pythons.get(engine, sys.executable if find_spec(engine) else "")
        if engine in SIMULATED or find_spec(f"{engine}_lab"):
            run_here(engine, arguments, deadline)
        elif Path(given).is_file():
            failed |= run_elsewhere(engine, given, deadline)
        else:
            print(f"left out: {engine} is not installed here (give --python {engine}=PATH)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
