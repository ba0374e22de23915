"""The comparison of `bench/gpu` on a CPU, with its tiny shape: two policies, three loads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from test_engine import pytestmark

__all__ = ["pytestmark"]

BENCH = Path(__file__).parents[2] / "bench"
REQUESTS = 120
SESSIONS = 20


def write_sessions(path: Path) -> Path:
    """Recorded sessions as the archive has them: equal tools, three system prompts, input of their own."""
    with tarfile.open(path, "w:xz") as archive:
        for number in range(SESSIONS):
            first = {"t": 0.0, "type": "n", "in": 12_000 + 64 * number, "out": 64}
            session = {
                "id": f"s{number}",
                "tool_tokens": 8192,
                "system_tokens": 1024 + 64 * (number % 3),
                "requests": [{**first, "type": "subagent"}, first],
            }
            text = json.dumps(session).encode()
            member = tarfile.TarInfo(f"s{number}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return path


def bench(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of `bench.gpu` from `folder`, where it finds `bench` but not the checkout's `peek`."""
    link = folder / "bench"
    if not link.exists():
        link.symlink_to(BENCH)
    command = [sys.executable, "-m", f"bench.gpu.{module}", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, env=dict(os.environ), cwd=folder
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    sessions = write_sessions(folder / "sessions.tar.xz")
    done = bench(
        folder, "run", "--model", "tiny", "--cpu", "--out", str(folder), "--sessions", str(sessions),
        "--requests", str(REQUESTS), "--rate-scale", "60", "--policy", "stock", "--policy", "peek",
    )  # fmt: skip
    log = folder / "engine.log"
    assert done.returncode == 0, done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    stored = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return {(row["load"], row["policy"]): row for row in stored}


def test_every_request_is_answered_and_measured(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert len(rows) == 6
    for (load, _), row in rows.items():
        sent = SESSIONS if load == "sessions" else REQUESTS
        assert row["finished"] == row["requests"] == sent - row["warmup"]
        assert row["cache_was_emptied"]
        assert row["broken"] == []
        assert 0 < row["ttft_s"]["p50"] <= row["ttft_s"]["p99"] <= row["e2e_s"]["p99"]
        assert row["throughput_rps"] > 0
        assert row["tpot_ms"]["mean"] > 0
        assert len(row["ttft_each_s"]) == row["requests"]


def test_policies_get_the_same_requests(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    for load in ("w1c", "w5-short", "sessions"):
        stock, peek = rows[load, "stock"], rows[load, "peek"]
        for name in ("prompt_tokens", "output_tokens", "ideal_hit"):
            assert stock[name] == peek[name], (load, name)


def test_peek_was_at_work_and_found_more_in_the_cache(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert not any(rows["w1c", "stock"]["counters"].values())
    counters = rows["w1c", "peek"]["counters"]
    assert counters["peek_reordered_cycles_total"] > 0
    assert counters["peek_fallbacks_total"] == 0
    assert rows["w1c", "peek"]["cached_tokens"] > rows["w1c", "stock"]["cached_tokens"]
    assert rows["w5-short", "peek"]["cached_tokens"] == 0


def test_what_is_there_is_not_measured_again(out: Path, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    before = (out / "results.jsonl").read_text()
    done = bench(
        out, "run", "--model", "tiny", "--cpu", "--out", str(out), "--requests", str(REQUESTS),
        "--policy", "stock", "--load", "w1c",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (out / "results.jsonl").read_text() == before


def test_table(out: Path, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    with (out / "results.jsonl").open("a") as sink:
        sink.write('{"model": "ti')  # a run that was cut off
    done = bench(out, "table", str(out / "results.jsonl"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| tiny |") == len(rows)
    assert "cut off" in done.stderr
