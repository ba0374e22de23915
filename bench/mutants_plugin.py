"""The pytest plugin of `bench.mutants`: records the blocks that a test enters, selects and sorts tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

_entered: dict[str, Any] = {}
_passed: dict[str, bool] = {}
_seconds: dict[str, float] = {}


def pytest_configure() -> None:
    settings.register_profile(
        "unshrunk", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("unshrunk")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "MUTANTS_CHOSEN" in os.environ:
        chosen = Path(os.environ["MUTANTS_CHOSEN"]).read_text().splitlines()
        place = {test: number for number, test in enumerate(chosen)}
        items[:] = sorted((it for it in items if it.nodeid in place), key=lambda it: place[it.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    told = sys.modules.get("peek_mutants_seen")
    if told is not None:
        told.seen.clear()
    done = yield
    if told is not None:
        _entered[item.nodeid] = [0.0, sorted(told.seen)]
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _passed[report.nodeid] = _passed.get(report.nodeid, True) and report.passed
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    if "MUTANTS_SEEN" in os.environ:
        found = {
            test: [round(_seconds[test], 3), blocks]
            for test, (_, blocks) in _entered.items()
            if _passed.get(test)
        }
        Path(os.environ["MUTANTS_SEEN"], "tests.json").write_text(json.dumps(found))
