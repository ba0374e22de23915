"""Packages that the command can do without: what is asked for where one is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from peek import PeekError


class MissingExtra(PeekError, ImportError):
    """A package that this job needs is not installed."""


def needs(package: str, what: str, extra: str = "offline") -> MissingExtra:
    """The error for a missing optional package."""
    return MissingExtra(f"{what} needs {package}: pip install 'peek-kv[{extra}]'")


def json_loads() -> Callable[[bytes], Any]:
    """The fastest JSON parser there is."""
    try:
        import orjson
    except ImportError:
        return json.loads
    loads: Callable[[bytes], Any] = orjson.loads
    return loads
