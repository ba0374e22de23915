"""Reads the input of all commands: lines of a plain or compressed file or a pipe, or rows of a Parquet table.

A row of a table is a request, as a line of a batch file is.  Its columns are `custom_id` and `body` or
`params` (JSON text or a struct), or the fields of a body, as `messages`.  Empty cells are left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from peek import InvalidKey, PeekError, WorkloadError
from peek.cli.options import STREAM
from peek.compressed import damage, unpacked
from peek.errors import needs
from peek.offline.formats import Encode, Line, Loads, excerpt, lines_of

LONGEST_LINE: Final = 256_000_000  # bytes: more than any request, and a bound on an unpacked archive's lines
SHOWN_FAULTS: Final = 20  # most faults of lines that are named on stderr; all lines are counted
MISTRAL_NAMES: Final = ("tekken", "tokenizer.model")  # beginnings of the names of Mistral's tokenizer files

_TABLE_ROWS: Final = 1024  # number of rows in memory while a table is read
_SHOW_EVERY: Final = 1024  # number of lines between two updates of the progress
_REFRESH_S: Final = 0.1

_Made = TypeVar("_Made")


class ProgressBar(Progress):
    """One bar over all parts of a job of size `total`; shown only if stderr is a terminal.

    It draws only when `show` is called, because a separate thread would disturb measurements.
    """

    def __init__(self, total: int | None, what: str = "") -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            disable=sys.stderr is None or not sys.stderr.isatty(),
        )
        self._all = self.add_task(what, total=total)
        self._before: int = 0
        self._done: int = 0
        self._drawn_s: float = 0.0

    def stop(self) -> None:
        if not self.disable:  # rich below 14.3 prints an empty line even for a bar that is not shown
            super().stop()

    def next_part(self, what: str) -> None:
        """Begin another part; the progress of the parts before it stays."""
        self._before += self._done
        self._done = 0
        self.update(self._all, description=what, refresh=True)

    def show(self, done: int) -> None:
        """Show how much of the current part is done, in the unit of `total`."""
        self._done = done
        now = time.perf_counter()
        if now - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now
            self.update(self._all, completed=self._before + done, refresh=True)


# -- lines ------------------------------------------------------------------------------------------------


def json_loads() -> Loads:
    """Return the fastest installed JSON parser; text that it refuses, such as NaN, goes to `json`."""
    try:
        import orjson
    except ImportError:
        return json.loads

    def loads(text: Any) -> Any:
        try:
            return orjson.loads(text)
        except ValueError:
            return json.loads(text)

    return loads


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file that are not blank, or a table's rows as JSON.

    Raises `OSError` or `PeekError` if the file cannot be read; both name it.  Memory: one line.
    """
    if is_table(path):
        with _opened_table(path) as file:
            rows = (row for batch in file.iter_batches(_TABLE_ROWS) for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield Line(number, _as_json(row), b"\n")
        return
    if path == STREAM and sys.stdin is None:
        raise PeekError("standard input is closed")
    total = None if path == STREAM else path.stat().st_size or None
    opened: Any = nullcontext(sys.stdin.buffer) if path == STREAM else path.open("rb")
    with opened as raw, ProgressBar(total, "reading") as progress:
        can_tell = raw.seekable()
        try:
            for line in lines_of(_short_lines(unpacked(raw, path)[1], path)):
                if can_tell and line.number % _SHOW_EVERY == 0:
                    progress.show(raw.tell())
                yield line
        except damage() as error:
            raise PeekError(f"{path}: damaged: {error}") from None
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def _short_lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of a stream; `PeekError` for too long a line, before all of it is read."""
    for number, raw in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
        if len(raw) > LONGEST_LINE:
            raise PeekError(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes")
        yield raw


# -- Parquet ----------------------------------------------------------------------------------------------


def is_table(path: Path) -> bool:
    return path.suffix == ".parquet"


def copy_rows(path: Path, numbers: Sequence[int], stream: IO[bytes]) -> None:
    """Write the rows with these numbers, from 1 on, as a table of the same columns.  Memory: two tables."""
    with _opened_table(path) as file:
        import pyarrow.parquet

        table = file.read().take(pyarrow.array([number - 1 for number in numbers], pyarrow.int64()))
        pyarrow.parquet.write_table(table, stream)


def _as_json(row: dict[str, Any]) -> bytes:
    found = {name: value for name, value in row.items() if value is not None}
    for name in ("body", "params"):
        if isinstance(found.get(name), str):
            with suppress(ValueError, RecursionError):  # the parser of requests reports the fault
                found[name] = json.loads(found[name])
    return json.dumps(found, default=str).encode()


@contextmanager
def _opened_table(path: Path) -> Iterator[Any]:
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
        raise PeekError(f"{path}: damaged: {excerpt(str(error))}") from None


# -- counts, and lines that are left out ------------------------------------------------------------------


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


class BadLines:
    """Counts the lines that are left out (`count`); names the first with each fault on stderr."""

    def __init__(self, source: Path) -> None:
        self.count = 0
        self._source = source
        self._told: set[str] = set()

    @contextmanager
    def leaving_out(self, number: int) -> Iterator[None]:
        """Leave line `number` out if it is no request, or has no valid prompt."""
        try:
            yield
        except WorkloadError as error:
            self.leave_out(number, str(error))
        except InvalidKey as error:  # it quotes the prompt
            self.leave_out(number, excerpt(str(error)))

    def leave_out(self, number: int, fault: str) -> None:
        self.count += 1
        reason = " ".join(fault.split())
        if reason not in self._told and len(self._told) < SHOWN_FAULTS:
            self._told.add(reason)
            print(f"peek: {self._source}: line {number}: {reason}", file=sys.stderr)

    def made(self, lines: Iterable[Line], make: Callable[[Line], _Made]) -> Iterator[tuple[Line, _Made]]:
        """Yield each line with what is made of it, without the lines that are left out."""
        for line in lines:
            with self.leaving_out(line.number):
                yield line, make(line)

    def complain(self, fault: str = "") -> None:
        """Raise `WorkloadError` if lines were left out or there is a `fault`; call it last."""
        left_out = f"{counted(self.count, 'bad line')} left out" if self.count else ""
        if left_out or fault:
            raise WorkloadError(f"{self._source}: {'; '.join(filter(None, (left_out, fault)))}")


# -- tokenizers -------------------------------------------------------------------------------------------


def tokenizer_file(path: Path | None) -> Path | None:
    """Return the path of a tokenizer file, given that path or its folder; `PeekError` if there is none."""
    if path is not None and path.is_dir():
        names = ("tokenizer.json", "tekken.json", "tokenizer.model")
        found = [path / name for name in names if (path / name).exists()]
        if not found:
            raise PeekError(f"{path}: has none of {', '.join(names)}")
        return found[0]
    if path is not None and not path.exists():
        raise PeekError(f"{path}: no such file")
    return path


def load_tokenizer(path: Path | None) -> Encode | None:
    """Return a function from text to token ids, made from a local file or its folder; None for no path.

    The file is Hugging Face's `tokenizer.json` or Mistral's `tekken.json` or `tokenizer.model*`.  No special
    tokens are added, as they are the same at the start of every prompt.  Nothing is downloaded.
    """
    path = tokenizer_file(path)
    if path is None:
        return None
    package, option = "tokenizers", "--tokenizer"
    try:
        if path.name.startswith(MISTRAL_NAMES):
            package, option = "mistral-common", f"--tokenizer {path.name}"
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

            mistral: Any = MistralTokenizer.from_file(str(path)).instruct_tokenizer.tokenizer
            return lambda text: mistral.encode(text, bos=False, eos=False)
        from tokenizers import Tokenizer

        tokenizer: Any = Tokenizer.from_file(str(path))
    except ImportError:
        raise needs(package, option) from None
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception, Mistral's library anything
        raise PeekError(f"{path}: not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
