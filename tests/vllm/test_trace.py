"""What vLLM's own server logs, traced and simulated, hits as often as the server said it did."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_engine import BLOCK, pytestmark
from vllm_server import flags_of, serving

from peek.cli.main import main

__all__ = ["pytestmark"]

REQUESTS = 240
SEATS = 4
BLOCKS = 51
"""Room for what runs, and one or two of ten prefixes."""

STOCK = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
FLAGS = ["--enable-log-requests", "--enable-log-outputs", "--trust-request-chat-template"]
FLAGS += flags_of({"num_gpu_blocks_override": BLOCKS, "max_num_seqs": SEATS, "max_num_batched_tokens": 8192})
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Told(NamedTuple):
    """What the server says of itself."""

    log: Path
    hit: float
    answers: list[dict[str, Any]]
    chat_tokens: int


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A stock server under a load that keeps a queue, and its log."""
    rnd = random.Random(0)
    heads = [[rnd.randrange(3, 1000) for _ in range(8 * BLOCK)] for _ in range(10)]
    prompts = [rnd.choice(heads) + [rnd.randrange(3, 1000) for _ in range(20)] for _ in range(REQUESTS)]
    folder = tmp_path_factory.mktemp("traced")
    with serving(folder, STOCK, {}, *FLAGS, words=True, VLLM_LOGGING_LEVEL="DEBUG") as server:
        with ThreadPoolExecutor(24) as clients:
            answers = list(clients.map(lambda i: server.complete(prompts[i], 4 + i % 9), range(REQUESTS)))
        queries, hits = (server.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
        chat = server.post(
            "/v1/chat/completions", model="m", max_tokens=7, ignore_eos=True, chat_template=CHAT,
            messages=[{"role": "user", "content": "it's me\n"}],
        )  # fmt: skip
    return Told(server.log, hits / queries, answers, chat["usage"]["completion_tokens"])


def test_a_traced_log_is_simulated_as_it_was(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    assert main(["trace", str(told.log), str(trace), "--block-tokens", str(BLOCK)]) == 0
    said = capsys.readouterr().err
    assert f"{REQUESTS + 1} requests" in said
    assert "1 told" in said
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    lengths = sorted(row["output_length"] for row in rows)
    assert lengths == sorted([*(a["usage"]["completion_tokens"] for a in told.answers), told.chat_tokens])
    words = ["--cache", "blocks", "--arena-tokens", str((BLOCKS - 1) * BLOCK), "--max-running", str(SEATS)]
    words += ["--policy", "fcfs+lru", "--policy", "peek", "--json"]
    assert main(["simulate", "--trace", str(trace), *words]) == 0
    stock, ours = json.loads(capsys.readouterr().out)["runs"]
    assert 0.2 < told.hit < 0.7
    assert stock["cache_hit"] == pytest.approx(told.hit, abs=0.03)
    assert ours["cache_hit"] > stock["cache_hit"] + 0.1
