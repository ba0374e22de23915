"""A burst at a real server, and the file that switches `peek` while it serves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from support.mixed import Asked

WORDS = ("off", "on", "shadow", "on")


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
    """The answers by id; for who was refused, the number of the HTTP error.

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
