"""Files read line by line: plain or compressed, pipes and standard input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from peek import PeekError
from peek.cli.compression import damage, decompressing
from peek.cli.places import STREAM, standard_input
from peek.cli.progress import ProgressBar
from peek.cli.tables import is_table, table_lines
from peek.offline.formats.lines import Line, lines_of

LONGEST_LINE: Final = 256_000_000
"""Bytes: no request, but what an archive may unpack to."""

_SHOW_EVERY: Final = 1024
"""Lines between two looks at how far the file has been read."""


def read_lines(path: Path, what: str = "reading") -> Iterator[Line]:
    """The lines of a file that are not blank, or a table's rows; `what` stands before the progress bar.

    Raises `OSError` or `PeekError` for what cannot be read; both name the file.  Memory: one line.
    """
    if is_table(path):
        yield from table_lines(path)
        return
    with _opened(path) as raw, ProgressBar(_size(path), what) as progress:
        can_tell = raw.seekable()
        try:
            for line in lines_of(_short_lines(decompressing(raw, path), path)):
                if can_tell and line.number % _SHOW_EVERY == 0:
                    progress.show(raw.tell())
                yield line
        except damage() as error:
            raise PeekError(f"{path}: damaged: {error}") from None
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def _short_lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Lines of a stream; `PeekError` at one that is too long, before it is in memory."""
    number = 0
    while raw := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE:
            raise PeekError(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes")
        yield raw


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path == STREAM:
        yield standard_input()
    else:
        with path.open("rb") as raw:
            yield raw


def _size(path: Path) -> int | None:
    """Bytes to read, None where nobody knows."""
    return None if path == STREAM else path.stat().st_size or None
