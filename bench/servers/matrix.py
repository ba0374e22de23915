"""Tests which features of each engine work with `peek`: real servers, stock and `peek` side by side.

    python -m bench.servers.matrix --python vllm=ENV/bin/python --python sglang=ENV/bin/python [--csv FILE]

Each row is a feature.  Both servers get the same 48 requests of six families at once, greedy, with seats for
four.  The row says whether all answers were equal, how many prompt tokens each server found in its cache,
how many of `peek`'s predictions were right, and how many errors left the engine in its own order.  If the
stock server does not start here, the row has the end of its log instead.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from bench.servers.engines import ENGINES, MODEL, Engine, environment, server
from bench.servers.processes import Failed, Server, counted, free_port
from bench.servers.run import FALLBACKS, describe
from bench.servers.shapes import SHAPES, write_model, write_weights

SHAPE: Final = replace(SHAPES["small"], pool=2_560, seats=4, step=512)
FAMILIES, EACH, PREFIX, OWN, ANSWER = 6, 8, 256, 32, 6
RANK: Final = 8
"""Of each LoRA adapter."""

SURPRISE: Final = "peek_cached_tokens_surprise"

Body: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Feature:
    """One row.

    Attributes:
        flags: options of the server's command; `{row}` stands for the row's folder, `{arm}` for the arm's.
        body: what a request has besides, by its number; None leaves a field out.
        path: where requests are sent.
        environ: variables of the server.
    """

    name: str
    flags: str = ""
    body: Callable[[int], Body] = lambda _: {}
    path: str = "/v1/completions"
    environ: tuple[tuple[str, str], ...] = ()


def connector(name: str, role: str = "kv_both", **more: object) -> str:
    said = {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": more}
    return f"--kv-transfer-config {shlex.quote(json.dumps(said))}"


def prioritized(number: int) -> Body:
    return {"priority": number % 3}


def adapted(number: int) -> Body:
    return {"model": f"adapter{number % 2}"}


def embedded(_: int) -> Body:
    return {"max_tokens": None, "temperature": None, "ignore_eos": None}


EMBEDDINGS: Final = "/v1/embeddings"
EXAMPLE: Final = "ExampleConnector"
HOST: Final = 64 << 20
"""Bytes of KV in host memory."""

TWO_CORES: Final = (("SGLANG_CPU_OMP_THREADS_BIND", "0|1"),)
NGRAM: Final = json.dumps({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})
FEATURES: Final = {
    "vllm": (
        Feature("as it comes"),
        Feature("no prefix caching", "--no-enable-prefix-caching"),
        Feature("asynchronous scheduling", "--async-scheduling"),
        Feature("priorities", "--scheduling-policy priority", prioritized),
        Feature(
            "LoRA",
            f"--enable-lora --max-lora-rank {RANK} --lora-modules "
            "adapter0={row}/adapter0 adapter1={row}/adapter1",
            adapted,
        ),
        Feature("structured output", body=lambda _: {"structured_outputs": {"choice": ["w7 w8", "w9"]}}),
        Feature("embeddings", "--runner pooling", embedded, EMBEDDINGS),
        Feature("speculation: n-grams", f"--speculative-config {shlex.quote(NGRAM)}"),
        Feature(
            "KV events", """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "null"}'"""
        ),
        Feature(f"connector: {EXAMPLE}", connector(EXAMPLE, shared_storage_path="{arm}/kv")),
        Feature(f"producer: {EXAMPLE}", connector(EXAMPLE, "kv_producer", shared_storage_path="{arm}/kv")),
        Feature("connector: OffloadingConnector", connector("OffloadingConnector", cpu_bytes_to_use=HOST)),
        Feature("connector: SimpleCPUOffload", connector("SimpleCPUOffloadConnector", cpu_bytes_to_use=HOST)),
        Feature("two tensor-parallel ranks", "--tensor-parallel-size 2"),
        Feature("two pipeline stages", "--pipeline-parallel-size 2"),
        Feature("two data-parallel ranks", "--data-parallel-size 2"),
    ),
    "sglang": (
        Feature("as it comes"),
        Feature("the core in Python", environ=(("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python"),)),
        Feature("no radix cache", "--disable-radix-cache"),
        Feature("no overlap of schedules", "--disable-overlap-schedule"),
        Feature("pages of 16", "--page-size 16"),
        Feature("mixed chunks", "--enable-mixed-chunk"),
        Feature("priorities", "--enable-priority-scheduling", prioritized),
        Feature(
            "LoRA", "--enable-lora --lora-paths adapter0={row}/adapter0 adapter1={row}/adapter1", adapted
        ),
        Feature("structured output", "--grammar-backend xgrammar", lambda _: {"regex": "(w7 w8|w9)"}),
        Feature("embeddings", "--is-embedding", embedded, EMBEDDINGS),
        Feature("speculation: n-grams", "--speculative-algorithm NGRAM"),
        Feature("KV on the host", "--enable-hierarchical-cache --hicache-size 1"),
        Feature(
            "KV on the host and in files",
            "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend file",
        ),
        Feature("sessions in the radix cache", "--enable-session-radix-cache"),
        Feature("prefill worker", "--disaggregation-mode prefill --disaggregation-transfer-backend fake"),
        Feature("two tensor-parallel ranks", "--tp-size 2", environ=TWO_CORES),
        Feature("two pipeline stages", "--pp-size 2", environ=TWO_CORES),
        Feature("two data-parallel ranks", "--dp-size 2", environ=TWO_CORES),
        Feature(
            "data-parallel attention", "--tp-size 2 --dp-size 2 --enable-dp-attention", environ=TWO_CORES
        ),
    ),
}
"""What a CPU may run, one by one."""


