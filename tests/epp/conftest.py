"""Tests on real gRPC and a real Envoy; without gRPC, nothing here is collected (`make test-epp` has both)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LACKING = [name for name in ("grpc", "envoy") if find_spec(name) is None]

if LACKING:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path[:0] = [str(HERE), str(HERE.parent)]


def pytest_report_header() -> str:
    return f"tests/epp are left out: no {', '.join(LACKING)} (grpcio, xds-protos)" if LACKING else ""


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of gRPC's and of others' generated code are not ours."""
    config.addinivalue_line("filterwarnings", "ignore")
