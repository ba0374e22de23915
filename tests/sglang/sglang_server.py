"""SGLang's HTTP server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from sglang_model import write_model
from support.waiting import PATIENCE_S, START_S, free_port

HERE = Path(__file__).parent
FLAGS = [
    "--device=cpu",
    "--dtype=float32",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--disable-cuda-graph",
    "--skip-server-warmup",
    "--random-seed=0",
]
WITHOUT_WORDS = ["--skip-tokenizer-init", "--grammar-backend=none"]
WATCHER = "[sglang.srt.plugins]\nwatching = sglang_watching:register\n"


class Server:
    """The address of a server that answers, and its log."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log

    def get(self, path: str) -> str:
        with urlopen(f"{self.address}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **body: Any) -> Any:
        """The answer; `HTTPError` if the server refuses."""
        request = Request(
            f"{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=300) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def flush(self) -> str:
        """Empty the cache; refused while a batch is under way, as it is for a moment after its answers."""
        for _ in range(100):
            try:
                return str(self.post("/flush_cache"))
            except HTTPError:
                time.sleep(0.1)
        raise AssertionError("the server is never idle")

    def generate(self, tokens: list[int], max_new_tokens: int = 4, **more: Any) -> Any:
        sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True, "temperature": 0}
        sampling |= more.pop("sampling", {})
        return self.post("/generate", input_ids=tokens, sampling_params=sampling, **more)

    def series(self) -> dict[str, float]:
        """Those of `peek`, by name and labels as they stand there."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith("peek_")]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric."""
        return sum(value for series, value in self.series().items() if series.split("{")[0] == name)


@contextmanager
def serving(
    folder: Path, *flags: str, module: str = "sglang.launch_server", words: bool = False, **environ: str
) -> Iterator[Server]:
    """A server with its files in `folder`, server.log among them.

    `sglang_watching` is one of its plug-ins, and watches in `folder`.

    Args:
        flags: of the server's own.
        module: what is started.
        words: whether it has a tokenizer, for structured output.
        environ: what the environment has besides.
    """
    port = free_port()
    command = [sys.executable, "-m", module, *FLAGS, *([] if words else WITHOUT_WORDS), *flags]
    command += ["--model-path", write_model(folder / "model", words), "--host", "127.0.0.1"]
    plugin = folder / "watching-1.0.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: watching\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text(WATCHER)
    path = [str(folder), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(path)}
    fixed |= {"WATCH_FOLDER": str(folder), "TORCH_COMPILE_DISABLE": "1"}  # compiling takes longer than a test
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
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
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it would go on serving for half a minute
        process.wait()


def _wait(process: subprocess.Popen[bytes], server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            server.generate([5, 6, 7])  # /health is given 20 s, and a first answer may take longer
        except (URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    raise AssertionError(server.log.read_text()[-4000:])
