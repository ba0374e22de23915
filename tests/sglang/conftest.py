"""Tests on the real SGLang; without it, nothing here is collected (`make test-sglang` builds it)."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _installed() -> str:
    """The version of SGLang, empty without one.

    Asks for the distribution, not the module: with tests/ on the path this very folder would pass for one.
    """
    try:
        return version("sglang")
    except PackageNotFoundError:
        return ""


SGLANG = _installed()
if SGLANG:
    # Tensors are tiny, and one eviction with a thread per core takes a thousand times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(HERE))
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"sglang: {SGLANG or 'not installed, tests/sglang is left out (see `make test-sglang`)'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # SGLang and torch warn a lot; peek may not
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::peek"))
