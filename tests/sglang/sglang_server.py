"""SGLang's HTTP server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from sglang_model import write_model
from support import served
from support.waiting import free_port

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


class Server(served.Server):
    """SGLang's server."""

    def ready(self) -> object:
        return self.generate([5, 6, 7])  # /health is given 20 s, and a first answer may take longer

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
    fixed = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    fixed |= {"WATCH_FOLDER": str(folder), "TORCH_COMPILE_DISABLE": "1"}  # compiling takes longer than a test
    server = Server(port, folder / "server.log")
    command += ["--port", str(port)]
    # It would go on serving for half a minute.
    with served.started(server, command, HERE, 0.0, **{**fixed, **environ}):
        yield server