def write_adapter(folder: Path, seed: int) -> None:
    """A LoRA adapter of random weights for the queries and values of all layers."""
    folder.mkdir()
    words = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"]}
    words |= {"task_type": "CAUSAL_LM", "bias": "none", "lora_dropout": 0.0, "base_model_name_or_path": MODEL}
    (folder / "adapter_config.json").write_text(json.dumps(words))
    sizes: dict[str, tuple[int, ...]] = {}
    for layer in range(SHAPE.layers):
        for which in ("q", "v"):
            of = f"base_model.model.model.layers.{layer}.self_attn.{which}_proj"
            sizes[f"{of}.lora_A.weight"] = (RANK, SHAPE.hidden)
            sizes[f"{of}.lora_B.weight"] = (SHAPE.hidden, RANK)
    write_weights(folder / "adapter_model.safetensors", sizes, seed)


def requests(feature: Feature) -> list[Body]:
    """What is sent: prompts of token ids, families mixed, and what the feature adds."""
    drawn = Random(42)
    prefixes = [[drawn.randrange(3, SHAPE.vocabulary) for _ in range(PREFIX)] for _ in range(FAMILIES)]
    prompts = [
        [*prefix, *(drawn.randrange(3, SHAPE.vocabulary) for _ in range(OWN))]
        for prefix in prefixes
        for _ in range(EACH)
    ]
    drawn.shuffle(prompts)
    name = "input" if feature.path == EMBEDDINGS else "prompt"
    fixed = {"model": MODEL, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    bodies = [{**fixed, name: prompt, **feature.body(number)} for number, prompt in enumerate(prompts)]
    return [{key: value for key, value in body.items() if value is not None} for body in bodies]


def answer(address: str, path: str, body: Body) -> str:
    """The text of an answer, the first numbers of an embedding, or what the server says against it."""
    words = {"Content-Type": "application/json"}
    try:
        with urlopen(Request(address + path, json.dumps(body).encode(), words), timeout=180) as read:
            said = json.loads(read.read())
    except HTTPError as error:
        return f"{error.code}: {error.read().decode()[:200]}"
    except (URLError, ConnectionError, TimeoutError) as error:
        return str(error)
    if "data" in said:
        return str([round(value, 4) for value in said["data"][0]["embedding"][:8]])
    return str(said["choices"][0]["text"])


@dataclass(frozen=True, slots=True)
class Served:
    """What one server did: its answers, and its page of metrics."""

    answers: list[str]
    page: str


def serve(engine: Engine, python: Path, folder: Path, feature: Feature, arm: str) -> Served:
    """Start an arm's server, send all requests at once, and stop it.

    Raises:
        Failed: it does not start.
    """
    chosen = next(each for each in engine.arms if each.name == arm)
    own = folder / arm
    own.mkdir()
    flags = shlex.split(feature.flags.replace("{row}", str(folder)).replace("{arm}", str(own)))
    port = free_port()
    command = [*server(engine.name, chosen, python, folder / "model", SHAPE, port), *flags]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environ = {**environment(SHAPE), **dict(feature.environ), **dict(chosen.environ)}
    environ |= {"PYTHONPATH": path, "HOME": str(own)}
    running = Server(command, own, environ, port, engine.reset)
    try:
        running.wait()
        bodies = requests(feature)
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: answer(running.address, feature.path, body), bodies))
        return Served(answers, running.page())
    finally:
        running.close()


