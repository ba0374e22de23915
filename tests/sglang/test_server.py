"""A real HTTP server with `peek`, started as the documentation says, and many clients at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from sglang_model import write_model
from test_engine import ENGINE, worked_prompts

pytestmark = pytest.mark.slow

START_S = 420.0
FLAGS = [
    "--skip-tokenizer-init",
    "--device=cpu",
    "--dtype=float32",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--disable-cuda-graph",
    "--skip-server-warmup",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server on the worked check's engine, and its log."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    command = [sys.executable, "-m", "peek.adapters.sglang.launch_server", *FLAGS, *flags]
    command += ["--model-path", write_model(folder / "model"), "--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, "PEEK_POLICY": "peek", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=sink, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log)
        yield address, log
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
            generate(address, [5, 6, 7])  # /health is given 20 s, and a first answer may take longer
        except (URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    raise AssertionError(log.read_text()[-4000:])


def generate(address: str, tokens: list[int]) -> dict[str, Any]:
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    request = Request(
        f"{address}/generate", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as answer:
        return dict(json.loads(answer.read()))


def test_the_log_says_at_start_what_is_active(server: tuple[str, Path]) -> None:
    text = server[1].read_text()
    assert "peek: takes the place of --schedule-policy fcfs" in text
    assert "peek: active" in text


def test_everybody_is_served(server: tuple[str, Path]) -> None:
    address, log = server
    prompts = list(worked_prompts().values())
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda tokens: generate(address, tokens), prompts * 3))
    assert [len(answer["output_ids"]) for answer in answers] == [4] * 24
    assert sum(answer["meta_info"]["cached_tokens"] for answer in answers) > 0
    assert len(generate(address, prompts[0])["output_ids"]) == 4
    assert "internal error" not in log.read_text()
