"""What `bench.neutral` gives to other simulators, and what the page says of their answers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.neutral import aisimulate
from peek.simulation.cells import cell
from peek.simulation.workload import SimRequest, pack_tokens

TABLE = Path(__file__).resolve().parents[1] / "docs" / "data" / "neutral.csv"
BASE = cell("w1a", "heavy", 1, "vllm")


def test_another_simulator_agrees_as_the_page_says() -> None:
    """docs/simulator.md: hits within 0.2 points, one order of policies by mean TTFT."""
    with TABLE.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    assert len(found) == 36
    assert all(abs(float(row["hit"]) - float(row["aisimulate_hit"])) <= 0.002 for row in found)
    for name in {row["cell"] for row in found}:
        served = [row for row in found if row["cell"] == name and row["arrive"] == "at once"]
        here, there = (
            sorted(served, key=lambda row: float(row[column])) for column in ("mean_s", "aisimulate_mean_s")
        )
        assert here == there


@given(st.lists(st.integers(0, 2), max_size=50), st.lists(st.integers(0, 2), max_size=50))
def test_rows_for_it_share_the_blocks_that_prompts_share(one: list[int], other: list[int]) -> None:
    requests = [
        SimRequest(name, 0.0, pack_tokens([7, *ids]), 1 + len(ids), 1)
        for name, ids in (("a", one), ("b", other))
    ]
    workload = replace(BASE, requests=requests)
    first, second = (row["hash_ids"] for row in aisimulate.rows(workload, ["a", "b"]))
    blocks = [[tuple([7, *ids][at : at + 16]) for at in range(0, 1 + len(ids), 16)] for ids in (one, other)]
    for depth in range(min(map(len, blocks))):
        assert (first[depth] == second[depth]) == (blocks[0][: depth + 1] == blocks[1][: depth + 1])
    assert [len(first), len(second)] == [len(each) for each in blocks]
