"""Reads files that may be compressed by gzip, xz or Zstandard; the last needs a package."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib
from pathlib import Path
from typing import IO, Any, Final

from peek.errors import needs

_BYTES: Final = 1024
"""Bytes of an archive that are unpacked at once; they become 32 MiB at most."""

_KINDS: Final = {  # by ending of the name: the kind and the first bytes of its content
    ".gz": ("gzip", b"\x1f\x8b"),
    ".xz": ("xz", b"\xfd7zXZ\x00"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}


def unpacked(raw: IO[bytes], path: Path) -> tuple[str, Any]:
    """Return how a file is compressed ("" for not at all) and the binary stream of its content.

    Content counts before the name.  `MissingExtra` if Zstandard is needed and not installed; reading the
    stream may raise one of `damage()`.  `raw` need not be seekable; none of it is lost, and it stays open.
    """
    stream: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    start = stream.peek(6)
    by_content = [ending for ending, (_, magic) in _KINDS.items() if start.startswith(magic)]
    ending = [*by_content, path.suffix][0]
    if ending not in _KINDS:
        return "", stream
    kind, _ = _KINDS[ending]
    if kind == "gzip":
        return kind, gzip.open(stream)
    if kind == "xz":
        return kind, lzma.open(stream)
    return kind, io.BufferedReader(_Frames(stream, zstandard_for(path).ZstdDecompressor()))


class _Frames(io.RawIOBase):
    """Frames of Zstandard, one after the other; `EOFError` if the last one is cut off.

    `ZstdDecompressor.stream_reader` would take a cut-off archive for a short one.
    """

    def __init__(self, packed: Any, decompressor: Any) -> None:
        self._packed = packed
        self._decompressor = decompressor
        self._frame = decompressor.decompressobj()
        self._begun = False
        """Whether the frame has begun and not ended."""
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            packed = self._frame.unused_data or self._packed.read(_BYTES)
            if not packed:
                if self._begun:
                    raise EOFError("compressed file ended before the end of a frame was reached")
                return 0
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._left = memoryview(self._frame.decompress(packed))
            self._begun = not self._frame.eof
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def damage() -> tuple[type[Exception], ...]:
    """Return the errors that a damaged archive raises while it is read."""
    found = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
    zstandard: Any = sys.modules.get("zstandard")  # there, if an archive needs it
    return (*found, zstandard.ZstdError) if zstandard else found


def bare(path: Path) -> Path:
    """Return a path without the ending that says how the file is compressed."""
    return path.with_suffix("") if path.suffix in _KINDS else path


def zstandard_for(path: Path) -> Any:
    """Return the module `zstandard`; `MissingExtra` names the file that needs it."""
    try:
        import zstandard
    except ImportError:
        raise needs("zstandard", str(path)) from None
    return zstandard
