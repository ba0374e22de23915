"""docs/options.md has every option, variable, label and command of the code, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from peek import PRESETS, LaneOptions
from peek.adapters.activation import KNOWN_VARIABLES, OTHER_VARIABLES, Settings
from peek.policy.default import PeekOptions

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peek_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says(tables: ModuleType) -> None:
    assert tables.written(PAGE) == PAGE, "run `make tables`"
    assert tables.written(PAGE.replace("| `PEEK_PURE` |", "| `PEEK_PUER` |")) == PAGE


def test_nothing_is_missing(tables: ModuleType) -> None:
    for kind in (PeekOptions, LaneOptions, Settings):
        for field in fields(kind):
            assert field.name == "config" or f"\n| `{field.name}` |" in PAGE
    for name in (*KNOWN_VARIABLES, *OTHER_VARIABLES, *PRESETS):
        assert f"\n| `{name}` |" in PAGE
    assert set(tables.VARIABLES) == {*KNOWN_VARIABLES, *OTHER_VARIABLES}


def test_every_variable_that_is_read_is_known() -> None:
    sources = [*ROOT.glob("peek/**/*.py"), ROOT / "setup.py", ROOT / "tests" / "conftest.py"]
    quoted = {
        name for path in sources for name in re.findall(r'"(PEEK_[A-Z_]*[A-Z])"', path.read_text("utf-8"))
    }
    assert quoted == {*KNOWN_VARIABLES, *OTHER_VARIABLES}
