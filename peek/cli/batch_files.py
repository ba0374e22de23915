"""Batch files: lines of plain or compressed files, and output that is never half there."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from peek import PeekError
from peek.cli.progress import ProgressBar

COMPRESSED: Final = (".gz", ".zst")
PARTIAL: Final = ".partial"
"""Behind the name of a file that is being written."""


class MissingExtra(PeekError, ImportError):
    """A package that this job needs is not installed."""


def needs(package: str, what: str, extra: str = "offline") -> MissingExtra:
    """The error for a missing optional package."""
    return MissingExtra(f"{what} needs {package}: pip install 'peek-kv[{extra}]'")


def json_loads() -> Callable[[bytes], Any]:
    """The fastest JSON parser there is."""
    try:
        import orjson
    except ImportError:
        return json.loads
    loads: Callable[[bytes], Any] = orjson.loads
    return loads


def bare(path: Path) -> Path:
    """The path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def beside(path: Path, suffix: str) -> Path:
    """`batch.jsonl.gz` -> `batch` + suffix, in the same folder."""
    return bare(path).with_suffix(suffix)


def numbered(path: Path, number: int) -> Path:
    """`batch.jsonl.gz` -> `batch.3.jsonl.gz`."""
    plain = bare(path)
    tail = plain.suffix + path.name[len(plain.name) :]
    return path.with_name(f"{plain.stem}.{number}{tail}")


def read_lines(path: Path, what: str = "reading") -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and lines without their line ends; blank lines are left out.

    Raises `OSError` or `PeekError` for what cannot be read.  Memory: one line.
    """
    with path.open("rb") as raw, ProgressBar(path.stat().st_size, what) as progress:
        stream = _decompressed(raw, path)
        try:
            for number, line in enumerate(stream, start=1):
                if number % 1024 == 0:
                    progress.show(raw.tell())
                stripped = line.rstrip(b"\r\n")
                if stripped.strip():
                    yield number, stripped
        except (EOFError, gzip.BadGzipFile, _zstd_error()) as error:
            raise PeekError(f"{path}: damaged: {error}") from None


def _decompressed(raw: IO[bytes], path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(raw)
    if path.suffix == ".zst":
        return io.BufferedReader(
            _zstandard(path).ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        )
    return raw


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise needs("zstandard", str(path)) from None
    return zstandard


def _zstd_error() -> type[Exception]:
    try:
        import zstandard
    except ImportError:
        return EOFError
    error: type[Exception] = zstandard.ZstdError
    return error


@contextmanager
def write_whole(paths: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
    """Files to write that appear under their names when all is written, and not at all otherwise.

    They are written beside, as `NAME.partial`, synced and then renamed, in the order given.  A process that
    is killed leaves a `.partial` behind, which the next run overwrites.
    """
    asides = [path.with_name(path.name + PARTIAL) for path in paths]
    opened: list[IO[bytes]] = []
    raws: list[Any] = []
    try:
        for path, aside in zip(paths, asides, strict=True):
            raw = aside.open("wb")
            raws.append(raw)
            opened.append(_compressing(raw, path))
        yield opened
        for stream, raw in zip(opened, raws, strict=True):
            if stream is not raw:
                stream.close()
            raw.flush()
            os.fsync(raw.fileno())
            raw.close()
    except BaseException:
        for raw, aside in zip(raws, asides, strict=False):
            raw.close()
            aside.unlink(missing_ok=True)
        raise
    for path, aside in zip(paths, asides, strict=True):
        aside.replace(path)


def _compressing(raw: IO[bytes], path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile("", "wb", 6, raw, mtime=0)  # no name, no time: equal input, equal bytes
    if path.suffix == ".zst":
        return _zstandard(path).ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw
