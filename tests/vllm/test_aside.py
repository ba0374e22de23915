"""Where the adapter stands aside, and says so once."""

from __future__ import annotations

import logging

import pytest
from vllm_lab import make_request
from vllm_small import A, run_out, scheduler


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split("; ")[0] for record in caplog.records if record.name == "peek"]


def test_prefix_caching_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "peek"):
        engine = scheduler(num_blocks=200, caching=False)
    assert engine.peek.adapter is None
    assert said(caplog) == ["peek: stands aside, stock order: prefix caching is off"]
    for i in range(4):
        engine.add_request(make_request(f"r{i}", A, 2, hashed=False))
    assert len(run_out(engine)) == 4
