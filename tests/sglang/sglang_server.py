"""SGLang's HTTP server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError

from sglang_lab import RELEASE
from sglang_model import write_model
from support import served
from support.alike_served import Host
from support.served import Answer, admissions
from support.waiting import free_port
from test_engine import ENGINE, HAS_PLUGINS, worked_prompts

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

    def ask(self, tokens: list[int], most: int = 4, **more: Any) -> Answer:
        named = {"rid": more.get("rid"), "extra_key": more.get("salt")}
        body: dict[str, Any] = {name: value for name, value in named.items() if value}
        if more.get("regex") and SglangHost.grammars:
            body["sampling"] = {"regex": more["regex"], "max_new_tokens": 8, "ignore_eos": False}
        found = self.generate(tokens, most, **body)
        return Answer(found["output_ids"], found.get("text", ""), int(found["meta_info"]["cached_tokens"]))

    def empty(self) -> None:
        assert self.flush().startswith("Cache flushed")

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


class SglangHost(Host):
    """With the default core."""

    engine, refuses_again, grammars = "sglang", True, RELEASE >= (0, 5, 23)  # where they work on a CPU
    in_process: ClassVar = {"SGLANG_USE_CPU_ENGINE": "1", "TORCH_COMPILE_DISABLE": "1"}
    _mixed = (
        "--enable-metrics", "--served-model-name=m", "--context-length=2150", "--max-total-tokens=200000",
    )  # fmt: skip
    sizes: ClassVar = {
        "worked": [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()],
        "roomy": [*_mixed, "--max-running-requests=1"],
        "small": [*_mixed, "--max-running-requests=4"],
        "traced": ["--max-total-tokens=1000", "--context-length=600", "--max-running-requests=3"],
    }

    def prompts(self) -> list[list[int]]:
        return list(worked_prompts().values())

    def serving(self, folder: Path, options: dict[str, Any] | None, *flags: str, **more: Any) -> Any:
        module = "sglang.launch_server" if HAS_PLUGINS else "peek.adapters.sglang.launch_server"
        environ = {} if options is None else {"PEEK_CONFIG": json.dumps(options)}
        if more.get("ranks", 1) > 1:
            cores = sorted(os.sched_getaffinity(0))
            environ["SGLANG_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
            flags = (*flags, "--tp-size=2")
        module = more.get("program", "").removeprefix("python -m ") or module
        environ |= more.get("environ", {})
        return serving(folder, *flags, module=module, words=more.get("words", False), **environ)

    def admitted(self, folder: Path) -> Path:
        return folder / "admitted-0"

    def check_ranks(self, folder: Path, log: str) -> None:
        assert admissions(folder / "admitted-0") == admissions(folder / "admitted-1")
        assert "is not looked at" not in log
        assert log.count("TP0] peek: switched from") == log.count("TP1] peek: switched from") > 0
