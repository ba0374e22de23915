"""vLLM's OpenAI server with the adapter, and eight clients at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from test_engine import BLOCK, ENGINE, NAMES, PEEK, pytestmark, worked_prompts
from vllm_lab import write_model

__all__ = ["pytestmark"]

START_S = 420.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> str:
    with urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on the worked check's engine."""
    with serving(tmp_path_factory.mktemp("server"), PEEK, {"policy": "peek", "strict": True}) as address:
        yield address


@contextmanager
def serving(folder: Path, scheduler: str, options: dict[str, Any]) -> Iterator[str]:
    """A server with its files in `folder`, server.log among them, which is on the path of its modules."""
    port = free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", write_model(folder / "model"), "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", *flags]
    command += ["--skip-tokenizer-init", "--enforce-eager", "--enable-prefix-caching", "--seed", "0"]
    command += ["--enable-prompt-tokens-details", "--scheduler-cls", scheduler]
    command += ["--additional-config", json.dumps({"peek": options})]
    environ = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",  # vLLM's own default; the tests are more quiet
    }
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=sink, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            get(f"{address}/health")
        except (URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    pytest.fail(log.read_text()[-4000:])


def complete(address: str, tokens: list[int], max_tokens: int) -> dict[str, Any]:
    body = {"model": "m", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    request = Request(
        f"{address}/v1/completions",
        json.dumps({**body, "return_token_ids": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=300) as answer:
        return dict(json.load(answer))


def metric(address: str, name: str) -> float:
    """The sum over all labels of a metric."""
    lines = [line for line in get(f"{address}/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def test_eight_clients(server: str) -> None:
    prompts = worked_prompts()
    with ThreadPoolExecutor(9) as clients:
        first = clients.submit(
            complete, server, [5] * (2 * BLOCK), 250
        )  # fills the cache until all are there
        while metric(server, "vllm:num_requests_running") < 1 and not first.done():
            time.sleep(0.02)
        answers = list(clients.map(lambda name: complete(server, prompts[name], 8), NAMES))
    usages = [answer["usage"] for answer in answers]
    assert [usage["prompt_tokens"] for usage in usages] == [288] * 8
    assert [usage["completion_tokens"] for usage in usages] == [8] * 8
    assert sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for usage in usages) == 1280
    assert first.result()["usage"]["completion_tokens"] == 250


def test_metrics_stand_next_to_those_of_vllm(server: str) -> None:
    complete(server, [6] * BLOCK, 2)
    text = get(f"{server}/metrics")
    assert "vllm:prompt_tokens" in text
    for name in ("cycles", "cached_tokens_real", "fair_lane_admissions", "plan_seconds"):
        assert f"peek_{name}_total" in text, name
    assert len({line.split("{")[0] for line in text.splitlines() if line.startswith("peek_")}) >= 12
    assert 'model_name="m"' in next(line for line in text.splitlines() if line.startswith("peek_active"))
    assert metric(server, "peek_active") == 1
    assert metric(server, "peek_fallbacks_total") == 0
