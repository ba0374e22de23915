"""Out of core and on a cluster: the same order as in memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_batches import Prompt, branching, grouped, own, rollouts

from peek.cli.main import main
from peek.offline import reorder, split
from peek.offline.out_of_core import OutOfCoreOrder
from peek.offline.shape import contract, shape_of

duckdb = pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")

batches = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=30)


def mixed(rnd: random.Random) -> list[Prompt]:
    batch = (
        grouped(rnd, 300, 20, 128, 32, system=48)
        + rollouts(rnd, 20, 5, 100)
        + branching(rnd, 200, trees=5, levels=4, edge=16, fan=3, tail=24)
        + [own(rnd, rnd.randrange(1, 200)) for _ in range(150)]
    )
    rnd.shuffle(batch)
    return batch


def packed(batch: list[Prompt]) -> list[bytes]:
    return [np.array(prompt, np.int32).tobytes() for prompt in batch]


def collected(batch: list[Prompt], block: int, chunk: int = 64, names: list[str] | None = None) -> Any:
    order = OutOfCoreOrder(duckdb.connect(), block)
    keys = packed(batch)
    for start in range(0, len(batch), chunk):
        n = len(keys[start : start + chunk])
        spaces = [""] * n if names is None else names[start : start + n]
        order.add(keys[start : start + chunk], spaces, range(n), [0] * n, [f"p{start + i}" for i in range(n)])
    return order


@settings(max_examples=20)
@given(batches, st.integers(1, 3))
def test_duckdb_gives_the_order_in_memory(batch: list[Prompt], block: int) -> None:
    order = collected(batch, block, chunk=7)
    order.arrange()
    rows = list(order.rows())
    assert [row.prompt for row in rows] == reorder(batch, block_tokens=block, simulate=False).order
    assert [row.name for row in rows] == [f"p{row.prompt}" for row in rows]


def test_duckdb_on_a_mixed_batch() -> None:
    batch = mixed(random.Random(8))
    order = collected(batch, 16)
    order.arrange(4)
    rows = list(order.rows())
    expected = reorder(batch, simulate=False).order
    assert [row.prompt for row in rows] == expected
    shape = contract(shape_of(batch), 16)
    assert order.uncached_tokens == split(shape, expected, 1, 16)[0].uncached_tokens
    parts = [[row.prompt for row in rows if row.replica == replica] for replica in range(4)]
    work = [split(shape, part, 1, 16)[0].uncached_tokens for part in parts]
    assert max(work) <= 1.05 * min(work)


def test_duckdb_and_namespaces() -> None:
    batch = mixed(random.Random(9))
    names = [random.Random(i).choice(["", "a", "b"]) for i in range(len(batch))]
    order = collected(batch, 16, names=names)
    order.arrange()
    assert [row.prompt for row in order.rows()] == reorder(batch, namespaces=names, simulate=False).order


def test_the_command_gives_the_same_file_either_way(tmp_path: Path) -> None:
    from test_offline_cli import chat_rows, lines, write

    source = write(tmp_path / "in.jsonl.gz", chat_rows(400))
    for way in ("--in-memory", "--out-of-core"):
        arguments = [way, "--replicas", "2", "--cache-tokens", "1000", "--explain"]
        assert main(["reorder", str(source), str(tmp_path / f"out{way}.jsonl"), *arguments]) == 0
    both = [
        [*lines(tmp_path / f"out{way}.0.jsonl"), *lines(tmp_path / f"out{way}.1.jsonl")]
        for way in ("--in-memory", "--out-of-core")
    ]
    assert both[0] == both[1]
    assert len(list(tmp_path.iterdir())) == 7


# -- on a cluster -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray = pytest.importorskip("ray", reason="needs the extra peek-kv[ray]")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_order_in_memory(cluster: Any) -> None:
    from peek.offline.distributed import reorder_dataset

    batch = mixed(random.Random(10))
    items = [{"row": i, "tokens": prompt, "name": f"p{i}"} for i, prompt in enumerate(batch)]
    dataset = cluster.data.from_items(items, override_num_blocks=3)
    (whole,) = reorder_dataset(dataset, partitions=2)
    rows = whole.take_all()
    expected = reorder(batch, simulate=False).order
    assert [row["row"] for row in rows] == expected
    assert [row["name"] for row in rows] == [f"p{i}" for i in expected]
