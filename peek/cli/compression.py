"""Streams through gzip and zstandard, by the suffix of a name."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import IO, Any, Final

from peek.cli.extras import needs

COMPRESSED: Final = (".gz", ".zst")


def bare(path: Path) -> Path:
    """The path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def decompressing(raw: IO[bytes], path: Path) -> Any:
    """A stream of what is in `raw`, which may be read to its end."""
    if path.suffix == ".gz":
        return gzip.open(raw)
    if path.suffix == ".zst":
        return io.BufferedReader(
            _zstandard(path).ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        )
    return raw


def damage() -> tuple[type[Exception], ...]:
    """What reading a damaged stream raises."""
    kinds: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    try:
        import zstandard
    except ImportError:
        return kinds
    return (*kinds, zstandard.ZstdError)


def compressing(raw: IO[bytes], path: Path) -> Any:
    """A stream that writes into `raw`; closing it leaves `raw` open.  `raw` itself for a plain name."""
    if path.suffix == ".gz":
        return _GzipWriter(raw)
    if path.suffix == ".zst":
        return _zstandard(path).ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw


class _GzipWriter(io.RawIOBase):
    """A gzip stream without a name and a time: equal input, equal bytes.

    `gzip.GzipFile` keeps what it could not write, and from Python 3.12 on says so on stderr when it goes.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw = raw
        self._code = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """All of it, at once."""
        self._raw.write(self._code.compress(data))
        return memoryview(data).nbytes

    def close(self) -> None:
        """The end of the stream; it is closed, too, if that cannot be written."""
        if not self.closed:
            try:
                self._raw.write(self._code.flush())
            finally:
                super().close()


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise needs("zstandard", str(path)) from None
    return zstandard
