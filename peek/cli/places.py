"""What the paths of a command line name, and which of them must not be one and the same.

`-` is standard input or output (`./-` a file of that name).  A symbolic link names what it leads to.  A
device or a named pipe is written to as it is; only a regular file can be replaced by a complete successor.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import typer

from peek import PeekError
from peek.cli.compression import bare

STREAM: Final = Path("-")
"""Standard input or output."""


def parse_source(text: str) -> Path:
    """A path to read from."""
    path = Path(text)
    return path.absolute() if path == STREAM and text != "-" else path


def parse_target(text: str) -> Path:
    """A path to write to; whatever is this process's standard output already is `STREAM`."""
    path = parse_source(text)
    with suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(1)):
            return STREAM
    return path


def beside(path: Path, suffix: str) -> Path:
    """`batch.jsonl.gz` -> `batch` + suffix, in the same folder."""
    return bare(path).with_suffix(suffix)


def numbered(path: Path, number: int) -> Path:
    """`batch.jsonl.gz` -> `batch.3.jsonl.gz`."""
    plain = bare(path)
    tail = plain.suffix + path.name[len(plain.name) :]
    return path.with_name(f"{plain.stem}.{number}{tail}")


def is_regular(path: Path) -> bool:
    """Whether a regular file is there, or nothing, so that one can be made.  `OSError`: nobody can tell."""
    if path == STREAM:
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def real_path(path: Path) -> Path:
    """Where the links of a path lead; the last name need not exist."""
    return Path(os.path.realpath(path))


def check_target(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    check_no_folder(path)
    if is_regular(path) and not real_path(path).parent.is_dir():
        raise PeekError(f"{path}: no such folder: {real_path(path).parent}")


def check_no_folder(path: Path) -> None:
    """Refuse a folder as a target."""
    if path != STREAM and path.is_dir():
        raise PeekError(f"{path}: is a folder")


Named = Iterable[tuple[str, Path]]
"""Arguments and options by name, and the path of each."""


def refuse_clashes(read: Named, written: Named) -> None:
    """`BadParameter` if two of these are one file, by whatever name, or one would have to lie in another."""
    taken: dict[object, str] = {}
    folders: list[tuple[str, str, str]] = []
    for descriptor, group in ((0, read), (1, written)):
        for role, path in group:
            shown = f"{role} {path}"
            for key in _identities(path, descriptor):
                if key in taken:
                    raise typer.BadParameter(f"{shown} is the same file as {taken[key]}", param_hint=role)
            taken.update(dict.fromkeys(_identities(path, descriptor), shown))
            folders += [(role, shown, str(parent)) for parent in _parents(path)]
    for role, shown, parent in folders:
        if parent in taken:
            raise typer.BadParameter(f"{shown} cannot lie in {taken[parent]}", param_hint=role)


def _identities(path: Path, descriptor: int) -> list[object]:
    """What tells a file: where it is, and which; of the standard streams only regular files count."""
    found: list[object] = []
    with suppress(OSError):
        if path == STREAM:
            found.append(descriptor)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return found
        else:
            found.append(os.path.realpath(path))
            status = path.stat()
        found.append((status.st_dev, status.st_ino))
    return found


def _parents(path: Path) -> Iterable[Path]:
    return () if path == STREAM else Path(os.path.realpath(path)).parents


def standard_input() -> IO[bytes]:
    """Standard input, as bytes."""
    if sys.stdin is None:
        raise PeekError("standard input is closed")
    return sys.stdin.buffer


def standard_output() -> IO[bytes]:
    """Standard output, as bytes."""
    if sys.stdout is None:
        raise PeekError("standard output is closed")
    return sys.stdout.buffer
