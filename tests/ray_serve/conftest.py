"""Tests on a real Ray Serve; without it, nothing here is collected (`make test-ray-serve` builds it)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

try:
    RAY = version("ray")
except PackageNotFoundError:
    RAY = ""
if not RAY:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path[:0] = [str(HERE), str(HERE.parent / "vllm"), str(HERE.parent)]


def pytest_configure(config: pytest.Config) -> None:
    """Ray's warnings are not ours."""
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of one machine, with Serve's proxy on a free port; the address of the proxy."""
    from serving import start_cluster, stop_cluster

    # An exchange that was killed is missed after seconds, not half a minute.
    os.environ["RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S"] = "1"
    os.environ["RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_UNHEALTHY_THRESHOLD"] = "1"
    os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")
    yield start_cluster()
    stop_cluster()
