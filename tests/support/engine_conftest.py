"""The common part of the engine folders' `conftest.py`; it skips a folder if its engine is not installed."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest


def installed(*names: str) -> str:
    """The version of the first distribution that is there, empty without one.

    Asks for distributions, not modules: with tests/ on the path an engine's very folder would pass for one.
    """
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def hooks(folder: Path, found: str) -> dict[str, Any]:
    """Names for the module of a folder, of the engine whose version was found."""
    if found:
        sys.path.insert(0, str(folder))
    name = folder.name

    def pytest_report_header() -> str:
        return f"{name}: {found or f'not installed, tests/{name} is left out (see `make test-{name}`)'}"

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        for item in items:
            if folder in item.path.parents:  # engines and torch warn a lot; peek may not
                item.add_marker(pytest.mark.filterwarnings("ignore"))
                item.add_marker(pytest.mark.filterwarnings("error:::peek"))

    return {
        "pytest_report_header": pytest_report_header,
        "pytest_collection_modifyitems": pytest_collection_modifyitems,
        "collect_ignore_glob": [] if found else ["test_*.py"],
    }
