"""Beyond 128 waiting, where stock LPM and HRRN sort nothing: the case of `bench_order.py`."""

from __future__ import annotations

import pytest
from bench_order import LABELS, play
from sglang_lab import CORES


@pytest.mark.parametrize("core", CORES)
def test_beyond_the_limit(core: str | None) -> None:
    fcfs, lpm = play("fcfs", core), play("lpm", core)
    lifted = play("lpm", core, limit=False)
    assert fcfs["hit"] < lpm["hit"] < 0.5 < lifted["hit"]
    for label in LABELS:
        mine = play("fcfs", core, label=label)
        assert mine["hit"] > lifted["hit"] - 0.03
        assert mine["mean"] < lifted["mean"] < lpm["mean"]
        assert mine["max"] < lpm["max"]
