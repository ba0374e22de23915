"""An engine's server and its client, each in a process of its own, and the server's counters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import randrange
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

START_S: Final = 300.0
"""Seconds within which a server must answer."""

TICKS: Final = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A server or a client ended, did not answer in time, or refused."""


def free_port() -> int:
    """Return a port below the ones that the kernel assigns by itself.

    While a server starts, its libraries (gloo's listeners, connections) take ports of the kernel's choice;
    one of these could be the port that its HTTP server binds last.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = randrange(max(1024, first - 20_000), first)
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's variables without `PEEK_*`, which could choose a policy, and with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PEEK_")} | more


def seconds_of(stat: str) -> tuple[int, float]:
    """Return session and CPU seconds of a process from its `/proc/N/stat`, whose name may have blanks."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[3]), (int(fields[11]) + int(fields[12])) / TICKS


def counted(text: str, name: str) -> float:
    """Return the sum over all labels of a metric on a page of Prometheus."""
    lines = (line for line in text.splitlines() if line.startswith(name))
    return sum(float(line.rpartition(" ")[2]) for line in lines if line[len(name)] in " {")


class Server:
    """A server that was started; call `close` in the end."""

    def __init__(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str], port: int, reset: str
    ) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._reset = reset
        self._log = folder / "server.log"
        with self._log.open("w") as sink:
            self._process = subprocess.Popen(
                command, cwd=folder, env=clean_environment(**environ), stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _ask(self, path: str, post: bool = False) -> str:
        request = Request(f"{self.address}{path}", b"" if post else None, method="POST" if post else "GET")
        with urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            Failed: it does not answer; with the end of its log.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._ask("/v1/models")
            except (URLError, ConnectionError):
                time.sleep(0.5)
            else:
                return
        raise Failed(f"{self._log}: the server does not answer:\n{self._log.read_text()[-2000:]}")

    def _ask_again(self, path: str, post: bool, failing: str) -> str:
        """Return the answer once it is none of HTTP's errors; `Failed` if that is so for ten seconds."""
        for _ in range(100):
            try:
                return self._ask(path, post)
            except HTTPError:
                time.sleep(0.1)
        raise Failed(f"{self._log}: {failing}")

    def empty(self) -> None:
        """Empty the cache; the server refuses this during a batch, and for a moment after its answers."""
        self._ask_again(self._reset, True, "the server is never idle")

    def page(self) -> str:
        """Return its metrics as the text that Prometheus reads.

        SGLang serves the files of its processes by `prometheus_client`, which fails while one is being made.
        """
        return self._ask_again("/metrics", False, "the server shows no metrics")

    def metrics(self, *names: str) -> list[float]:
        """Return the value of each of these counters; 0 if there is none."""
        text = self.page()
        return [counted(text, name) for name in names]

    def cpu_s(self) -> float:
        """Return the processor seconds of all its processes until now."""
        total = 0.0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                session, used_s = seconds_of(path.read_text())
                total += used_s if session == self._process.pid else 0.0
        return total

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Client:
    """An engine's benchmark client, kept for many runs; call `close` in the end."""

    def __init__(self, engine: str, python: Path, folder: Path, environ: Mapping[str, str]) -> None:
        self._log = folder / "client.log"
        with self._log.open("w") as sink:
            self._process = subprocess.Popen(
                [str(python), "-W", "ignore", str(Path(__file__).with_name("client.py")), engine],
                cwd=folder, env=clean_environment(**environ), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, start_new_session=True,
            )  # fmt: skip

    def run(self, arguments: Sequence[str], result: Path, limit_s: float) -> dict[str, Any]:
        """Return what the client saved of one run.

        Raises:
            Failed: the client ended, reported an error, or took longer than `limit_s`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(limit_s, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps({"arguments": arguments, "result": str(result)}) + "\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except BrokenPipeError:
            said = ""
        finally:
            watch.cancel()
        if not said:
            raise Failed(f"{self._log}: the client ended, or needed more than {limit_s:.0f} s")
        if json.loads(said) != "done":
            raise Failed(f"{self._log}: {json.loads(said)}")
        return dict(json.loads(result.read_text().splitlines()[-1]))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
