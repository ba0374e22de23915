"""What options of several commands mean: policy labels, and numbers.

Numbers have parsers of their own because typer's messages do not name the value.
"""

from __future__ import annotations

import os
import sys
from math import isfinite
from typing import Final

import typer

from peek import PeekConfig

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


def parse_part(text: str) -> float:
    """A number above 0 and up to 1."""
    part = parse_rate(text)
    if part > 1.0:
        raise typer.BadParameter(f"{str(text)!r} is not in 0..1")
    return part


def policy_of(label: str) -> PeekConfig:
    """The settings behind a policy label; `module:Class` is also looked for in the working directory.

    Raises `InvalidConfig`.
    """
    if ":" in label and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: nothing installed is shadowed
    return PeekConfig.from_label(label)
