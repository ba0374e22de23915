"""The comparison of `bench/servers` on vLLM: it reads the commands, and one round of it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.compared import check_a_round
from support.pages import ROOT
from test_engine import pytestmark

pytest.importorskip("vllm.entrypoints.launchers.cli_args", reason="a vLLM before the one that is measured")

from vllm.benchmarks import serve
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

sys.path.append(str(ROOT))  # behind everything: `peek` stays the one that is tested

from bench.servers.cells import CELLS, Cell
from bench.servers.engines import ENGINES, Arm, client, server
from bench.servers.shapes import SHAPES

__all__ = ["pytestmark"]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("arm", ENGINES["vllm"].arms, ids=lambda arm: arm.name)
def test_vllm_reads_the_servers_command(arm: Arm, shape: Any) -> None:
    command = server("vllm", arm, Path("python"), Path("model"), shape, 8123)
    words = command[command.index("serve") + 1 :]
    read = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    assert (read.model_tag, read.port, read.max_num_seqs) == ("model", 8123, shape.seats)
    assert read.block_size * read.num_gpu_blocks_override <= shape.pool
    assert read.scheduler_cls == ("peek.adapters.vllm.Scheduler" if arm.environ else None)


@pytest.mark.parametrize("cell", CELLS["vllm"], ids=lambda cell: cell.name)
def test_vllms_client_reads_its_command(cell: Cell) -> None:
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    words = client("vllm", cell, SHAPES["small"], 8123, 7, Path("model"), Path("t.jsonl"), cell.load or None)
    read = parser.parse_args(words)
    assert (read.dataset_name, read.seed, read.max_concurrency) == (cell.data, 7, cell.window or None)
    assert read.request_rate == (cell.load or float("inf"))


def test_a_round_runs(tmp_path: Path) -> None:
    check_a_round(tmp_path, "vllm", "vLLM", 0)
