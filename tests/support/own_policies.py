"""A module of policies that are not the library's, named in the configuration as its author would name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODULE = """
from peek import AdmissionPolicy

class MostCachedFirst(AdmissionPolicy):
    def order(self, queue, cycle):
        return sorted(queue, key=lambda request: -request.cached_len)

class Forgets(AdmissionPolicy):
    def order(self, queue, cycle):
        return queue[1:]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of that module, which can be imported for as long as a test lasts."""
    (tmp_path / "policies_of_others.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "policies_of_others", raising=False)
    return "policies_of_others"
