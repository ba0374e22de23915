"""Compares other routers with `peek-epp`, in front of the same real vLLM servers.

    make bench-routers

Servers and routers start once.  In each round of each cell every router gets the same requests, new ones
each round, on emptied caches; another router begins in the next round.  A step of a server lasts as long as
`--step-ms` and `--tokens-per-s` say (`bench.routers.paced`); `--unpaced` leaves it to the cores of this
machine.  Rows are written at once, and runs that the file already has are not repeated.  Exit
status 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.routers.client import play
from bench.routers.model import SERVERS, SHAPE, STEP_S, TOKENS_PER_S
from bench.routers.rivals import BLOCK, DEFAULT, RIVALS, Backends, Rival, Running
from bench.routers.table import FIELDS, NUMBERS, Row, read, table
from bench.routers.traffic import BURST, CELLS, Cell, talks
from bench.servers.engines import ENGINES, Arm, environment, server
from bench.servers.processes import Failed, Server, free_port
from bench.servers.run import describe, device_of, in_turn
from bench.servers.shapes import write_model

VLLM: Final = ENGINES["vllm"]
BY_NAME: Final = {rival.name: rival for rival in RIVALS}
REQUESTS: Final = "vllm:request_success_total"

RESTING: Final = "import os, time\nos.sched_yield = lambda: time.sleep(0.001)\n"
"""What Python runs first in each process of a paced server.  vLLM's worker and scheduler wait for one another
in loops around `os.sched_yield`; those of four servers keep two cores busy while all steps wait."""


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="Python of an environment with vLLM")
    parser.add_argument("--python", action="append", default=[], help="PACKAGE=PATH of a router's Python")
    parser.add_argument("--servers", type=int, default=SERVERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", action="append", help="default: all")
    parser.add_argument("--arm", action="append", help="default: all whose environment is named")
    parser.add_argument("--step-ms", type=float, default=1e3 * STEP_S, help="shortest step of a server")
    parser.add_argument("--tokens-per-s", type=float, default=TOKENS_PER_S, help="that a server computes")
    parser.add_argument("--unpaced", action="store_true", help="as fast as this machine is")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=Path("build/routers.csv"))
    chosen = parser.parse_args(arguments)
    chosen.python = {"": sys.executable} | dict(each.split("=", 1) for each in chosen.python)
    return chosen


class Bench:
    """The servers, the routers in front of them, and what they are asked."""

    def __init__(self, chosen: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self._chosen, self._folder, self._stack = chosen, folder, stack
        self._servers: list[Server] = []
        self._routers: dict[str, Running] = {}
        self._rows = read(chosen.out) if chosen.out.exists() else []
        self._about: dict[str, str] = {}

    def start(self) -> None:
        """Servers first; a router that does not start is named and left out."""
        model, python = self._folder / "model", self._chosen.vllm.absolute()
        write_model(model, SHAPE)
        self._about = describe(VLLM, python, self._folder) | {"device": device_of(SHAPE)}
        if not self._chosen.unpaced:
            shutil.copy(Path(__file__).with_name("paced.py"), self._folder)
            (self._folder / "sitecustomize.py").write_text(RESTING, encoding="utf-8")
        count = self._chosen.servers
        ports, events, replays = (tuple(free_port() for _ in range(count)) for _ in range(3))
        for each in zip(ports, events, replays, strict=True):
            self._servers.append(self._server(python, model, *each))
        for each_server in self._servers:
            each_server.wait()
        backends = Backends(ports, events, replays, model, SHAPE)
        for rival in RIVALS:
            if rival.package in self._chosen.python and rival.name in (self._chosen.arm or [rival.name]):
                self._start_router(rival, backends)

    def _server(self, python: Path, model: Path, port: int, events: int, replay: int) -> Server:
        publishes = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        # vllm-router has the servers turn texts into tokens, by an endpoint that is closed by default
        flags = ["--enable-scale-out", "--kv-events-config", json.dumps(publishes)]
        environ = environment(SHAPE) | {"HOME": str(self._folder), "PYTHONHASHSEED": "0"}
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(self._folder), os.environ.get("PYTHONPATH", "")])
        )
        if not self._chosen.unpaced:
            flags += ["--worker-cls", "paced.Worker"]
            environ["PACED_STEP_S"] = str(self._chosen.step_ms / 1e3)
            environ["PACED_TOKEN_S"] = str(1.0 / self._chosen.tokens_per_s)
        folder = self._folder / f"server-{port}"
        folder.mkdir()
        command = server("vllm", Arm("fcfs", tuple(flags)), python, model, SHAPE, port)
        assert command[command.index("--block-size") + 1] == str(BLOCK)
        running = Server(command, folder, environ, port, VLLM.reset)
        self._stack.callback(running.close)
        return running

    def _start_router(self, rival: Rival, backends: Backends) -> None:
        folder = self._folder / rival.name.replace(" ", "-")
        folder.mkdir()
        try:
            router = rival.start(backends, folder, Path(self._chosen.python[rival.package]).absolute())
        except Failed as error:
            print(f"{rival.name} is left out: {error}", file=sys.stderr)
            return
        self._stack.callback(router.close)
        self._routers[rival.name] = router

    def measure(self, cell: Cell, rate: float, turn: int, arm: str) -> Row:
        """One run of one router on empty caches."""
        for each in self._servers:
            each.empty()
        names = (VLLM.cached, VLLM.prompts, REQUESTS)
        before = [each.metrics(*names) for each in self._servers]
        sent = talks(cell, self._chosen.seed + turn, rate)
        saved = asyncio.run(play(self._routers[arm].url, cell, sent))
        after = [each.metrics(*names) for each in self._servers]
        grown = [
            [now - then for now, then in zip(*each, strict=True)] for each in zip(after, before, strict=True)
        ]
        cached, prompts, served = (sum(column) for column in zip(*grown, strict=True))
        for why in saved.pop("why"):
            print(f"{arm}, {cell.name}: {why}", file=sys.stderr)
        found: dict[str, Any] = {
            **self._about, "servers": len(self._servers), "paced": not self._chosen.unpaced,
            "cell": cell.name, "round": turn, "arm": arm, "rate": rate, **saved,
            "hit": cached / max(1.0, prompts), "most": max(each[2] for each in grown) / max(1.0, served),
        }  # fmt: skip
        return {
            name: round(float(found[name]), 4) if name in NUMBERS else str(found[name]) for name in FIELDS
        }

    def runs(self) -> Iterator[Row]:
        """All that the file does not have, all routers in turn."""
        arms = list(self._routers)
        warm = [self.measure(BURST, 0.0, -2, arm) for arm in arms]
        print("\n".join(map(line, warm)), flush=True)
        known = {(row["cell"], row["round"], row["arm"]) for row in self._rows}
        capacity = next((float(row["rate"]) for row in self._rows if row["cell"] == BURST.name), 0.0)
        if not capacity:
            row = self.measure(BURST, 0.0, -1, DEFAULT if DEFAULT in arms else arms[0])
            capacity = row["rate"] = row["rps"]
            yield row
        for turn in range(self._chosen.rounds):
            for cell in CELLS:
                if self._chosen.cell and cell.name not in self._chosen.cell:
                    continue
                some = [arm for arm in arms if cell.named or not BY_NAME[arm].by_session]
                for arm in in_turn(some, turn * len(some) // self._chosen.rounds):
                    if (cell.name, float(turn), arm) not in known:
                        yield self.measure(cell, cell.load * capacity, turn, arm)

    def run(self) -> list[Row]:
        begin = time.monotonic()
        for row in self.runs():
            self._rows.append(row)
            save(self._chosen.out, self._rows)
            print(f"{time.monotonic() - begin:5.0f} s  {line(row)}", flush=True)
        return self._rows


def line(row: Row) -> str:
    """What is said of a run as soon as it is done."""
    said = f"{row['cell']} {row['round']:.0f} {row['arm']}: hit {row['hit']:.3f}, TTFT {row['ttft']:.3f} s"
    said += f", p99 {row['ttft_p99']:.3f}, {row['rps']:.2f} requests/s in {row['wall_s']:.1f} s"
    return f"{said}, most {row['most']:.2f}, failed {row['failed']:.0f} of {row['requests']:.0f}"


def save(path: Path, rows: list[Row]) -> None:
    """All runs; whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("w", newline="") as sink:
        out = csv.DictWriter(sink, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    new.replace(path)


def main(chosen: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the servers would outlive this process
    with tempfile.TemporaryDirectory(prefix="peek-routers-") as folder, ExitStack() as stack:
        bench = Bench(chosen, Path(folder), stack)
        try:
            bench.start()
            rows = bench.run()
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
    print(table(rows))
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(options(sys.argv[1:])))
