"""Runs an engine's server in its own process, sends it a burst, and switches `peek` meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from peek.adapters.metrics import LABELS, METRICS
from support.mixed import Asked
from support.waiting import PATIENCE_S, START_S

WORDS = ("off", "on", "shadow", "on")


class Answer(NamedTuple):
    """What was generated, as tokens and, with a tokenizer, as text; prompt tokens that were cached."""

    tokens: list[int]
    text: str
    cached: int


class Server:
    """The address of a server that answers, and its log."""

    def __init__(self, port: int, log: Path) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.log = log

    def ready(self) -> object:
        """Asked until it does not raise: then the server serves."""
        raise NotImplementedError

    def ask(self, tokens: list[int], most: int = 4, **more: Any) -> Answer:
        """Serve one prompt; `more`: its `rid`, a `salt`, a `regex` that its answer must match."""
        raise NotImplementedError

    def empty(self) -> None:
        """Empty the cache."""
        raise NotImplementedError

    def get(self, path: str) -> str:
        with urlopen(f"{self.address}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """The answer, JSON or text; `HTTPError` if the server refuses."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = Request(f"{self.address}{path}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=300) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def page(self) -> str:
        """The metrics; asked again if a process of the engine is just making the file that is read."""
        for _ in range(100):
            with suppress(HTTPError):
                return self.get("/metrics")
            time.sleep(0.1)
        return self.get("/metrics")

    def series(self, prefix: str = "peek_") -> dict[str, float]:
        """Those whose names begin so, by name and labels as they stand there."""
        lines = [line for line in self.page().splitlines() if line.startswith(prefix)]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric."""
        return sum(value for series, value in self.series(name).items() if series.split("{")[0] == name)


S = TypeVar("S", bound=Server)


@contextmanager
def started(server: S, command: list[str], here: Path, end_s: float, **environ: str) -> Iterator[S]:
    """Run the command of a server until it is left, in the folder of its log.

    Args:
        here: a folder of modules that it may load; its own is another.
        end_s: seconds that it has to end by itself.
        environ: what the environment has besides.
    """
    folder = server.log.parent
    path = [str(folder), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environ}
    with server.log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, server)
        yield server
    finally:
        if end_s:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(end_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            server.ready()
        except (URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    raise AssertionError(server.log.read_text()[-4000:])


def check_series(series: Iterable[str], engine: str) -> None:
    """All metrics are there, each with the labels that it has on every such server."""
    series = set(series)
    names = {one.split("{")[0] for one in series}
    for metric in METRICS:
        ending = {"counter": "_total", "histogram": "_count", "gauge": ""}[metric.kind]
        assert metric.name + ending in names
    for one in series:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', one))
        assert [labels[name] for name in LABELS] == [engine, "m", "0", "0"]


def say(folder: Path, word: str) -> None:
    """Write the control file `mode`, all at once."""
    (folder / "new").write_text(word)
    (folder / "new").rename(folder / "mode")


@contextmanager
def switching(folder: Path, every_s: float = 0.05) -> Iterator[None]:
    """Another word all the time."""
    done = threading.Event()

    def switch() -> None:
        for word in itertools.cycle(WORDS):
            say(folder, word)
            if done.wait(every_s):
                return

    hand = threading.Thread(target=switch)
    hand.start()
    try:
        yield
    finally:
        done.set()
        hand.join()


def all_at_once(
    ask: Callable[[Asked], Any],
    requests: Sequence[Asked],
    refused: int = 0,
    then: Callable[[], object] = lambda: None,
) -> dict[str, list[Any]]:
    """The answers by id; for one that was refused, the number of the HTTP error.

    Args:
        ask: sends one request.
        requests: with a client each.
        refused: how many will be refused, before anybody is served.
        then: called once they have been.
    """

    def answer(asked: Asked) -> Any:
        try:
            return ask(asked)
        except HTTPError as error:
            return error.code

    found: dict[str, list[Any]] = {asked.rid: [] for asked in requests}
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = [clients.submit(answer, asked) for asked in requests]
        while sum(one.done() for one in answers) < refused:
            wait([one for one in answers if not one.done()], return_when=FIRST_COMPLETED)
        then()
        for asked, one in zip(requests, answers, strict=True):
            found[asked.rid].append(one.result())
    return found


def admissions(path: Path) -> list[tuple[str, list[str]]]:
    """The mode and the names of each batch, in order, as a watched scheduler notes them."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(mode, names) for mode, *names in lines]


def changes(batches: list[tuple[str, list[str]]]) -> int:
    """How often the mode changed from one batch to the next."""
    return sum(one[0] != two[0] for one, two in itertools.pairwise(batches))
