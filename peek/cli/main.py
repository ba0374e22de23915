"""The command `peek`: its subcommands, and how errors become text.

Exit codes: 0 if done; 1 if the work failed (a file cannot be read, the arena cannot hold a request); 2 for
wrong usage that the command line alone shows.  An error is one line on stderr, never a traceback.  The
commands print results on stdout and raise errors; only `main` turns errors into text.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peek import PeekError, __version__
from peek.cli.bench import bench_command
from peek.cli.check import check_command
from peek.cli.doctor import doctor_command
from peek.cli.options import as_command
from peek.cli.reorder import batch_command, reorder_command, restore_command
from peek.cli.simulate import simulate_command
from peek.cli.trace import trace_command
from peek.offline.formats import excerpt

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130  # as shells report a process that Ctrl-C ended

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""click's `UsageError`; newer versions of typer contain their own click, without a public name for it."""

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"peek {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _peek(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Queue-informed scheduling and eviction for LLM serving engines."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


for _work in (
    check_command, simulate_command, reorder_command, restore_command, batch_command, trace_command,
    bench_command, doctor_command,
):  # fmt: skip
    app.command(_work.__name__.removesuffix("_command"))(as_command(_work))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (by default the process's own); return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows "?" instead of an error
    words = None if arguments is None else list(arguments)
    try:
        code = app(args=words, prog_name="peek", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a write error is raised here, not while Python exits
    except BrokenPipeError:  # the reader has closed the pipe, as in `peek simulate | head`
        _drop_output()
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost frame turns any error into one line
        _complain(_explained(error))
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()
        return WRONG_USAGE if isinstance(error, _USAGE_ERROR) else FAILED
    if code == INTERRUPTED:
        _complain("interrupted")
    return code if isinstance(code, int) else DONE


def _explained(error: Exception) -> str:
    if isinstance(error, _USAGE_ERROR):
        return str(error.format_message())
    if isinstance(error, MemoryError):
        return str(error) or "out of memory"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename}: no such file"
    if isinstance(error, OSError):
        return f"{error.filename or 'cannot write the output'}: {error.strerror or error}"
    if isinstance(error, PeekError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"internal error, please report it: {type(error).__name__}: {excerpt(str(error))} ({place})"


def _complain(message: str) -> None:
    print("peek:", " ".join(message.split()), file=sys.stderr)


def _drop_output() -> None:
    """Discard buffered output; otherwise Python would fail on it again at exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
