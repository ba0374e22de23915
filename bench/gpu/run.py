"""Stock vLLM beside `peek` on a real engine: the same requests, the same arrivals, one policy after another.

    python -m bench.gpu.run --model 7b --out results            # about what a GPU needs
    python -m bench.gpu.run --model tiny --cpu --out results    # the same on a CPU, to try the harness

For each policy the engine starts once and replays the loads with an emptied prefix cache.  Every result
is appended to `OUT/results.jsonl` as soon as it is there, so a run that is cut off leaves what it measured;
started again it goes on where it stopped.  Exit status 1 if a policy could not be measured.

The `peek` that is measured is the one that Python finds first: see docs/gpu.md.  It must be compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.gpu.client import EngineFailed, EngineProcess
from bench.gpu.loads import LOADS, REQUESTS, Load, Request, load
from bench.gpu.metrics import summary
from bench.gpu.shapes import GRAPHS, POLICIES, SHAPES, engine_arguments, write_model

START_LIMIT_S = 300.0
ANSWER_LIMIT_S = 30.0


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.jsonl and engine.log")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all three")
    parser.add_argument("--load", action="append", choices=LOADS, help="default: all there is data for")
    parser.add_argument("--sessions", type=Path, help="archive of recorded sessions, for the load 'sessions'")
    parser.add_argument("--requests", type=int, help="per load; default: as in loads.REQUESTS")
    parser.add_argument("--rate-scale", type=float, help="default: the shape's")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--graphs", choices=GRAPHS, default="decode", help="CUDA graphs")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--run-limit-s", type=float, default=240.0, help="of one replay")
    parser.add_argument("--total-limit-s", type=float, default=480.0, help="no replay starts after this")
    return parser.parse_args(arguments)


def loads_of(chosen: argparse.Namespace) -> list[Load]:
    shape = SHAPES[chosen.model]
    scale = chosen.rate_scale or shape.rate_scale
    names = chosen.load or [name for name in LOADS if name != "sessions" or chosen.sessions]
    return [
        load(
            name, chosen.seed, chosen.requests or REQUESTS[name],
            rate_scale=scale, shrink=shape.shrink, archive=chosen.sessions,
        )
        for name in names
    ]  # fmt: skip


def environment(folder: Path, *, cpu: bool) -> dict[str, str]:
    """The engine's: no network, its counters in files, settings of a shell left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PEEK_")}
    counters = folder / "counters"
    counters.mkdir(exist_ok=True)
    added = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # sampling is greedy; else vLLM fails where FlashInfer is not
        "PROMETHEUS_MULTIPROC_DIR": str(counters),
        "PYTHONUNBUFFERED": "1",
    }
    if cpu:  # forked: what the process has imported need not be imported again
        added |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    return {**kept, **added}


