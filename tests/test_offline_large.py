"""Out of core and on a cluster: the same order as in memory."""

from __future__ import annotations

import random
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_files import chat_rows, lines, write
from support.offline_batches import Prompt, branching, grouped, own, rollouts
from support.waiting import start_ray

from peek import InvalidConfig
from peek.cli.main import main
from peek.offline import reorder
from peek.offline.replicas import split
from peek.offline.scale.duckdb_order import OutOfCoreOrder
from peek.offline.scale.ray_data import Columns, process_dataset, reorder_dataset
from peek.offline.shape import contract, depth_first, shape_of

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


def collected(batch: list[Prompt], block: int, chunk: int = 64, names: list[str] | None = None) -> Any:
    duckdb = pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")
    order = OutOfCoreOrder(duckdb.connect(), block, chunk)
    for i, prompt in enumerate(batch):
        key = np.array(prompt, np.int32).tobytes()
        order.add(key, "" if names is None else names[i], (0, 0, i, f"p{i}"))
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
    assert [0, *accumulate(map(len, parts))] == list(order._cuts), "each begins at its cut"


def test_duckdb_and_namespaces() -> None:
    batch = mixed(random.Random(9))
    names = [random.Random(i).choice(["", "a", "b"]) for i in range(len(batch))]
    order = collected(batch, 16, names=names)
    order.arrange()
    assert [row.prompt for row in order.rows()] == reorder(batch, namespaces=names, simulate=False).order


def test_the_command_gives_the_same_file_either_way(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="needs the extra peek-kv[offline]")
    source = write(tmp_path / "in.jsonl.gz", chat_rows(400))
    both = []
    for way in ("--in-memory", "--out-of-core"):
        arguments = [way, "--replicas", "2", "--cache-tokens", "1000", "--explain"]
        assert main(["reorder", str(source), str(tmp_path / f"out{way}.jsonl"), *arguments]) == 0
        both.append([lines(tmp_path / f"out{way}.{replica}.jsonl") for replica in range(2)])
    assert both[0] == both[1]
    assert len(list(tmp_path.iterdir())) == 7


# -- on a cluster -----------------------------------------------------------------------------------------


class LocalDataset:
    """As much of `ray.data.Dataset` as the pipeline asks for, on rows in a list; batches default to seven."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def _apply(
        self, function: Any, parts: list[list[dict[str, Any]]], arguments: dict[str, Any]
    ) -> LocalDataset:
        result = []
        for part in filter(None, parts):
            columns = {}
            for name in part[0]:
                columns[name] = np.empty(len(part), object)
                columns[name][:] = [row[name] for row in part]
                if name != "tokens" and not isinstance(part[0][name], str):
                    columns[name] = columns[name].astype(np.int64)
            found = {name: list(values) for name, values in function(columns, **arguments).items()}
            result += [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return LocalDataset(result)

    def map_batches(
        self, function: Any, *, fn_kwargs: Any, batch_format: str, batch_size: int | None = 7
    ) -> LocalDataset:
        size = batch_size or 7
        parts = [self.rows[i : i + size] for i in range(0, len(self.rows), size)]
        return self._apply(function, parts, fn_kwargs)

    def groupby(self, column: str, num_partitions: int) -> LocalGroups:
        groups: dict[Any, list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault(row[column], []).append(row)
        return LocalGroups(self, list(groups.values()))

    def repartition(self, count: int) -> LocalDataset:
        return self

    def sort(self, columns: str | list[str]) -> LocalDataset:
        names = [columns] if isinstance(columns, str) else columns
        return LocalDataset(sorted(self.rows, key=lambda row: [row[name] for name in names]))

    def union(self, *others: LocalDataset) -> LocalDataset:
        return LocalDataset([row for each in (self, *others) for row in each.rows])

    def materialize(self) -> LocalDataset:
        return self

    def count(self) -> int:
        return len(self.rows)

    def take_all(self) -> list[dict[str, Any]]:
        return self.rows

    def split_at_indices(self, indices: list[int]) -> list[LocalDataset]:
        ends = [0, *indices, len(self.rows)]
        return [LocalDataset(self.rows[a:b]) for a, b in pairwise(ends)]


class LocalGroups:
    def __init__(self, dataset: LocalDataset, groups: list[list[dict[str, Any]]]) -> None:
        self.dataset = dataset
        self.groups = groups

    def map_groups(self, function: Any, *, batch_format: str, fn_kwargs: Any = None) -> LocalDataset:
        return self.dataset._apply(function, self.groups, fn_kwargs or {})


@settings(max_examples=40)
@given(batches, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_the_pipeline_gives_the_order_in_memory(
    batch: list[Prompt], block: int, partitions: int, replicas: int
) -> None:
    items = [{"row": i, "tokens": prompt, "name": f"p{i}"} for i, prompt in enumerate(batch)]
    columns = Columns(block_tokens=block)
    parts = reorder_dataset(LocalDataset(items), columns=columns, replicas=replicas, partitions=partitions)
    rows = [row for part in parts for row in part.take_all()]
    assert len(parts) == replicas
    shape = contract(shape_of(batch), block)
    assert [row["row"] for row in rows] == depth_first(shape).tolist()
    assert [row["name"] for row in rows] == [f"p{row['row']}" for row in rows]


def test_the_parts_of_a_pipeline_are_even() -> None:
    batch = mixed(random.Random(11)) * 4
    items = [{"row": i, "tokens": prompt} for i, prompt in enumerate(batch)]
    parts = reorder_dataset(LocalDataset(items), replicas=4, partitions=4)
    shape = contract(shape_of(batch), 16)
    orders = [[row["row"] for row in part.take_all()] for part in parts]
    assert list(chain.from_iterable(orders)) == depth_first(shape).tolist()
    work = [split(shape, order, 1, 16)[0].uncached_tokens for order in orders]
    assert max(work) <= 1.05 * min(work)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_processor_works_in_order_and_its_rows_come_back(replicas: int) -> None:
    batch = mixed(random.Random(3))
    rows = [{"number": i, "tokens": prompt} for i, prompt in enumerate(batch)]
    seen: list[list[int]] = []

    def processor(part: LocalDataset) -> LocalDataset:
        seen.append([row["number"] for row in part.rows])
        return LocalDataset([{"number": row["number"], "answer": len(row["tokens"])} for row in part.rows])

    done = process_dataset(
        LocalDataset(rows), processor, columns=Columns(row="number"), replicas=replicas, partitions=2
    )
    assert len(seen) == replicas
    assert [number for part in seen for number in part] == reorder(batch, simulate=False).order
    assert done.take_all() == [{"number": i, "answer": len(prompt)} for i, prompt in enumerate(batch)]


def test_wrong_numbers() -> None:
    with pytest.raises(InvalidConfig):
        reorder_dataset(LocalDataset([]), replicas=0)


@pytest.fixture(scope="module")
def cluster() -> Any:
    pytest.importorskip("ray", reason="needs the extra peek-kv[ray]")
    ray = start_ray(num_cpus=2, log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_order_in_memory(cluster: Any) -> None:
    batch = mixed(random.Random(10))
    items = [{"row": i, "tokens": prompt, "name": f"p{i}"} for i, prompt in enumerate(batch)]
    dataset = cluster.data.from_items(items, override_num_blocks=3)
    (whole,) = reorder_dataset(dataset, partitions=2)
    rows = whole.take_all()
    expected = reorder(batch, simulate=False).order
    assert [row["row"] for row in rows] == expected
    assert [row["name"] for row in rows] == [f"p{i}" for i in expected]