def why(log: Path) -> str:
    """The line of a log that says why a server did not run: the last error that it names."""
    errors = re.findall(r"\b((?:\w+Error|\w*Exception): .+)", log.read_text())
    named = [each for each in errors if not re.search(r"Consider increasing|See root cause above", each)]
    return named[-1][:160] if named else "its log names no error"


def row(engine: Engine, python: Path, folder: Path, feature: Feature) -> Body:
    """Serve a feature with both arms side by side."""
    write_model(folder / "model", SHAPE)
    for seed in (0, 1):
        write_adapter(folder / f"adapter{seed}", seed)
    found: Body = {"engine": engine.name, "feature": feature.name}
    arms = engine.arms[0].name, engine.arms[-1].name
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(serve, engine, python, folder, feature, arm) for arm in arms]
    for arm, served in zip(arms, running, strict=True):
        if (failed := served.exception()) is not None:
            if not isinstance(failed, (Failed, OSError)):
                raise failed
            return found | {"state": f"{arm} does not run: {why(folder / arm / 'server.log')}"}
    stock, peek = (each.result() for each in running)
    alike = sum(one == other for one, other in zip(stock.answers, peek.answers, strict=True))
    right = up_to(peek.page, SURPRISE, "0.0") - up_to(peek.page, SURPRISE, "-0.001")
    states = set(re.findall(r'^peek_state\{.*reason="([^"]*)".*\} 1', peek.page, re.MULTILINE))
    return found | {
        "state": "; ".join(sorted(states)),
        "answers alike": f"{alike} of {len(stock.answers)}",
        "cached, stock": round(counted(stock.page, engine.cached)),
        "cached, peek": round(counted(peek.page, engine.cached)),
        "predictions right": f"{right:.0f} of {counted(peek.page, f'{SURPRISE}_count'):.0f}",
        "fallbacks": round(counted(peek.page, FALLBACKS)),
        "first answer": stock.answers[0][:40].strip(),
    }


def up_to(page: str, histogram: str, bound: str) -> float:
    """What a histogram has counted up to a bound, over all labels."""
    buckets = [line for line in page.splitlines() if line.startswith(f"{histogram}_bucket{{")]
    return sum(float(line.rpartition(" ")[2]) for line in buckets if f'le="{bound}"' in line)


COLUMNS: Final = (
    "engine", "feature", "state", "answers alike", "cached, stock", "cached, peek", "predictions right",
    "fallbacks", "first answer",
)  # fmt: skip


def rows(pythons: Mapping[str, Path], wanted: str) -> Iterator[Body]:
    """Yield the rows of these engines whose names match `wanted`."""
    for name, python in pythons.items():
        for feature in FEATURES[name]:
            if re.search(wanted, feature.name):
                with tempfile.TemporaryDirectory(prefix="peek-matrix-") as folder:
                    describe(ENGINES[name], python, Path(folder))
                    yield row(ENGINES[name], python, Path(folder), feature)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="ENGINE=PATH, for each that is run")
    parser.add_argument("--feature", default="", help="only rows whose names match this expression")
    parser.add_argument("--csv", type=argparse.FileType("w"), default=sys.stdout)
    chosen = parser.parse_args()
    pythons = {name: Path(path).absolute() for name, path in (each.split("=", 1) for each in chosen.python)}
    writer = csv.DictWriter(chosen.csv, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for each in rows(pythons, chosen.feature):
        writer.writerow(each)
        chosen.csv.flush()


if __name__ == "__main__":
    main()
