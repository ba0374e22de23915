"""Records a trace, as salted block hashes, of what an engine's scheduler serves, from inside the engine.

Goals: never disturb the engine, never fill a disk, and write nothing from which a prompt can be read.

A prompt is hashed when it comes and then forgotten.  The salt is drawn at the start and never written.  A row
is one `write`, so a killed process loses no complete row.  At half of its allowed size the file becomes
`path.1`, in place of an older one.  Any error is logged once and ends the recording.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from errno import ENOSPC
from time import time
from typing import Any, Final, NamedTuple

from peek.adapters.containment import log_or_raise
from peek.adapters.engine_adapter import Statements
from peek.simulation.live import folded
from peek.traffic.tracer import BLOCK_TOKENS, Hashing

logger = logging.getLogger("peek")

MOST_OPEN: Final = 100_000
"""Most requests that have come and not ended; if there are more, the oldest are forgotten."""

MIB: Final = 2**20


class Asked(NamedTuple):
    """A request as an engine's scheduler knows it; `tokens` are its whole prompt."""

    name: str
    at_s: float
    tokens: Sequence[int]
    namespace: str = ""
    session: str = ""
    tenant: str = ""


class Recorder:
    """Writes a trace in Mooncake's format, times in milliseconds since 1970.

    An existing file `path` becomes `path.1`, and replaces an older `path.1`; both take `most_bytes` at most.
    Cost: two to three microseconds for each block of 16 tokens when a request comes, a write when it ends.

    Attributes:
        clock: seconds since 1970.
    """

    def __init__(self, path: str, most_bytes: int, clock: Callable[[], float] = time) -> None:
        self._path = path
        self._half = most_bytes // 2
        self.clock = clock
        self._hashing = Hashing(secrets.token_bytes(32), BLOCK_TOKENS)
        self._open: dict[str, dict[str, Any]] = {}
        self._size = 0
        self._file = self._opened()

    def _opened(self) -> int:
        """Open a new, empty file that only its owner may read."""
        if os.path.isfile(self._path):
            os.replace(self._path, f"{self._path}.1")
        self._size = 0
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def came(self, asked: Asked) -> None:
        """Note a request; ignored if one of the same name has not ended."""
        if asked.name in self._open:
            return
        key = folded(asked.tokens if len(asked.tokens) else [0])  # an image's values may be wide
        ids = self._hashing.ids(key, f"{asked.namespace}/ids")
        row: dict[str, Any] = {
            "timestamp": round(1000.0 * asked.at_s, 3),
            "input_length": len(key) // 4,
            "output_length": 0,
            "hash_ids": ids.tolist(),
            "block_tokens": BLOCK_TOKENS,
        }
        for field in ("tenant", "session"):
            if getattr(asked, field):
                row[field] = self._hashing.name(field, getattr(asked, field))
        self._open[asked.name] = row
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def ended(self, name: str, output_tokens: int) -> None:
        """Write the row of a request; an unknown one, or too long a row, is ignored."""
        row = self._open.pop(name, None)
        if row is None:
            return
        row["output_length"] = output_tokens
        line = json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"
        if self._size and self._size + len(line) > self._half:
            os.close(self._file)
            self._file = self._opened()
        if self._size + len(line) <= self._half:
            if os.write(self._file, line) < len(line):  # the disk is full: leave no incomplete row
                os.ftruncate(self._file, self._size)
                raise OSError(ENOSPC, os.strerror(ENOSPC), self._path)
            self._size += len(line)

    def forget(self, name: str) -> None:
        self._open.pop(name, None)


class Recording:
    """A recorder of `most_mib` that can be switched, and that never raises unless `strict`.

    Attributes:
        wanted: whether to write a trace; without a path none is written.
        served: the adapter's follower of requests, for an engine that does not say when they end.
        statements: reads what requests state; shared with the adapter, so that each fault is logged once.
    """

    def __init__(self, path: str, most_mib: int, strict: bool = False) -> None:
        self.served: Any = None
        self.statements = Statements()
        self._strict = strict
        self._path = path
        self._most_mib = most_mib
        self._recorder: Recorder | None = None
        self.wanted = bool(path)

    def __bool__(self) -> bool:
        return self.wanted and bool(self._path)

    def tell(self, what: Callable[[Recorder], None]) -> None:
        """Call `what` with the recorder, made at the first call; does nothing if no trace is written."""
        if not self:
            return
        try:
            if self._recorder is None:
                self._recorder = Recorder(self._path, self._most_mib * MIB)
                logger.warning("peek: writes a trace of salted hashes to %s", self._path)
            what(self._recorder)
        except Exception:
            self._path = ""
            log_or_raise(self._strict, "peek: the trace is no longer written")
