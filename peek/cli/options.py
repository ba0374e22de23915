"""Command lines: how a command declares its options, and what numbers, labels and paths on them mean.

A command is a function of one dataclass; `as_command` makes it known to typer.  Each field is an argument or
an option, and its default says what it is (`value`, `count`, ...): adding a flag means adding a field.
Numbers have parsers of their own because typer's messages do not name the value.

The path `-` is standard input or output (`./-` a file of that name).  A symbolic link names what it leads to.
A device or a named pipe is written to as it is; only a regular file can be replaced by a complete successor.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, field, fields
from functools import partial
from inspect import Parameter, Signature
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from peek import InvalidConfig, PeekConfig, PeekError, WorkloadError
from peek.simulation.simulate import Target

LARGEST_COUNT: Final = 100_000_000
"""Most tokens or rows: an arena of hundreds of accelerators, and still quick to set up."""

STREAM: Final = Path("-")
"""Standard input or output."""

COMPRESSED: Final = (".gz", ".zst")


class MissingExtra(PeekError, ImportError):
    """A package that this job needs is not installed."""


def needs(package: str, what: str, extra: str = "offline") -> MissingExtra:
    """The error for a missing optional package."""
    return MissingExtra(f"{what} needs {package}: pip install 'peek-kv[{extra}]'")


def as_command(work: Callable[[Any], None]) -> Callable[..., None]:
    """Make a function of one dataclass a command of typer; the dataclass's fields are its options.

    A field of type `typer.Context` gets the context.
    """
    kind = next(iter(get_type_hints(work).values()))
    hints = get_type_hints(kind)

    def command(**values: Any) -> None:
        work(kind(**values))

    parameters = []
    for each in fields(kind):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        default = Parameter.empty if default is MISSING else default
        if "typer" in each.metadata:
            hints[each.name] = Annotated[hints[each.name], each.metadata["typer"]]
        kind_of = Parameter.KEYWORD_ONLY
        parameters.append(Parameter(each.name, kind_of, default=default, annotation=hints[each.name]))
    made: Any = command
    made.__doc__, made.__annotations__ = work.__doc__, hints
    made.__signature__ = Signature(parameters)
    return command


# -- numbers and names ------------------------------------------------------------------------------------


def parse_seed(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an integer") from None


def parse_count(text: str) -> int:
    """Parse a number of tokens or rows."""
    count = parse_seed(text)
    if not 1 <= count <= LARGEST_COUNT:
        raise typer.BadParameter(f"{count} is not in 1..{LARGEST_COUNT}")
    return count


def parse_rate(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not (isfinite(rate) and rate > 0.0):
        raise typer.BadParameter(f"{str(text)!r} is not a finite number above 0")
    return rate


def parse_part(text: str) -> float:
    """Parse a number above 0 and up to 1."""
    part = parse_rate(text)
    if part > 1.0:
        raise typer.BadParameter(f"{str(text)!r} is not in 0..1")
    return part


def parse_slo(text: str) -> Target:
    """Parse seconds to the first token and, behind a comma, milliseconds for each of the others."""
    seconds, comma, milliseconds = str(text).partition(",")
    first_s = parse_rate(seconds)
    return Target(first_s, parse_rate(milliseconds)) if comma else Target(first_s)


def check_choice(option: str, value: str, valid: Iterable[str]) -> None:
    """Refuse a name that is not among the valid ones."""
    if value not in valid:
        shown = ", ".join(filter(None, valid))
        raise typer.BadParameter(f"{value!r} is unknown; valid: {shown}", param_hint=option)


@contextmanager
def as_usage_error(option: str, kind: type[PeekError], more: str = "") -> Iterator[None]:
    """Turn an error of the library into one of the command line, with `more` behind its text."""
    try:
        yield
    except kind as error:
        raise typer.BadParameter(f"{error}{more}", param_hint=option) from None


@contextmanager
def naming(source: object, more: str = "") -> Iterator[None]:
    """Put the name of a source before errors of what is in it, and `more` behind them."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(f"{source}: {error}{more}") from None


def policy_of(label: str) -> PeekConfig:
    """The settings behind a policy label; `module:Class` is also looked for in the working directory.

    Raises `InvalidConfig`.
    """
    if ":" in label and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: nothing installed is shadowed
    return PeekConfig.from_label(label)


def check_policies(labels: Sequence[str]) -> None:
    """Refuse a label of --policy that names no policy."""
    with as_usage_error("--policy", InvalidConfig):
        for label in labels:
            policy_of(label)


# -- paths ------------------------------------------------------------------------------------------------


def parse_source(text: str) -> Path:
    """Parse a path to read from."""
    path = Path(text)
    return path.absolute() if path == STREAM and text != "-" else path


def parse_target(text: str) -> Path:
    """Parse a path to write to; whatever is this process's standard output already is `STREAM`."""
    path = parse_source(text)
    with suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(1)):
            return STREAM
    return path


def _bare(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def beside(path: Path, suffix: str) -> Path:
    """`batch.jsonl.gz` -> `batch` + suffix, in the same folder."""
    return _bare(path).with_suffix(suffix)


def numbered(path: Path, number: int) -> Path:
    """`batch.jsonl.gz` -> `batch.3.jsonl.gz`."""
    plain = _bare(path)
    tail = plain.suffix + path.name[len(plain.name) :]
    return path.with_name(f"{plain.stem}.{number}{tail}")


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, or free to become one.  `OSError` where that cannot be told."""
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
            if path != STREAM:
                folders += [(role, shown, str(parent)) for parent in real_path(path).parents]
    for role, shown, parent in folders:
        if parent in taken:
            raise typer.BadParameter(f"{shown} cannot lie in {taken[parent]}", param_hint=role)


def _identities(path: Path, descriptor: int) -> list[object]:
    """What identifies a file: its place and its inode; of the standard streams, only regular files count."""
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


# -- fields of a command ------------------------------------------------------------------------------------


def read_path(metavar: str, text: str, default: Any = MISSING) -> Any:
    """An argument: a path to read from."""
    return as_field(typer.Argument(parser=parse_source, metavar=metavar, help=text), default)


def written_path(metavar: str, text: str) -> Any:
    """An argument: a path to write to."""
    return as_field(typer.Argument(parser=parse_target, metavar=metavar, help=text), MISSING)


Parser = Callable[[str], Any] | None


def value(text: str, default: Any, metavar: str | None = None, parser: Parser = None, *flags: str) -> Any:
    """An option with a value."""
    return as_field(typer.Option(*flags, parser=parser, metavar=metavar, help=text), default)


def count(text: str, default: int | None = None) -> Any:
    """An option: a number of tokens or rows."""
    return value(text, default, "INT", parse_count)


def positive(text: str, default: Any = None) -> Any:
    """An option: a finite number above 0."""
    return value(text, default, "FLOAT", parse_rate)


def switch(flag: str, text: str, default: bool | None = False) -> Any:
    """An option without a value."""
    return as_field(typer.Option(flag, help=text), default)


def as_field(told: Any, default: Any) -> Any:
    """A field of which typer is told this; `MISSING` for one that has to be given."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"typer": told})
    return field(default=default, metadata={"typer": told})


json_switch = partial(switch, "--json", "Print one JSON object instead of the table.")
tokenizer_path = partial(
    value, "Local tokenizer file; without one, four bytes of text count as a token.", None
)
