"""Checks our simulated SGLang on SGLang's own simulator: real scheduler and cache, predicted step times.

The simulator is `tools/sglang-simulator` of `sgl-project/sglang` on GitHub.  The tables were made with its
parts for an engine without a host tier, the hooks of the scheduler as of commit 0b6108346cea.  Its step
times are those of `aiconfigurator`: Qwen3-32B on one H100, by the tables for SGLang 0.5.12.

    make .venv-sglang-0.5.23/.stamp-peek SGLANG_ENV=.venv-sglang-
    .venv-sglang-0.5.23/bin/python -m pip install --no-deps \\
        aiconfigurator==0.10.0 pandas==3.1.1 scipy==1.17.1 pyarrow==26.0.1 munch==4.0.0 python-dateutil==4.0.0
    PYTHONPATH=SGLANG/tools/sglang-simulator/src \\
        .venv-sglang-0.5.23/bin/python -m bench.neutral.sglang [--csv FILE]

Release 0.5.23 renamed what that commit reads, and the copy that ran was changed so:
`len(req.prefix_indices)` is `req.prefix_len`, and `req.extend_range.length` is `req.extend_len`.
`aiconfigurator` 0.10.0 has no `_nearest_1d_point_helper`.

All requests are there at once.  The simulator's clock adds the time that the scheduler needs on this machine.
With all requests at once that time changes no decision, so it is taken out again.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.builds import require_compiled
from bench.neutral.loads import SEED, Served, at_once, load, ours
from peek.simulation.engines import CHUNK_TOKENS, MAX_PREFILL_TOKENS
from peek.simulation.workload import Workload

CELLS: Final = ("w1a", "w1c", "w1d")
POLICIES: Final = {
    "fcfs": "fcfs+lru",
    "lpm": "lpm+lru",
    "hrrn": "hrrn-limit+lru",
    "peek": "peek",
}
"""`--schedule-policy` of SGLang, or `peek` for the plug-in, and our label for the same."""

MODEL: Final = "Qwen--Qwen3-32B_config.json"
CONFIG: Final = {
    "platform": {"accelerator": {"name": "h100_sxm", "hbm_capacity_gb": 80}},
    "predictor": {"name": "aiconfigurator", "database_mode": "SILICON"},
    "scheduler": {"backend_name": "sglang", "backend_version": "0.5.12"},
}


def short(workload: Workload, requests: int, answer_tokens: int) -> Workload:
    """Return the first requests, all there at once, with answers of that length.

    The scheduler is real, so each step takes its time: a decode step as long as any other.
    """
    first = [replace(each, output_tokens=answer_tokens) for each in workload.requests[:requests]]
    return at_once(replace(workload, requests=first))


def engine(folder: Path, policy: str, workload: Workload) -> Any:
    """Start the simulator's engine with the workload's arena and seats; `folder` takes what it writes."""
    import aiconfigurator

    configs = Path(aiconfigurator.__file__).parent / "model_configs"
    (folder / "config.json").write_text((configs / MODEL).read_text())
    (folder / "simulator.json").write_text(json.dumps(CONFIG))
    os.environ.update(
        SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1",
        SGLANG_SIMULATOR_CONFIG_PATH=str(folder / "simulator.json"), SGLANG_SIMULATOR_OUTPUT_DIR=str(folder),
    )  # fmt: skip
    os.environ.pop("PEEK_POLICY", None)
    if policy == "peek":
        os.environ["PEEK_POLICY"] = "peek"
    from sglang_simulator.compat import apply_simulator_server_args
    from sglang_simulator.simulation.sglang.engine import SGLangSimulationEngine

    arguments = {
        "model_path": str(folder), "skip_tokenizer_init": True, "device": "cpu", "dtype": "bfloat16",
        "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "error",
        "schedule_policy": "fcfs" if policy == "peek" else policy,
        "max_total_tokens": workload.arena_tokens, "max_running_requests": workload.max_running,
        "chunked_prefill_size": CHUNK_TOKENS, "max_prefill_tokens": MAX_PREFILL_TOKENS,
    }  # fmt: skip
    apply_simulator_server_args(arguments)
    return SGLangSimulationEngine(**arguments)


async def serve(engine: Any, workload: Workload) -> None:
    """Serve all requests from an empty cache; the simulator then writes its figures."""
    await engine.tokenizer_manager.flush_cache()
    await engine.tokenizer_manager.start_profile()
    about = {"total_request": len(workload.requests), "created_time": 0.0}
    await asyncio.gather(
        *(
            engine.async_generate(
                rid=each.request_id,
                input_ids=np.frombuffer(each.key, "<i4").tolist(),
                sampling_params={
                    "ignore_eos": True,
                    "max_new_tokens": each.output_tokens,
                    "custom_params": {"simulation": about},
                },
            )
            for each in workload.requests
        )
    )
    await engine.tokenizer_manager.start_profile()


def theirs(folder: Path) -> Served:
    """Read the figures of the last run, by a clock without the time that this machine needed."""
    told = json.loads((folder / "metrics.json").read_text())
    steps, requests = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("iteration", "request")
    )
    forward_s = np.cumsum([step["forward_latency"] for step in steps])
    clock_s = np.cumsum([step["forward_latency"] + step["cpu_overhead"] for step in steps])
    first_s = np.interp([each["gen_token_latencies"][0] for each in requests], clock_s, forward_s)
    return Served(
        told["prefix_cache_reused_ratio"], first_s.mean(), np.percentile(first_s, 99), forward_s[-1]
    )


def run(workloads: Sequence[Workload], policies: Iterable[str]) -> Iterator[tuple[str, str, Served, Served]]:
    """Serve the workloads under each policy; yield both names, and what came of it here and there."""
    for policy in policies:
        with tempfile.TemporaryDirectory() as name:
            started = engine(Path(name), policy, workloads[0])
            try:
                for workload in workloads:
                    started.loop.run_until_complete(serve(started, workload))
                    here, _ = ours(workload, POLICIES[policy], "radix")
                    yield workload.name, policy, here, theirs(Path(name))
            finally:
                started.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=CELLS)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--answer", type=int, default=16, help="length of an answer in tokens")
    parser.add_argument("--csv", type=Path, default=Path("/dev/stdout"))
    arguments = parser.parse_args()
    require_compiled()
    loads = [load(name, arguments.seed, "radix") for name in arguments.cells]
    workloads = [short(each, arguments.requests, arguments.answer) for each in loads]
    if len({(each.arena_tokens, each.max_running) for each in workloads}) > 1:
        parser.error("these cells differ in arena or seats, which an engine has for as long as it runs")
    with arguments.csv.open("w", buffering=1) as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["cell", "policy", *Served._fields, *(f"sglang_{name}" for name in Served._fields)])
        for name, policy, here, there in run(workloads, arguments.policies):
            out.writerow([name, policy, *(f"{value:.4g}" for value in (*here, *there))])


if __name__ == "__main__":  # the spawned processes import this file
    main()
