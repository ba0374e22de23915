"""Runs SGLang's whole engine on the CPU, in a process of its own: `engine_run.py JOB.json RESULT.json`.

A job is `{"model": folder, "runs": [run, ...]}`; a run holds `prompts` (name -> token ids, handed over in
this order), `max_tokens` (name -> number), `engine` (arguments of `ServerArgs`) and, if not SGLang's own,
`engine_class`, the dotted path of the class to start.  The result has, for each run, cached tokens and
generated tokens by name.  The scheduler is always a process that the engine spawns; settings reach it
through the environment of this one, which `environ` of a run adds to.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

STOCK = "sglang.srt.entrypoints.engine.Engine"
ON_CPU: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "random_seed": 0,
    "log_level": "warning",
}


def engine_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def run(model: str, job: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(job.get("environ", {}))
    make = engine_class(job.get("engine_class", STOCK))
    engine = make(model_path=model, **{**ON_CPU, **job["engine"]})
    try:
        outputs = engine.generate(
            input_ids=list(job["prompts"].values()),
            sampling_params=[
                {"temperature": 0, "ignore_eos": True, "max_new_tokens": job["max_tokens"][name]}
                for name in job["prompts"]
            ],
        )
    finally:
        engine.shutdown()
    named = dict(zip(job["prompts"], outputs, strict=True))
    return {
        "cached": {name: output["meta_info"]["cached_tokens"] for name, output in named.items()},
        "tokens": {name: list(output["output_ids"]) for name, output in named.items()},
    }


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    results = [run(task["model"], job) for job in task["runs"]]
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":  # the spawned processes import this file
    main()
