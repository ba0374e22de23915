"""The whole engine on the CPU: scheduler and workers in processes of their own, as SGLang starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang_lab import CORES, HAS_CORES, RELEASE
from sglang_model import write_model
from support import whole
from support.whole import cached

pytestmark = pytest.mark.slow

SHARED, OWN = 1900, 100
ENGINE = {
    "max_total_tokens": 2200,  # one prompt
    "context_length": 2150,
    "chunked_prefill_size": 4096,
    "max_running_requests": 8,
    "schedule_policy": "fcfs",
}
OURS = "peek.adapters.sglang.Engine"
HAS_PLUGINS = RELEASE >= (0, 5, 11)


def worked_prompts() -> dict[str, list[int]]:
    return whole.worked_prompts(SHARED, OWN)


def job(**environ: str) -> dict[str, Any]:
    prompts = worked_prompts()
    run = {"prompts": prompts, "max_tokens": dict.fromkeys(prompts, 4), "engine": ENGINE, "environ": environ}
    if environ and not HAS_PLUGINS:
        run["engine_class"] = OURS
    return run


def run_engine(folder: Path, run: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The result, and what the processes wrote."""
    script = Path(__file__).with_name("engine_run.py")
    rows, said = whole.run_engine(script, folder, write_model(folder / "model"), [run])
    return rows[0], said


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_engine(tmp_path_factory.mktemp("sglang") / "stock", job())[0]


def test_stock_order_finds_nothing(stock: dict[str, Any]) -> None:
    assert cached(stock) == 0


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("label", ["peek", "clpm+gm+dl+pe"])
def test_worked_check(label: str, core: str | None, stock: dict[str, Any], tmp_path: Path) -> None:
    environ = {"PEEK_POLICY": label}
    if core is not None:
        environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = core
    row, _ = run_engine(tmp_path / "run", job(**environ))
    assert cached(row) == 5 * SHARED
    assert sorted(name for name, n in row["cached"].items() if n == 0) == ["A1", "B1", "C1"]
    assert row["tokens"] == stock["tokens"]


def test_installed_and_not_asked_for(stock: dict[str, Any], tmp_path: Path) -> None:
    row, _ = run_engine(tmp_path / "run", job() if HAS_PLUGINS else {**job(), "engine_class": OURS})
    assert row == stock


@pytest.mark.skipif(not HAS_CORES, reason="takes minutes, and the ranks of older versions do the same")
def test_two_ranks_come_to_one_order(tmp_path: Path) -> None:
    """Tensor parallelism: each rank sorts a queue of its own, and they compute together what each has picked.

    Ranks of different orders wait for each other in vain, or compute nonsense.
    """
    rows, logs = [], []
    for name, asked in (("stock", {}), ("planned", {"PEEK_POLICY": "peek"})):
        run = job(**asked)
        run["environ"] = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", **asked}
        run["engine"] = {**ENGINE, "tp_size": 2, "log_level": "info"}
        row, log = run_engine(tmp_path / name, run)
        rows.append(row)
        logs.append(log)
    assert cached(rows[0]) == 0
    assert cached(rows[1]) == 5 * SHARED
    assert rows[1]["tokens"] == rows[0]["tokens"]
    assert logs[1].count("peek: active") == 2
