"""Numbers of the command line, for options of several commands.

They have parsers of their own because typer's messages do not name the value.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

import typer

LARGEST_COUNT: Final = 100_000_000
"""Of tokens or rows; an arena of hundreds of accelerators, and still quick to set up."""


def parse_seed(text: str) -> int:
    """An integer."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an integer") from None


def parse_count(text: str) -> int:
    """An integer that counts tokens or rows."""
    count = parse_seed(text)
    if not 1 <= count <= LARGEST_COUNT:
        raise typer.BadParameter(f"{count} is not in 1..{LARGEST_COUNT}")
    return count


def parse_rate(text: str) -> float:
    """A finite number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not (isfinite(rate) and rate > 0.0):
        raise typer.BadParameter(f"{str(text)!r} is not a finite number above 0")
    return rate
