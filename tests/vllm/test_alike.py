"""The behaviours that both engines have in common, on vLLM's real scheduler."""

from __future__ import annotations

import pytest
from support import alike
from support.own_policies import module
from vllm_small import lab

__all__ = ["lab", "module"]


@pytest.fixture(params=["remove", "lazy_plan", "eviction_score", "pop_outgrown", "release", "block_cached"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["add", "remove", "lazy_plan", "eviction_score", "intern", "release"])
def strict_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["add", "extend", "intern", "intern_all", "alone"])
def translation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestAlike(alike.Alike):
    """On vLLM."""
