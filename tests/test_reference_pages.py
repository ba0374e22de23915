"""The reference of the documentation has every public name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import peek

PACKAGE = Path(peek.__file__).parent
REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
NAMED = set(re.findall(r"^\.\. (?:auto(?:class|function|data)|py:\w+):: ([\w.]+)", TEXT, re.MULTILINE))
WHOLE = set(re.findall(r"^\.\. automodule:: ([\w.]+)\n   :members:", TEXT, re.MULTILINE))
"""Modules of which Sphinx shows all that `__all__` has, or all that is public where there is none."""


def public_modules() -> Iterator[Any]:
    """Every module that says in `__all__` what it offers; those of engines alone are not imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"^__all__\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield import_module(".".join(parts).removesuffix(".__init__"))


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


def test_what_the_reference_shows_whole_is_said_to_be_public() -> None:
    said = (REFERENCE.parent / "stability.md").read_text(encoding="utf-8")
    assert [module for module in sorted(WHOLE) if f"`{module}`" not in said] == []


def test_what_is_said_to_be_public_is_in_the_reference() -> None:
    said = " ".join((REFERENCE.parent / "stability.md").read_text(encoding="utf-8").split())
    places = re.findall(r"((?:`\w+`(?:, | and )?)+) of `(peek[\w.]*)`", said)
    assert len(places) > 5
    for names, module in places:
        for name in re.findall(r"\w+(?=`)", names):
            assert is_shown(module, name), f"{module}.{name}"


def test_no_module_is_forgotten() -> None:
    assert {"peek", "peek.fleet", "peek.protocols", "peek.adapters.kv_events"} <= {
        module.__name__ for module in public_modules()
    }


def test_nothing_is_shown_that_is_not_there() -> None:
    for path in NAMED - {"peek.adapters.vllm.PeekScheduler", "peek.adapters.vllm.PeekAsyncScheduler"}:
        module, _, name = path.rpartition(".")
        assert path == "peek.adapters.sglang.Engine" or hasattr(import_module(module), name), path
