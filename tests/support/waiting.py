"""Ports for servers, and time limits for waiting; they are generous, since a loaded machine is slow."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""For anything but the start of an engine: what has not come by then does not come."""
START_S = 900.0
"""For an engine's server, which loads for minutes where many others do."""

PORTS = range(21_000, 31_000)
"""Below those that systems give to whoever asks for any port, above those of Ray's workers."""

_claims: list[TextIO] = []


class Clock:
    """Stands still until a test sets it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def free_port() -> int:
    """A port that no other test takes while this process lives, and nothing else is likely to.

    A port that was bound and given back, as usual, may be somebody else's before the server has started.
    """
    folder = Path(tempfile.gettempdir(), f"ports-of-tests-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for step in range(len(PORTS)):
        port = PORTS[(os.getpid() * 101 + step) % len(PORTS)]
        claim = (folder / str(port)).open("w")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise AssertionError(f"no port is free in {PORTS}")


def until(true: Callable[[], T], what: str, within_s: float = PATIENCE_S, every_s: float = 0.001) -> T:
    """What `true` answers as soon as that is true; asked at least once, however late it is."""
    deadline = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:.0f} s"
        time.sleep(every_s)
    return found


def start_ray(**options: Any) -> Any:
    """`ray.init`, with time to start in: a part of Ray waits as long as it is told to, another 30 s at most.

    So it is tried again where the second has given up.  Returns the module.
    """
    import ray

    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(int(START_S)))  # read when Ray starts
    for tries_left in (2, 1, 0):
        try:
            ray.init(include_dashboard=False, **options)
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error) or not tries_left:
                raise
        else:
            break
    return ray
