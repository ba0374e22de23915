"""Runs policies over request streams on real and simulated engines; JSON lines out.

    python bench/serving/run.py --plan quick --out build/eval.jsonl [--python vllm=PATH] [--data FOLDER]

One command for everything: an engine that is not in this environment runs in the interpreter given with
`--python ENGINE=PATH`, or is left out with a line that says so.  Runs that are in the output already are not
repeated.  All figures but `cpu_us` come from virtual time and are the same on every machine.
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
from pathlib import Path
from typing import Any

from plans import PLANS, Batch

ENGINES = ("simulated-radix", "simulated-blocks", "vllm", "sglang")
PACKAGE = {"vllm": "vllm", "sglang": "sglang"}


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a run: done once, it is not done again."""
    return record["engine"], record["stream"], record["policy"], record["seed"]


def load(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def installed(engine: str) -> bool:
    """Whether this interpreter has the engine."""
    return engine not in PACKAGE or find_spec(PACKAGE[engine]) is not None


def run_batch(engine: str, batch: Batch, arguments: argparse.Namespace, deadline: float) -> None:
    """All runs of a batch on one engine that are not in the output yet."""
    from engines import FAMILY, EngineMissing, record
    from streams import StreamMissing, build

    out, data, only = arguments.out, arguments.data, arguments.seeds
    done = {key_of(entry) for entry in load(out)}
    for stream in [name for name in batch.streams if not arguments.streams or name in arguments.streams]:
        for seed in [seed for seed in batch.seeds if not only or seed in only or seed == 0]:
            wanted = [p for p in batch.policies if not arguments.policies or p in arguments.policies]
            missing = [p for p in wanted if (engine, stream, p, seed) not in done]
            if not missing or time.monotonic() > deadline:
                continue
            try:
                workloads = build(stream, seed, FAMILY[engine], data)
            except StreamMissing as error:
                print(f"left out: {stream}: {error}", flush=True)
                break
            for policy in missing:
                if time.monotonic() > deadline:
                    print("time is up; the same command goes on from here", flush=True)
                    return
                started = time.perf_counter()
                try:
                    entry = record(engine, stream, workloads, policy, None)
                except EngineMissing as error:
                    print(f"left out: {engine} {stream} {policy}: {error}", flush=True)
                    continue
                entry["seed"] = seed
                with out.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                spent = time.perf_counter() - started
                print(
                    f"{engine:16} {stream:28} {seed:4} {policy:24} hit {entry['hit']:.3f}"
                    f"  ttft {entry['ttft']:8.2f} / {entry['ttft_p99']:8.2f}  ({spent:.1f} s)",
                    flush=True,
                )


def elsewhere(engine: str, python: str, arguments: argparse.Namespace, deadline: float) -> int:
    """The same command for one engine in another interpreter."""
    command = [python, str(Path(__file__).resolve()), "--plan", arguments.plan, "--out", str(arguments.out)]
    command += ["--engines", engine, "--minutes", str(max(0.0, (deadline - time.monotonic()) / 60.0))]
    for name in ("seeds", "streams", "policies"):
        command += [f"--{name}", *map(str, getattr(arguments, name))]
    if arguments.data is not None:
        command += ["--data", str(arguments.data)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    return subprocess.run(command, check=False, env=environment).returncode


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plan", choices=sorted(PLANS), default="quick")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="only these of the plan's seeds")
    parser.add_argument("--streams", nargs="*", default=[], help="only these of the plan's streams")
    parser.add_argument("--policies", nargs="*", default=[], help="only these of the plan's policies")
    parser.add_argument("--out", type=Path, default=Path("build/eval.jsonl"))
    parser.add_argument("--data", type=Path, default=None, help="folder with the recorded traffic")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no run after so many minutes")
    return parser.parse_args()


def main() -> int:
    logging.disable(logging.WARNING)  # engines warn a lot about a machine without a GPU
    arguments = parse()
    deadline = time.monotonic() + 60.0 * arguments.minutes
    pythons = dict(text.split("=", 1) for text in arguments.python)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for engine in arguments.engines.split(","):
        if engine not in ENGINES:
            raise SystemExit(f"unknown engine {engine!r}; valid: {', '.join(ENGINES)}")
        if installed(engine):
            for batch in PLANS[arguments.plan]:
                if engine in batch.engines:
                    run_batch(engine, batch, arguments, deadline)
        elif Path(pythons.get(engine, "")).is_file():
            failed |= elsewhere(engine, pythons[engine], arguments, deadline)
        else:
            print(f"left out: {engine} is not installed here (give --python {engine}=PATH)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
