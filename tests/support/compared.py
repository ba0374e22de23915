"""Runs the comparison of `bench/servers` inside an engine's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.pages import ROOT


def compare(folder: Path, engine: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The runs of one round, and the table.  `folder` has a link to `bench`, not to the checkout's `peek`."""
    (folder / "bench").symlink_to(ROOT / "bench")
    out = folder / "servers.json"
    command = [sys.executable, "-m", "bench.servers.run", "--python", f"{engine}={sys.executable}"]
    done = subprocess.run(
        [*command, "--pairs", "1", "--out", str(out), *words],
        cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs: list[dict[str, Any]] = json.loads(out.read_text())
    return runs, done.stdout


def check(runs: list[dict[str, Any]], cell: str, arms: set[str], more_cached: bool) -> None:
    """Every arm has answered everything, in the same words; `peek` was at work if it has cached more.

    More: by a tenth of all prompt tokens.  Prompts at random have a few first tokens in common.
    """
    of = {run["arm"]: run for run in runs if run["cell"] == cell}
    assert set(of) == arms
    for run in of.values():
        assert run["finished"] == len(run["answers"]) > 0
        assert run["failed"] == run["fallbacks"] == 0
        assert run["answers"] == of["peek"]["answers"]
        assert 0 < run["ttft_p50"] <= run["ttft_p99"]
        assert run["ttft"] < run["e2e"]
        assert run["cpu_s"] > 0
        assert run["prompts"] == of["peek"]["prompts"]
    gain = of["peek"]["cached"] - of["fcfs"]["cached"]
    assert (gain > 0.1 * of["peek"]["prompts"]) == more_cached


def check_a_round(folder: Path, engine: str, name: str, others: int) -> None:
    """One round of two cells; `others` are the arms beside `fcfs` and `peek`."""
    from bench.servers.engines import ENGINES

    runs, said = compare(folder, engine, "--cell", "burst", "--cell", "random")
    assert len(runs) == 2 * (2 + others)
    arms = {arm.name for arm in ENGINES[engine].arms if arm.usual}
    check(runs, "burst", arms, more_cached=True)
    check(runs, "random", arms, more_cached=False)
    assert said.count(f"| {name} ") == 2 * (1 + others)
    assert "0 requests failed" in said
