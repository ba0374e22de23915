"""Parquet files: their rows as lines of JSON, and rows of one in another order.

A row is a request as a line of a batch file is: columns `custom_id` and `body` or `params` (JSON text or a
struct), or a body's own: `messages`, `prompt`, `input`, `prompt_token_ids`, `tokens`, `model`, `system`, ...
Empty cells are not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import typer

from peek import PeekError
from peek.cli.extras import needs
from peek.offline.formats.echo import clipped
from peek.offline.formats.lines import Line

SUFFIX: Final = ".parquet"

_BATCH_ROWS: Final = 1024
"""Rows in memory while a file is read."""


def is_table(path: Path) -> bool:
    """Whether a path is that of a Parquet file, by its name."""
    return path.suffix == SUFFIX


def check_tables(source: Path, target: Path, out_of_core: bool) -> None:
    """Wrong usage: a table that would have to be made from lines."""
    if is_table(target) and not is_table(source):
        raise typer.BadParameter(f"{target}: a table can only be made from a table", param_hint="OUT")
    if is_table(target) and out_of_core:
        raise typer.BadParameter(f"{target}: out of core, only lines are written", param_hint="OUT")


def table_lines(path: Path) -> Iterator[Line]:
    """The rows as JSON, numbered from 1.  `PeekError` if the file is damaged."""
    with _opened(path) as file:
        number = 0
        for batch in file.iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield Line(number, _as_json(row), b"\n")


def copy_rows(path: Path, numbers: Sequence[int], stream: IO[bytes]) -> None:
    """Write rows of a table, by their numbers from 1, as a table with its columns.  Memory: two tables."""
    with _opened(path) as file:
        import pyarrow.parquet

        table = file.read().take([number - 1 for number in numbers])
        pyarrow.parquet.write_table(table, stream)


def _as_json(row: dict[str, Any]) -> bytes:
    found = {name: value for name, value in row.items() if value is not None}
    for name in ("body", "params"):
        if isinstance(found.get(name), str):
            with suppress(ValueError, RecursionError):  # what is wrong is said where requests are read
                found[name] = json.loads(found[name])
    return json.dumps(found, default=str).encode()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise needs("pyarrow", str(path)) from None
    path.stat()  # its error names the file
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise PeekError(f"{path}: damaged: {clipped(str(error))}") from None
