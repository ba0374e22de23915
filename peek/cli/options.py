"""Command lines: how a command declares its options, and what numbers, labels and paths in them mean.

A command is a function of one dataclass.  Each field is an argument or an option; its default says which.
Numbers have their own parsers, because typer's messages do not name the bad value.

The path `-` is standard input or output, and `./-` a file of that name.  A symbolic link stands for its
target.  A device or a named pipe is written in place; only a regular file can be replaced by a new one.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from inspect import Parameter, Signature
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from peek import InvalidConfig, PeekConfig, PeekError, WorkloadError
from peek.compressed import bare
from peek.offline.formats import excerpt, excerpt_of
from peek.simulation.simulate import Target

LARGEST_COUNT: Final = 100_000_000  # the arena of hundreds of accelerators, and still quick to set up
STREAM: Final = Path("-")  # path that stands for standard input or output


def as_command(work: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command of typer from a function of one dataclass, whose fields become the options.

    A field of type `typer.Context` receives the context.
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
        parameters.append(
            Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name])
        )
    made: Any = command
    made.__doc__, made.__annotations__, made.__signature__ = work.__doc__, hints, Signature(parameters)
    return command


@dataclass(frozen=True)
class OfContext:
    """Base of options whose command asks which of them were given."""

    ctx: typer.Context

    def is_given(self, name: str) -> bool:
        """Whether an option is on the command line, even if its value is the default."""
        source = self.ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"


# -- numbers and names ------------------------------------------------------------------------------------


def parse_seed(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        fault = "has too many digits" if "digits" in str(error) else "is not an integer"
        raise typer.BadParameter(f"{excerpt_of(text)} {fault}") from None


def parse_count(text: str, most: int = LARGEST_COUNT) -> int:
    count = parse_seed(text)
    if not 1 <= count <= most:
        raise typer.BadParameter(f"{excerpt(str(count))} is not in 1..{most}")
    return count


def _parse(text: str, what: str, is_valid: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not (isfinite(number) and is_valid(number)):
        raise typer.BadParameter(f"{excerpt_of(str(text))} is not {what}")
    return number


def parse_rate(text: str) -> float:
    return _parse(text, "a finite number above 0", lambda number: number > 0.0)


def parse_seconds(text: str) -> float:
    return _parse(text, "a finite number from 0", lambda number: number >= 0.0)


def parse_part(text: str) -> float:
    parse_rate(text)
    return _parse(text, "in 0..1", lambda number: number <= 1.0)


def parse_slo(text: str) -> Target:
    """Parse a target: seconds to the first token and, after a comma, milliseconds per further token."""
    seconds, comma, milliseconds = str(text).partition(",")
    first_s = parse_rate(seconds)
    return Target(first_s, parse_rate(milliseconds)) if comma else Target(first_s)


def check_choice(option: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        shown = ", ".join(filter(None, valid))
        raise typer.BadParameter(f"{value!r} is unknown; valid: {shown}", param_hint=option)


@contextmanager
def as_usage_error(option: str, more: str = "") -> Iterator[None]:
    """Turn an error of the library into a `BadParameter` of this option, with `more` after its text."""
    try:
        yield
    except (InvalidConfig, WorkloadError) as error:
        raise typer.BadParameter(f"{error}{more}", param_hint=option) from None


@contextmanager
def naming(*sources: object) -> Iterator[None]:
    """Put the names of sources before the text of a `WorkloadError` in their contents."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(f"{', '.join(map(str, sources))}: {error}") from None


def policy_of(label: str) -> PeekConfig:
    """Return the settings that a policy label stands for; `InvalidConfig` if it makes no policy.

    The module of a `module:Class` may also be in the working directory.
    """
    if ":" in label and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end, so that no installed module is shadowed
    config = PeekConfig.from_label(label)
    config.build_policy()
    return config


def check_policies(labels: Sequence[str]) -> None:
    with as_usage_error("--policy"):
        for label in labels:
            policy_of(label)


# -- paths ------------------------------------------------------------------------------------------------


def parse_source(text: str) -> Path:
    path = Path(text)
    return path.absolute() if path == STREAM and text != "-" else path


