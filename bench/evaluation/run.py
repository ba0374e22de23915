"""Runs policies over request streams on real and simulated engines; writes a CSV file with one line a run.

    python -m bench.evaluation.run --plan quick --out build/eval.csv [--python vllm=PATH] [--data FOLDER]

Every engine runs in a process of its own, `--jobs` of them at a time.  A real engine runs in the interpreter
given with `--python ENGINE=PATH`, or in this one if it is installed here.  Otherwise a line names it as left
out, and with `--whole` nothing is begun.  Runs that are in the output already, made with the present fit, are
not repeated, unless `--again` names their policy.  The last line says whether the whole plan is there.  All
figures but `cpu_us` come from virtual time and are the same on every machine.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.builds import ROOT, require_compiled
from bench.evaluation.plans import ALL, FAMILY, PLANS, REAL, SIMULATED
from bench.evaluation.policies import EngineMissing
from bench.evaluation.record import record
from bench.evaluation.results import fit_of, line_of, missing, read, write
from bench.evaluation.streams import build, recordings
from bench.recorded import RecordingMissing

DONE = "{engine:16} {stream:28} {seed:5} {policy:24} hit {hit:.3f}  ttft {ttft:8.2f} / {ttft_p99:8.2f}"


def wanted(arguments: argparse.Namespace, *engines: str) -> list[tuple[Any, ...]]:
    """Return (engine, stream, seed, policy) of the plan's runs on these engines that the output lacks."""
    fits = {engine: fit_of(engine) for engine in engines}
    absent = missing(read(arguments.out), PLANS[arguments.plan], fits)
    return [run for run in absent if asked_for(arguments, *run[1:])]


def asked_for(arguments: argparse.Namespace, stream: str, seed: int, policy: str) -> bool:
    """Return whether a run is one of those that the command line names; it names all if it names none."""
    named = ((arguments.streams, stream), (arguments.seeds, seed), (arguments.policies, policy))
    return all(not few or part in few for few, part in named)


def run_here(engine: str, arguments: argparse.Namespace, deadline: float) -> bool:
    """Make all wanted runs of an engine, in this process, while there is time; return whether none failed."""
    absent: set[str] = set()
    well = True
    for (_, stream, seed), runs in groupby(wanted(arguments, engine), key=lambda run: run[:3]):
        try:
            workloads = build(stream, seed, FAMILY[engine], arguments.data)
        except RecordingMissing as error:
            if stream not in absent:
                print(f"left out: {stream}: {error}", flush=True)
            absent.add(stream)
            continue
        for run in runs:
            if time.monotonic() > deadline:
                return well
            started = time.perf_counter()
            try:
                entry = record(engine, stream, workloads, run[3])
            except EngineMissing as error:
                print(f"left out: {engine} {stream} {run[3]}: {error}", flush=True)
                continue
            except (AssertionError, MemoryError, RuntimeError) as error:  # an engine gave up
                print(f"failed: {engine} {stream} {seed} {run[3]}: {error!r}", flush=True)
                well = False
                continue
            with arguments.out.open("a") as file:  # one write: other processes append, too
                file.write(line_of(entry))
            print(f"{DONE.format(**entry)}  ({time.perf_counter() - started:.1f} s)", flush=True)
    return well


def interpreters(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the interpreter of each engine that was asked for and is there."""
    given = dict(text.split("=", 1) for text in arguments.python)
    found = {}
    for engine in arguments.engines.split(","):
        if engine not in ALL:
            raise SystemExit(f"unknown engine {engine!r}; valid: {', '.join(ALL)}")
        path = given.get(engine) or (sys.executable if engine in SIMULATED or find_spec(engine) else "")
        if Path(path).is_file():
            found[engine] = path
        else:
            print(f"left out: {engine} is not installed here (give --python {engine}=PATH)", flush=True)
    return found


def run_apart(engine: str, python: str, deadline: float) -> int:
    """Run the same command for one engine, with its lab in tests/ importable; return the exit status."""
    left = max(0.0, (deadline - time.monotonic()) / 60.0)
    command = [python, "-m", "bench.evaluation.run", *sys.argv[1:]]
    command += ["--engines", engine, "--minutes", str(left), "--here"]  # the last of an option counts
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / engine)] if engine in REAL else [str(ROOT)])
    settings = {"OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path}
    return subprocess.run(command, check=False, env={**os.environ, **settings}).returncode


def begin(arguments: argparse.Namespace, engines: dict[str, str]) -> None:
    """Refuse a `--whole` run that lacks something; drop outdated runs, and the ones to repeat."""
    if arguments.whole:
        absent = [engine for engine in arguments.engines.split(",") if engine not in engines]
        absent += recordings({run[1] for run in wanted(arguments, *engines)}, arguments.data)
        if absent:
            raise SystemExit(f"nothing begun: a whole run needs {', '.join(absent)}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    fits = {engine: fit_of(engine) for engine in ALL}
    known = (run for run in read(arguments.out) if run["fit"] == fits[run["engine"]])
    write(
        arguments.out,
        [
            run
            for run in known
            if run["policy"] not in arguments.again
            or not asked_for(arguments, run["stream"], run["seed"], run["policy"])
        ],
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plan", choices=sorted(PLANS), default="quick")
    parser.add_argument("--engines", default=",".join((*REAL, *SIMULATED)))
    for part, kind in (("seeds", int), ("streams", str), ("policies", str)):
        parser.add_argument(
            f"--{part}", type=kind, nargs="*", default=[], help=f"only these of the plan's {part}"
        )
    parser.add_argument("--again", nargs="*", default=[], help="run these policies again")
    parser.add_argument("--out", type=Path, default=Path("build/eval.csv"))
    parser.add_argument("--data", type=Path, default=None, help="folder with the recorded traffic")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--whole", action="store_true", help="begin only with every engine and recording")
    parser.add_argument("--jobs", type=int, default=1, help="engines at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no run after this many minutes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    require_compiled()
    logging.disable(logging.WARNING)  # engines warn a lot about a machine without a GPU
    deadline = time.monotonic() + 60.0 * arguments.minutes
    if arguments.here:
        return int(not run_here(arguments.engines, arguments, deadline))
    engines = interpreters(arguments)
    begin(arguments, engines)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        ends = pool.map(lambda engine: run_apart(engine, engines[engine], deadline), engines)
        failed = any(list(ends))
    left = Counter(run[0] for run in wanted(arguments, *arguments.engines.split(",")))
    gaps = ", ".join(f"{count} of {engine}" for engine, count in left.items())
    print(f"cut short, to go on with the same command: {gaps} not run" if gaps else "all of the plan was run")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
