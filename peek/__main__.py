"""The command `peek`, also as `python -m peek`.

Where another distribution has overwritten files of this package or taken them away, that is told instead of a
failed import.
"""

from __future__ import annotations

import sys

from peek.cli.clash import why_broken


def main() -> int:
    """Run the command line of this process; the exit code."""
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