def parse_target(text: str) -> Path:
    """Parse a path to write to; a path to this process's standard output becomes `STREAM`."""
    path = parse_source(text)
    with suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(1)):
            return STREAM
    return path


def beside(path: Path, suffix: str) -> Path:
    """Return a path beside another one, with another suffix: `batch.jsonl.gz` -> `batch` + suffix."""
    return bare(path).with_suffix(suffix)


def numbered(path: Path, number: int) -> Path:
    """Return the path of one file of several: `batch.jsonl.gz` -> `batch.3.jsonl.gz`."""
    plain = bare(path)
    tail = plain.suffix + path.name[len(plain.name) :]
    return path.with_name(f"{plain.stem}.{number}{tail}")


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file or does not exist.  `OSError` if that cannot be found out."""
    if path == STREAM:
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))


def check_target(path: Path) -> None:
    """Raise `PeekError`, before the work, if a target is a folder, or its folder cannot take a file."""
    check_no_folder(path)
    folder = real_path(path).parent
    if is_regular(path) and not folder.is_dir():
        raise PeekError(f"{path}: no such folder: {folder}")
    if is_regular(path) and not os.access(folder, os.W_OK | os.X_OK):
        raise PeekError(f"{path}: no file can be written into {folder}")


def check_no_folder(path: Path) -> None:
    if path != STREAM and path.is_dir():
        raise PeekError(f"{path}: is a folder")


Named = Iterable[tuple[str, Path | None]]  # pairs of an argument's or option's name and its path, if given


def refuse_clashes(read: Named, written: Named) -> None:
    """Raise `BadParameter` if two of these paths are one file, or one would have to be inside another."""
    taken: dict[object, str] = {}
    named = [(0, *each) for each in read] + [(1, *each) for each in written]
    given = [(descriptor, role, path) for descriptor, role, path in named if path is not None]
    for descriptor, role, path in given:
        identities = _identities(path, descriptor)
        for key in identities:
            if key in taken:
                raise typer.BadParameter(f"{role} {path} is the same file as {taken[key]}", param_hint=role)
        taken.update(dict.fromkeys(identities, f"{role} {path}"))
    for _, role, path in given:
        for parent in () if path == STREAM else real_path(path).parents:
            if parent in taken:
                raise typer.BadParameter(f"{role} {path} cannot lie in {taken[parent]}", param_hint=role)


def _identities(path: Path, descriptor: int) -> list[object]:
    """Return a file's real path and inode, or a stream's descriptor and, if it is a regular file, inode."""
    found: list[object] = [descriptor if path == STREAM else real_path(path)]
    with suppress(OSError):
        status = os.fstat(descriptor) if path == STREAM else path.stat()
        if path != STREAM or stat.S_ISREG(status.st_mode):
            found.append((status.st_dev, status.st_ino))
    return found


# -- fields of a command ------------------------------------------------------------------------------------


Parser = Callable[[str], Any] | None


def read_path(metavar: str, text: str, default: Any = MISSING, parser: Parser = parse_source) -> Any:
    """Declare an argument, by default a path to read from."""
    return as_field(typer.Argument(parser=parser, metavar=metavar, help=text), default)


def value(text: str, default: Any, metavar: str = "NAME", parser: Parser = None, *flags: str) -> Any:
    return as_field(typer.Option(*flags, parser=parser, metavar=metavar, help=text), default)


def count(text: str, default: int | None = None, most: int = LARGEST_COUNT) -> Any:
    """Declare an option: a whole number from 1 on, as of tokens or rows."""
    return value(text, default, "INT", lambda count: parse_count(count, most))


def positive(text: str, default: Any = None) -> Any:
    return value(text, default, "FLOAT", parse_rate)


def switch(flag: str, text: str, default: bool | None = False) -> Any:
    return as_field(typer.Option(flag, help=text), default)


def as_field(told: Any, default: Any) -> Any:
    """Make a field from typer's description of it; a default of `MISSING` makes it required."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"typer": told})
    return field(default=default, metadata={"typer": told})


written_path = partial(read_path, "OUT", parser=parse_target)
json_switch = partial(switch, "--json", "Print one JSON object instead of the table.")
tokenizer_path = partial(
    value, "Local tokenizer file; without one, four bytes of text count as a token.", None, "FILE"
)
