"""`peek reorder` and `peek restore` on Parquet files: rows stay whole, whatever their order."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.batch_files import chat_rows, json_rows, lines
from support.fixtures import Capsys, Patch
from support.offline_batches import grouped
from test_offline_files import run

from peek.cli.main import main

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CACHE = ["--cache-tokens", "500"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table_of(rows: list[dict[str, Any]], path: str) -> Any:
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, path, row_group_size=50)
    return table


def plain_rows(n: int = 300) -> list[dict[str, Any]]:
    """Token ids, and columns that are none of a request's."""
    batch = grouped(random.Random(5), n, 12, 256, 32)
    return [
        {"custom_id": f"r-{i}", "prompt_token_ids": prompt, "extra": {"of": bytes([i % 256]), "at": float(i)}}
        for i, prompt in enumerate(batch)
    ]


def split_rows(rows: list[str]) -> list[dict[str, Any]]:
    """Lines of a batch file as rows with a body of JSON text."""
    return [{**row, "body": json.dumps(row["body"])} for row in map(json.loads, rows)]


def test_there_and_back(here: Path) -> None:
    before = table_of(plain_rows(), "in.parquet")
    assert main(["reorder", "in.parquet", "out.parquet", *CACHE]) == 0
    after = pq.read_table("out.parquet")
    assert after.schema == before.schema
    order = [number - 1 for number, _ in map(json.loads, lines(here / "out.order"))]
    assert sorted(order) == list(range(300)) != order
    assert after == before.take(order)
    results = after.select(["custom_id"]).append_column("answer", pa.array(range(300)))
    pq.write_table(results, "results.parquet")
    assert main(["restore", "results.parquet", "back.parquet", "--order", "out.order"]) == 0
    back = pq.read_table("back.parquet")
    assert back["custom_id"].to_pylist() == [f"r-{i}" for i in range(300)]
    assert [order[answer] for answer in back["answer"].to_pylist()] == list(range(300))


@pytest.mark.parametrize("rows", [json_rows(200), chat_rows()], ids=["tokens", "chat"])
@pytest.mark.parametrize("as_text", [True, False])
def test_a_table_is_ordered_as_its_lines_are(here: Path, rows: list[str], as_text: bool) -> None:
    (here / "in.jsonl").write_text("\n".join(rows) + "\n")
    table_of(split_rows(rows) if as_text else [json.loads(row) for row in rows], "in.parquet")
    assert main(["reorder", "in.jsonl", "lines.jsonl", *CACHE]) == 0
    assert main(["reorder", "in.parquet", "rows.jsonl", *CACHE]) == 0
    assert main(["reorder", "in.parquet", "large.jsonl", *CACHE, "--out-of-core"]) == 0
    assert (here / "lines.order").read_bytes() == (here / "rows.order").read_bytes()
    found = [json.loads(line) for line in lines(here / "rows.jsonl")]
    assert found == [json.loads(line) for line in lines(here / "lines.jsonl")]
    assert sorted(lines(here / "large.jsonl")) == sorted(lines(here / "rows.jsonl"))


@pytest.mark.parametrize(("rows", "replicas"), [(300, 3), (2, 3)])
def test_one_file_for_each_replica(here: Path, rows: int, replicas: int) -> None:
    before = table_of(plain_rows(rows), "in.parquet")
    assert main(["reorder", "in.parquet", "out.parquet", *CACHE, "--replicas", str(replicas)]) == 0
    parts = pa.concat_tables([pq.read_table(f"out.{i}.parquet") for i in range(replicas)])
    order = [number - 1 for number, _ in map(json.loads, lines(here / "out.order"))]
    assert parts == before.take(order)


def test_rows_that_are_no_requests_are_left_out(here: Path, capsys: Capsys) -> None:
    rows = [{"prompt": "x" * 90, "n": 1}, {"prompt": None, "n": 2}, {"prompt": "y" * 90, "n": 3}]
    table_of(rows, "in.parquet")
    assert main(["reorder", "in.parquet", "out.parquet", *CACHE]) == 1
    assert "in.parquet: line 2: body has none of" in capsys.readouterr().err
    assert pq.read_table("out.parquet")["n"].to_pylist() == [1, 3]


def test_a_row_that_is_not_understood_goes_through(here: Path, capsys: Capsys) -> None:
    rows = [{"custom_id": f"r-{n}", "prompt": None if n == 2 else "x" * 90, "text_1": "a"} for n in range(5)]
    before = table_of(rows, "in.parquet")
    assert main(["reorder", "in.parquet", "out.parquet", *CACHE]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "peek: in.parquet: 1 line not understood, put behind the others"
    assert pq.read_table("out.parquet") == before.take([0, 1, 3, 4, 2])


def test_a_table_is_traced(here: Path) -> None:
    rows = [{"ts": 5 + i, "prompt": "ab" * 40, "usage": {"completion_tokens": 3}} for i in range(4)]
    table_of(rows, "in.parquet")
    assert main(["trace", "in.parquet", "out.jsonl"]) == 0
    assert [json.loads(line)["output_length"] for line in lines(here / "out.jsonl")] == [3] * 4


def test_a_full_disk(here: Path) -> None:
    table_of(plain_rows(3000), "in.parquet")
    Path("out.parquet").write_text("old")
    done = run("reorder", "in.parquet", "out.parquet", "--cache-tokens", 500, cwd=here, limit=60_000)
    assert (done.returncode, done.stderr) == (1, b"peek: out.parquet: File too large\n")
    assert Path("out.parquet").read_text() == "old"
    assert sorted(path.name for path in here.iterdir()) == ["in.parquet", "out.parquet"]
