"""Which build is under test, and how hard hypothesis looks.

The suite runs on two builds of one source, compiled and interpreted.  `PEEK_EXPECT_BACKEND` says which
one this run is about; a run that imports the other build ends at once, because it would prove nothing.

Every run draws the same examples (the profile `same`), so that a failure is of a change; `make explore`
draws new ones, as many as `EXAMPLES` says, from a seed that it prints.

`tests/` is on `sys.path` (see `pythonpath` in pyproject.toml), so oracles shared by several test
modules are plain modules next to them.  The checkout itself is not: `peek` comes from the environment.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import peek

# No deadlines: a shared machine is slow at times, and the suite does not measure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, max_examples=80, derandomize=True)
settings.register_profile(
    "explore", patient, max_examples=int(os.environ.get("EXAMPLES", "500")), print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure() -> None:
    expected = os.environ.get("PEEK_EXPECT_BACKEND", "")
    if expected and peek.backend() != expected:
        pytest.exit(f"expected the {expected} build, found the {peek.backend()} one: {peek.__file__}", 4)
    for name in list(os.environ):  # a developer's own settings must not steer the tests
        if name == "PEEK_POLICY" or name.startswith("PEEK_ONLINE_"):
            del os.environ[name]


def pytest_report_header() -> str:
    return f"peek {peek.__version__}, backend: {peek.backend()}"
