"""The version guard of the adapters: what an engine lacks is named before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from peek.errors import EngineMismatch


def require(owner: object, paths: Iterable[str], engine: str) -> None:
    """`EngineMismatch` naming the first dotted path under `owner` that this version of `engine` lacks."""
    for path in paths:
        target: Any = owner
        for name in path.split("."):
            if not hasattr(target, name):
                kind = type(owner).__name__
                raise EngineMismatch(f"this {engine}'s {kind} has no {path}; see the compatibility table")
            target = getattr(target, name)
