"""`peek.offline.generate_sglang` in front of the whole engine: 300 prompts of 15 groups, a cache for four."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang_model import write_model
from support.whole import run_python

pytestmark = pytest.mark.slow


def test_reordered_prompts_hit_and_results_stay(tmp_path: Path) -> None:
    script = Path(__file__).with_name("offline_run.py")
    result = tmp_path / "result.json"
    run_python(tmp_path, str(script), write_model(tmp_path / "model"), str(result))
    found = json.loads(result.read_text())
    assert found["same_results"]
    assert len(found["same_others"]) == 3
    assert all(found["same_others"].values()), found["same_others"]
    assert found["cache"] == [1600, 1]
    assert found["hit_stock"] < 0.2
    assert found["hit_reordered"] > 0.7
    assert found["expected"][1] > found["expected"][0]
