"""What SGLang's own server logs, traced: each request, its answer, and how much of it was cached."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sglang_lab import RELEASE
from sglang_server import serving

from peek.cli.main import main

pytestmark = pytest.mark.slow

REQUESTS = 60
SIZES = ["--max-total-tokens=1000", "--context-length=600", "--max-running-requests=3"]
OFF = json.dumps({"policy": "peek", "mode": "off"})


IS_NEWEST = RELEASE >= (0, 5, 23)


@pytest.mark.parametrize(
    "form", ["json", pytest.param("text", marks=pytest.mark.skipif(not IS_NEWEST, reason="as in the newest"))]
)
def test_a_log_is_traced(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rnd = random.Random(0)
    heads = [[rnd.randrange(20, 1000) for _ in range(256)] for _ in range(4)]
    prompts = [rnd.choice(heads) + [rnd.randrange(20, 1000) for _ in range(20)] for _ in range(REQUESTS)]
    flags = [*SIZES, "--log-requests", "--log-requests-level=3", f"--log-requests-format={form}"]
    started = serving(tmp_path, *flags, "--schedule-policy=fcfs", PEEK_CONFIG=OFF)
    with started as server, ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda i: server.generate(prompts[i], 4 + i % 5), range(REQUESTS)))
    cached = sum(answer["meta_info"]["cached_tokens"] for answer in answers)
    trace = tmp_path / "trace.jsonl"
    assert main(["trace", str(tmp_path / "server.log"), str(trace)]) == 0
    said = capsys.readouterr().err
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [row["input_length"] for row in rows[:-REQUESTS]] == [3] * (
        len(rows) - REQUESTS
    )  # until it answered
    asked = rows[-REQUESTS:]
    assert sorted(row["output_length"] for row in asked) == sorted(4 + i % 5 for i in range(REQUESTS))
    assert len({row["hash_ids"][15] for row in asked}) == len(heads)
    hit = cached / sum(row["input_length"] for row in rows)
    assert f"the log says that {100 * hit:.1f} % of" in said
