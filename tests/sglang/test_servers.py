"""The comparison of `bench/servers` on SGLang: it reads the commands, and one round of it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import prepare_server_args
from support.compared import check_a_round
from support.pages import ROOT

sys.path.append(str(ROOT))  # behind everything: `peek` stays the one that is tested

from bench.servers.cells import CELLS, Cell
from bench.servers.engines import ENGINES, Arm, client, server
from bench.servers.shapes import SHAPES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(version("sglang") != "0.5.23", reason="the version that is measured is 0.5.23"),
]


@pytest.mark.parametrize("arm", ENGINES["sglang"].arms, ids=lambda arm: arm.name)
def test_sglang_reads_the_servers_command(arm: Arm, tmp_path: Path) -> None:
    from bench.servers.shapes import write_model

    shape = SHAPES["small"]
    write_model(tmp_path, shape)
    command = server("sglang", arm, Path("python"), tmp_path, shape, 8123)
    read = prepare_server_args(command[3:])
    assert (read.port, read.max_total_tokens, read.max_running_requests) == (8123, shape.pool, shape.seats)
    assert read.schedule_policy == ("fcfs" if arm.environ else arm.name)


@pytest.mark.parametrize("cell", CELLS["sglang"], ids=lambda cell: cell.name)
def test_sglangs_client_reads_its_command(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.servers.client import run_sglang

    read: list[Any] = []
    words = client("sglang", cell, SHAPES["small"], 8123, 7, Path("model"), Path("t"), cell.load or None)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        patch.setitem(sys.modules, "datasets", sys.modules[__name__])
        patch.setattr(sys.modules[__name__], "load_dataset", None, raising=False)
        from sglang.benchmark import serving

        patch.setattr(serving, "run_benchmark", read.append)
        run_sglang(words, Path("result.json"))
    assert (read[0].dataset_name, read[0].seed) == (cell.data, 7)
    assert read[0].max_concurrency == (cell.window or None)
    assert read[0].request_rate == (cell.load or float("inf"))
    assert read[0].output_file == "result.json"


def test_a_round_runs(tmp_path: Path) -> None:
    check_a_round(tmp_path, "sglang", "SGLang", 1)
