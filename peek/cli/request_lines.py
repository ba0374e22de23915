"""The lines of a batch file, understood; those that are not are named and left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from peek import InvalidKey, WorkloadError
from peek.cli.extras import json_loads
from peek.cli.reading import read_lines
from peek.offline.formats.echo import clipped
from peek.offline.formats.requests import key_of, kind_of, parse_request

SHOWN_BAD_LINES: Final = 20


class RequestLine(NamedTuple):
    """A line with a request.

    Attributes:
        number: of the line in its file, from 1.
        raw: the line with its end.
        has_end: False for the last line of a file that does not end in a line end.
        custom_id: the request's, "" where it has none.
        namespace: requests of different namespaces share nothing.
        system: the text of its system prompt, "" where it has none.
        key: the prompt, packed.
    """

    number: int
    raw: bytes
    has_end: bool
    custom_id: str
    namespace: str
    system: str
    key: bytes


class BadLines:
    """Names lines that are left out, the first ones on stderr.

    Attributes:
        count: so far.
    """

    def __init__(self, source: Path) -> None:
        self.count = 0
        self._source = source

    def leave_out(self, number: int, error: WorkloadError | InvalidKey) -> None:
        """Line `number` is no good."""
        self.count += 1
        if self.count <= SHOWN_BAD_LINES:
            reason = str(error) if isinstance(error, WorkloadError) else clipped(str(error))
            print(f"peek: {self._source}: line {number}:", " ".join(reason.split()), file=sys.stderr)

    def complain(self, fault: str = "") -> None:
        """`WorkloadError` if there were any, or for a fault of the whole: the work is done, not all of it."""
        said = [f"{self.count} bad line{'s' * (self.count > 1)} left out"] if self.count else []
        said += [fault] if fault else []
        if said:
            raise WorkloadError(f"{self._source}: {'; '.join(said)}")


class RequestLines:
    """Reads a batch file, once.

    Attributes:
        bad: lines left out so far.
    """

    def __init__(self, source: Path, encode: Callable[[str], list[int]] | None) -> None:
        self.bad = BadLines(source)
        self._source = source
        self._encode = encode
        self._loads = json_loads()

    def __iter__(self) -> Iterator[RequestLine]:
        """The requests in the order of the file; a line that is none is named on stderr."""
        for number, content, end in read_lines(self._source):
            try:
                request = parse_request(content, self._loads)
                key = key_of(request.prompt, self._encode)
            except (WorkloadError, InvalidKey) as error:
                self.bad.leave_out(number, error)
                continue
            namespace = f"{request.namespace}/{kind_of(request.prompt)}"
            yield RequestLine(
                number, content + end, bool(end), request.custom_id, namespace, request.system, key
            )
