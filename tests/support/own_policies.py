"""A module of policies that are not the library's, named in the configuration as its author would name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODULE = """
from dataclasses import dataclass
from peek import AdmissionPolicy

class MostCachedFirst(AdmissionPolicy):
    def order(self, queue, cycle):
        return sorted(queue, key=lambda request: -request.cached_len)

class ByAnswer(AdmissionPolicy):
    "By how long the last answer to a prompt of this length was, times `weight`; smallest first."

    @dataclass(frozen=True)
    class Options:
        "weight: below 0 for the longest first."

        weight: float = 1.0

    def __init__(self, options=None):
        super().__init__(reads_tree=False, options=options)
        self.waiting, self.running, self.answers = set(), {}, {}

    def arrived(self, request):
        self.waiting.add(request.request_id)

    def left(self, request, how, cost_tokens):
        self.waiting.remove(request.request_id)
        self.running[request.request_id] = request.num_tokens

    def answered(self, request_id, tokens):
        self.answers[self.running.pop(request_id)] = tokens

    def order(self, queue, cycle):
        assert {request.request_id for request in queue} == self.waiting
        return sorted(queue, key=lambda each: self.options.weight * self.answers.get(each.num_tokens, 0))

    def stream(self, cycle):
        yield from self.order(cycle.tree.requests(), cycle)

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
