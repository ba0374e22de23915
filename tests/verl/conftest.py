"""Tests on the real verl and Ray; without them, nothing in this folder is collected."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

try:
    version("verl")
    version("ray")
except PackageNotFoundError:
    collect_ignore_glob = ["*"]


def pytest_configure(config: pytest.Config) -> None:
    """Their warnings are not ours."""
    config.addinivalue_line("filterwarnings", "default")
