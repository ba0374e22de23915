"""Writes the output of all commands, so that no output file is ever incomplete.

A regular file is written beside its place, under a name that no other file has, synced and then renamed.
Until then the old file stays; if anything fails, the new one is removed.  The files of one run are renamed
together, so an order file always belongs to its output.  A process that is killed leaves
`NAME.<letters>.partial` files or, between two renames, the old files as `NAME.<letters>.old`; no run reads
them.  If hard links work, the first file (the order file) is in its place even then, old or new.  Devices,
pipes and standard output cannot be replaced and are written directly.
"""

from __future__ import annotations

import io
import lzma
import os
import secrets
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from peek import PeekError
from peek.cli.options import STREAM, is_regular, real_path
from peek.compressed import zstandard_for

NAME_CHARACTERS: Final = 50  # of a file's name in a temporary one; below 255 bytes even at four bytes each
_BUFFER_BYTES: Final = 1 << 17


class _NamedFile(io.FileIO):
    """A file that puts its name into write errors, because an `OSError` of a write has none."""

    def __init__(self, descriptor: int, shown: Path) -> None:
        super().__init__(descriptor, "wb")
        self._shown = str(shown)

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:  # `main` would take it for one of standard output
            raise PeekError(f"{self._shown}: its reader has gone") from None
        except OSError as error:
            error.filename = self._shown
            raise


def open_to_write(path: Path, flags: int, shown: Path | None = None) -> IO[bytes]:
    """Open a buffered file for writing; its errors name the file, as `shown` if that is given."""
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0) | flags, 0o666)
    return io.BufferedWriter(_NamedFile(descriptor, shown or path), _BUFFER_BYTES)


def in_utf8(text: str) -> bytes:
    """Encode text for a file; escapes the lone surrogates that names of files and tenants may have."""
    return text.encode("utf-8", "backslashreplace")


class _GzipWriter:
    """A gzip stream without name and time, so that equal input gives equal bytes.

    `gzip.GzipFile` is not used, because it keeps bytes that it could not write, and from Python 3.12 on
    reports them on stderr at its end.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._code: Any = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def write(self, data: bytes) -> None:
        self._raw.write(self._code.compress(data))

    def close(self) -> None:
        """Write the stream's end; a second call, as after a failure, does nothing."""
        code, self._code = self._code, None
        if code is not None:
            self._raw.write(code.flush())


def _compressing(raw: IO[bytes], path: Path) -> Any:
    """Return a compressing stream into `raw` whose `close` leaves `raw` open, or `raw` for a plain name."""
    if path.suffix == ".gz":
        return _GzipWriter(raw)
    if path.suffix == ".xz":
        return lzma.LZMAFile(raw, "wb")
    if path.suffix == ".zst":
        return zstandard_for(path).ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw


class _Output:
    """One output of `write_whole`.

    `folder` is where the file will appear; None if the output is written in place, and has nothing to
    publish, withdraw, keep or forget.
    """

    def __init__(self, path: Path) -> None:
        self.stream: Any = None
        self.folder: Path | None = None
        self._path = path
        self._published = False
        if path == STREAM:
            if sys.stdout is None:
                raise PeekError("standard output is closed")
            self._raw: IO[bytes] = sys.stdout.buffer
        elif is_regular(path):
            self._place = real_path(path)
            self.folder = self._place.parent
            name = f"{self._place.name[:NAME_CHARACTERS]}.{secrets.token_hex(6)}.partial"
            self._aside = self._place.with_name(name)
            self._old = self._aside.with_suffix(".old")
            self._raw = open_to_write(self._aside, os.O_CREAT | os.O_EXCL, path)
        else:
            self._raw = open_to_write(path, 0)

    def open(self) -> Any:
        self.stream = _compressing(self._raw, self._path)
        return self.stream

    def finish(self) -> None:
        """Write out everything, sync a regular file to the disk, and close the file."""
        if self.stream is not self._raw:
            self.stream.close()
        self._raw.flush()
        if self.folder is not None:
            with suppress(FileNotFoundError):
                self._aside.chmod(self._place.stat().st_mode & 0o777)
            try:
                os.fsync(self._raw.fileno())
            except OSError as error:
                error.filename = str(self._path)
                raise
        if self._path != STREAM:
            self._raw.close()

    def publish(self) -> None:
        self._aside.replace(self._place)
        self._published = True

    def withdraw(self) -> None:
        """Move the old file out of its place for now."""
        with suppress(FileNotFoundError):
            self._place.replace(self._old)

    def keep(self) -> None:
        """Give the old file a second name as well; move it out of its place if hard links do not work."""
        try:
            os.link(self._place, self._old)
        except OSError:
            self.withdraw()

    def forget(self) -> None:
        self._old.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the new file and bring the old one back, as far as possible."""
        for each in (self.stream, self._raw):
            if each is not None and self._path != STREAM:
                with suppress(OSError, ValueError, PeekError):  # this stream may be the one that failed
                    each.close()
        if self.folder is not None:
            (self._place if self._published else self._aside).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self._old.replace(self._place)
            self.forget()  # a rename between two names of one file leaves both


@contextmanager
def write_whole(paths: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
    """Yield streams that become files, in this order, once all are written; none if anything fails."""
    outputs: list[_Output] = []
    try:
        outputs.extend(map(_Output, paths))  # if the second cannot be opened, the first is in the list
        yield [output.open() for output in outputs]
        for output in outputs:
            output.finish()
        files = [output for output in outputs if output.folder is not None]
        with _locked({output.folder for output in outputs if output.folder is not None}):
            for file in files[1:]:
                file.withdraw()  # so that a kill between renames leaves no old file beside a new one
            if len(files) > 1:
                files[0].keep()
            for file in files:
                file.publish()
            for file in files:
                file.forget()
    except BaseException:
        for output in outputs:
            output.discard()
        raise


@contextmanager
def _locked(folders: set[Path]) -> Iterator[None]:
    """Keep other runs from renaming files in these folders, if folders can be locked."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with ExitStack() as stack:
        for folder in sorted(folders):  # all runs lock in one order, so no two wait for each other
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(targets: Sequence[Path], precious: str = "") -> Iterator[Path]:
    """Make a temporary folder, beside the first regular file among the targets if there is one.

    If an error is raised and the file `precious` in it is not empty, the folder stays, and stderr says so.
    """
    places = [real_path(path) for path in targets if is_regular(path)]
    name, parent = (f"{places[0].name[:NAME_CHARACTERS]}.", places[0].parent) if places else ("peek.", None)
    folder = Path(tempfile.mkdtemp(".work", name, parent))
    results, is_kept = folder / precious, False
    try:
        yield folder
    except BaseException:
        is_kept = results.is_file() and results.stat().st_size > 0
        if is_kept:
            print(f"peek: what there is of results is kept in {results}", file=sys.stderr)
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder)
