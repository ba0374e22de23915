"""The command `peek`, also as `python -m peek`.

Where another distribution has overwritten or removed files of this package, the message says so instead of a
failed import.
"""

from __future__ import annotations

import sys

from peek.cli.conflicts import why_broken


def main() -> int:
    """Run the command line of this process; return the exit code."""
    try:
        from peek.cli.main import main as command
    except ImportError:
        reason = why_broken()
        if not reason:
            raise
        sys.stderr.write(f"peek: {reason}\n")
        return 1
    return command()


if __name__ == "__main__":
    sys.exit(main())
