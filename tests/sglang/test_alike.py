"""The behaviours that both engines have in common, on SGLang's real cache and policy."""

from __future__ import annotations

import pytest
from sglang_alike import SglangLab, lab
from support import alike
from support.own_policies import module

__all__ = ["lab", "module"]

PLANNER = ("remove", "lazy_plan", "prefilled", "eviction_score")
VIEW = ("root", "advance", "node_id")


@pytest.fixture(params=[*PLANNER, *VIEW])
def method(request: pytest.FixtureRequest, lab: SglangLab) -> str:
    if lab.core == "rust" or lab.page > 1:
        pytest.skip("the Rust core shows neither its nodes nor its strategy, and one size of pages is enough")
    return str(request.param)


@pytest.fixture(params=["add", "remove", "lazy_plan", "advance"])  # add: not put in quarantine
def strict_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def translation() -> str:
    return "add"


class TestAlike(alike.Alike):
    """On SGLang."""
