"""The writer of all commands: output that is never half there.

A regular file is written beside its place, under a name that no other file has, synced and then renamed.
Until then the old file stands, and if anything fails the new one goes.  Two runs at a time never share a
name, and the files of one run are renamed together, so that an order file always belongs to its output.  A
process that is killed leaves a file `NAME.<letters>.partial` behind, or between two renames the old ones as
`NAME.<letters>.old`; no run reads them.  The first of several, the order file, is then in its place all the
same, old or new.  Devices, pipes and standard output cannot be replaced and get their bytes at once.
"""

from __future__ import annotations

import io
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
from peek.cli.reading import zstandard_for

NAME_CHARACTERS: Final = 50
"""Characters of a file's name that its successor keeps: at four bytes each, far below the limit of 255."""

_BUFFER_BYTES: Final = 1 << 17


class _NamedFile(io.FileIO):
    """A file that names itself when it cannot be written: `OSError` of a write has no name."""

    def __init__(self, descriptor: int, shown: Path) -> None:
        super().__init__(descriptor, "wb")
        self._shown = str(shown)

    def write(self, data: Any) -> int:
        """As `FileIO.write`."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:  # for `main` a bare one is that of standard output
            raise PeekError(f"{self._shown}: its reader has gone") from None
        except OSError as error:
            error.filename = self._shown
            raise


def open_to_write(path: Path, flags: int, shown: Path | None = None) -> IO[bytes]:
    """Open a buffered file whose errors name it, as `shown` if that is given."""
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0) | flags, 0o666)
    return io.BufferedWriter(_NamedFile(descriptor, shown or path), _BUFFER_BYTES)


class _GzipWriter(io.RawIOBase):
    """A gzip stream without a name and a time: equal input, equal bytes.

    `gzip.GzipFile` keeps what it could not write, and from Python 3.12 on reports it on stderr at its end.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw = raw
        self._code = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def writable(self) -> bool:
        """As `RawIOBase`."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it at once."""
        self._raw.write(self._code.compress(data))
        return memoryview(data).nbytes

    def close(self) -> None:
        """End the stream; it counts as closed even if the end cannot be written."""
        if not self.closed:
            try:
                self._raw.write(self._code.flush())
            finally:
                super().close()


def _compressing(raw: IO[bytes], path: Path) -> Any:
    """A stream that writes into `raw`; closing it leaves `raw` open.  `raw` itself for a plain name."""
    if path.suffix == ".gz":
        return _GzipWriter(raw)
    if path.suffix == ".zst":
        return zstandard_for(path).ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw


class _Output:
    """One stream of `write_whole`.

    Attributes:
        stream: what to write to.
        folder: where the file will appear; None if it is written in place.
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
        """The stream, compressing if the name asks for it."""
        self.stream = _compressing(self._raw, self._path)
        return self.stream

    def finish(self) -> None:
        """Bring everything that has been written to the disk."""
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
        """Put the file in its place."""
        if self.folder is not None:
            self._aside.replace(self._place)
            self._published = True

    def withdraw(self) -> None:
        """Take the old file out of its place, for the moment."""
        if self.folder is not None:
            with suppress(FileNotFoundError):
                self._place.replace(self._old)

    def keep(self) -> None:
        """Keep the old file by a second name as well; take it out of its place where files have only one."""
        if self.folder is not None:
            try:
                os.link(self._place, self._old)
            except FileNotFoundError:
                pass
            except OSError:
                self.withdraw()

    def forget(self) -> None:
        """Remove the old file, which is no longer needed."""
        if self.folder is not None:
            self._old.unlink(missing_ok=True)

    def discard(self) -> None:
        """Take everything back that can be taken back."""
        for each in (self.stream, self._raw):
            if each is not None and self._path != STREAM:
                with suppress(OSError, ValueError, PeekError):  # it may be what has failed
                    each.close()
        if self.folder is not None:
            (self._place if self._published else self._aside).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self._old.replace(self._place)
            self.forget()  # two names of one file both stay after a rename


@contextmanager
def write_whole(paths: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
    """Streams that become files when all is written, in the order given, and not at all otherwise."""
    outputs: list[_Output] = []
    try:
        outputs.extend(map(_Output, paths))  # one by one: if the second cannot be opened the first is known
        yield [output.open() for output in outputs]
        for output in outputs:
            output.finish()
        with _locked({output.folder for output in outputs if output.folder is not None}):
            if len(outputs) > 1:
                for output in outputs[1:]:
                    output.withdraw()  # killed between two renames, no old file stands beside a new one
                outputs[0].keep()
            for output in outputs:
                output.publish()
            for output in outputs:
                output.forget()
    except BaseException:
        for output in outputs:
            output.discard()
        raise


@contextmanager
def _locked(folders: set[Path]) -> Iterator[None]:
    """Keep other runs from renaming anything in these folders; where folders cannot be locked, they may."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with ExitStack() as stack:
        for folder in sorted(folders):  # one order for all, or two runs wait for each other
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(targets: Sequence[Path], precious: str = "") -> Iterator[Path]:
    """A new folder for the time being, beside the first regular file among the targets, if there is one.

    If something fails and the file `precious` in it holds anything, the folder stays, and stderr says so.
    """
    places = [real_path(path) for path in targets if is_regular(path)]
    name, parent = (f"{places[0].name[:NAME_CHARACTERS]}.", places[0].parent) if places else ("peek.", None)
    folder = Path(tempfile.mkdtemp(".work", name, parent))
    try:
        yield folder
    except BaseException:
        kept = folder / precious
        if precious and kept.exists() and kept.stat().st_size:
            print(f"peek: what there is of results is kept in {kept}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
