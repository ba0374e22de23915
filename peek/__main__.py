"""The command `peek`, also as `python -m peek`.

The command prints one line instead of a traceback if the packages of the extra `cli` are missing, if another
distribution has overwritten or removed files of this one, or if Ctrl-C comes during the imports.
"""

from __future__ import annotations

import sys
from typing import Final

from peek.cli.conflicts import why_broken

NEEDED: Final = ("typer", "rich")
"""Packages that the extra `cli` installs."""

ADVICE: Final = "pip install 'peek-kv[cli]'"


def main() -> int:
    """Run the command line of this process; return the exit code."""
    try:
        from peek.cli.main import main as command
    except ImportError as error:
        lacks = (error.name or "").partition(".")[0] in NEEDED
        reason = f"the command needs {' and '.join(NEEDED)}: {ADVICE}" if lacks else why_broken()
        if not reason:
            raise
        sys.stderr.write(f"peek: {reason}\n")
        return 1
    except KeyboardInterrupt:  # too early for the command's own `main` to report it
        sys.stderr.write("peek: interrupted\n")
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