class Session:
    """A whole run: which policy and load come next, and where the results go."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._results = chosen.out / "results.jsonl"
        self._begin = perf_counter()
        self._failures = 0

    def _left_s(self) -> float:
        return float(self._chosen.total_limit_s) - (perf_counter() - self._begin)

    def _missing(self, policy: str, loads: list[Load]) -> list[Load]:
        """Those loads of which there is no result yet."""
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        rows = [json.loads(line) for line in lines]
        there = {(row["model"], row["policy"], row["load"], row["seed"]) for row in rows}
        key = (self._chosen.model, policy)
        return [one for one in loads if (*key, one.name, self._chosen.seed) not in there]

    async def run(self) -> int:
        """Everything that is missing; the exit status."""
        self._chosen.out.mkdir(parents=True, exist_ok=True)
        loads = loads_of(self._chosen)
        with tempfile.TemporaryDirectory(prefix="peek-gpu-") as folder:
            model = write_model(Path(folder) / "model", SHAPES[self._chosen.model])
            for policy in self._chosen.policy or POLICIES:
                missing = self._missing(policy, loads)
                if missing and self._left_s() > 0:
                    await self._measure(Path(folder), model, policy, missing)
                elif missing:
                    self._fail(policy, "no time left")
        return 1 if self._failures else 0

    def _fail(self, policy: str, why: str) -> None:
        self._failures += 1
        print(f"{policy}: {why}", file=sys.stderr, flush=True)

    async def _measure(self, folder: Path, model: str, policy: str, loads: list[Load]) -> None:
        """All of `loads` under one policy, on an engine of its own."""
        chosen, shape = self._chosen, SHAPES[self._chosen.model]
        arguments = engine_arguments(model, shape, policy, cpu=chosen.cpu, graphs=chosen.graphs)
        begin = perf_counter()
        engine = None
        try:
            engine = await self._engine(folder)
            limit_s = min(START_LIMIT_S, max(1.0, self._left_s()))
            about = await engine.ask(limit_s, "start", "ready", engine=arguments)
            heated = await engine.replay(_heating(shape.max_model_len), 3 * ANSWER_LIMIT_S)
            if heated.broken:
                raise EngineFailed(heated.broken[0])
            about["start_s"] = round(perf_counter() - begin, 1)
            print(f"{policy}: engine up after {about['start_s']} s", flush=True)
            for one in loads:
                if self._left_s() <= 0:
                    self._fail(policy, f"no time left for {one.name}")
                    return
                self._save(policy, one, about, await self._replay(engine, one))
        except EngineFailed as error:
            self._fail(policy, str(error))
        finally:
            if engine is not None:
                engine.kill()
                await asyncio.sleep(0 if chosen.cpu else 3)  # the driver takes its memory back

    async def _engine(self, folder: Path) -> EngineProcess:
        log = self._chosen.out
        return await EngineProcess.launch(log, environment(folder, cpu=self._chosen.cpu))

    async def _replay(self, engine: EngineProcess, one: Load) -> dict[str, Any]:
        """One load on an empty cache: its metrics, and what `peek` counted meanwhile."""
        emptied = await engine.ask(ANSWER_LIMIT_S, "reset", "reset")
        before = (await engine.ask(ANSWER_LIMIT_S, "counters", "counters"))["counters"]
        replay = await engine.replay(one, min(self._chosen.run_limit_s, max(1.0, self._left_s())))
        after = (await engine.ask(ANSWER_LIMIT_S, "counters", "counters"))["counters"]
        counted = {name: value - before.get(name, 0.0) for name, value in after.items()}
        return {**summary(one, replay), "cache_was_emptied": emptied["done"], "counters": counted}

    def _save(self, policy: str, one: Load, about: dict[str, Any], result: dict[str, Any]) -> None:
        chosen, shape = self._chosen, SHAPES[self._chosen.model]
        settings = {
            "model": chosen.model, "policy": policy, "load": one.name, "seed": chosen.seed,
            "rate_scale": chosen.rate_scale or shape.rate_scale, "arena_tokens": shape.blocks * shape.block,
            "graphs": "off" if chosen.cpu else chosen.graphs,
        }  # fmt: skip
        about = {name: value for name, value in about.items() if name != "event"}
        with self._results.open("a") as sink:
            sink.write(json.dumps({**settings, **about, **result}) + "\n")
            sink.flush()
            os.fsync(sink.fileno())
        mean = result["ttft_s"]["mean"]
        print(f"{policy} {one.name}: mean TTFT {mean} s, {result['throughput_rps']} requests/s", flush=True)


def _heating(longest: int) -> Load:
    """Requests that nobody measures: what is compiled or loaded at first use is so afterwards."""
    lengths = [16, 300, longest // 4, longest // 2, *([100] * 12)]
    requests = [
        Request(0.0, [5000 + 7 * number + 3 * token for token in range(length)], 8)
        for number, length in enumerate(lengths)
    ]
    return Load("heating", requests, 0, 0.0)


if __name__ == "__main__":
    sys.exit(asyncio.run(Session(options(sys.argv[1:])).run()))
