"""The reference of the documentation has every public name."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import peek

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
NAMED = set(re.findall(r"^\.\. (?:auto(?:class|function|data)|py:\w+):: ([\w.]+)", TEXT, re.MULTILINE))
WHOLE = set(re.findall(r"^\.\. automodule:: ([\w.]+)\n   :members:", TEXT, re.MULTILINE))
"""Modules of which Sphinx shows all that `__all__` has, or all that is public where there is none."""


def public_modules() -> Iterator[Any]:
    """`peek`, and each package in it that says in `__all__` what it offers."""
    yield peek
    for found in pkgutil.walk_packages(peek.__path__, "peek."):
        if found.ispkg and hasattr(module := import_module(found.name), "__all__"):
            yield module


def is_shown(module: str, name: str) -> bool:
    return module in WHOLE or f"{module}.{name}" in NAMED


@pytest.mark.parametrize("module", list(public_modules()), ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module: Any) -> None:
    top = {id(getattr(peek, name)) for name in peek.__all__ if is_shown("peek", name)}
    for name in module.__all__:
        path = f"{module.__name__}.{name}"
        if is_shown(module.__name__, name) or path in WHOLE:
            continue
        assert id(getattr(module, name)) in top, f"{path} is not in docs/reference"


def test_nothing_is_shown_that_is_not_there() -> None:
    for path in NAMED - {"peek.adapters.vllm.PeekScheduler", "peek.adapters.vllm.PeekAsyncScheduler"}:
        module, _, name = path.rpartition(".")
        assert path == "peek.adapters.sglang.Engine" or hasattr(import_module(module), name), path
