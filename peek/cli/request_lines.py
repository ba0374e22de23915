"""Lines of a batch file: the request in each, and how they are written again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final

from peek import InvalidKey, WorkloadError
from peek.cli.batch_files import json_loads
from peek.offline.formats.requests import BatchRequest, key_of, parse_request

SHOWN_BAD_LINES: Final = 20


class LineReader:
    """Reads requests, and names the lines that are none.

    Attributes:
        bad: lines left out so far.
    """

    def __init__(self, source: Path, encode: Callable[[str], list[int]] | None) -> None:
        self.bad = 0
        self._source = source
        self._encode = encode
        self._loads = json_loads()

    def read(self, number: int, line: bytes) -> tuple[BatchRequest, bytes] | None:
        """The request of a line and its key; None for a bad one."""
        try:
            request = parse_request(line, self._loads)
            return request, key_of(request.prompt, self._encode)
        except (WorkloadError, InvalidKey) as error:
            self.bad += 1
            if self.bad <= SHOWN_BAD_LINES:
                print(f"peek: {self._source}: line {number}: {error}", file=sys.stderr)
            return None


def namespace_of(request: BatchRequest) -> str:
    """Token ids never share with text: the same number means something else."""
    kind = "" if isinstance(request.prompt, str) else "ids"
    return f"{request.namespace}/{kind}"


def order_line(number: int, custom_id: str) -> str:
    """A line of the order file: a JSON list of line number in IN and custom_id."""
    return json.dumps([number, custom_id])


def write_lines(stream: IO[bytes], order_file: IO[bytes], rows: Iterable[tuple[str, bytes]]) -> None:
    """Lines of the output, each with its line of the order file."""
    for order, line in rows:
        stream.write(line + b"\n")
        order_file.write(order.encode("ascii") + b"\n")
