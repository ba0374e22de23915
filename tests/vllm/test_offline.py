"""`peek.offline` in front of the whole engine: 500 prompts of 20 groups, a cache for two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from test_engine import pytestmark

__all__ = ["pytestmark"]


def test_reordered_prompts_hit_and_results_stay(tmp_path: Path) -> None:
    script = Path(__file__).with_name("offline_run.py")
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(script), str(result)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(result.read_text())
    assert found["same_results"]
    assert found["hit_stock"] < 0.2
    assert found["hit_reordered"] > 0.8
    assert abs(found["hit_reordered"] - found["expected_after"]) < 0.03
    assert abs(found["hit_stock"] - found["expected_before"]) < 0.06
