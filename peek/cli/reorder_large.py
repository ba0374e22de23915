"""`peek reorder` for files larger than memory: keys and order in DuckDB, lines read again from the file.

The lines are first copied beside the output, unpacked and without the bad ones, since they are read in
another order at the end.  The copy and the database are in a folder that goes when the work is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from peek.cli.batch_files import needs, read_lines, write_whole
from peek.cli.request_lines import LineReader, namespace_of, order_line, write_lines
from peek.offline.scale.duckdb_order import OutOfCoreOrder

MEMORY_LIMIT: Final = "1500MB"
"""Of the database; the process needs a few hundred megabytes besides."""

CHUNK_LINES: Final = 20_000
CHUNK_BYTES: Final = 64_000_000


def reorder_large(
    source: Path,
    targets: list[Path],
    order_path: Path,
    encode: Callable[[str], list[int]] | None,
    block_tokens: int,
    explain: bool,
) -> int:
    """Returns how many lines are bad.  Always reorders: no cache is simulated."""
    try:
        import duckdb
    except ImportError:
        raise needs("duckdb", "--out-of-core") from None
    reader = LineReader(source, encode)
    with _work_folder(targets[0]) as folder:
        database = duckdb.connect(str(folder / "batch.duckdb"))
        try:
            database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            order = OutOfCoreOrder(database, block_tokens)
            lines = _collect(source, folder / "lines", reader, order)
            order.arrange(len(targets))
            _write(lines, targets, order_path, order)
        finally:
            database.close()
    if explain:
        _explain(order)
    return reader.bad


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """`OUT.work`, empty; one that a killed run left behind is emptied first."""
    folder = target.with_name(target.name + ".work")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _collect(source: Path, spool: Path, reader: LineReader, order: OutOfCoreOrder) -> Path:
    """Read the source once; the file whose places the order tells."""
    chunk: list[tuple[bytes, str, int, int, str]] = []
    waiting = place = 0
    with spool.open("wb") as spooled:
        for number, line in read_lines(source):
            found = reader.read(number, line)
            if found is None:
                continue
            request, key = found
            spooled.write(line)
            chunk.append(
                (key, namespace_of(request), place, len(line), order_line(number, request.custom_id))
            )
            place += len(line)
            waiting += len(key)
            if len(chunk) >= CHUNK_LINES or waiting >= CHUNK_BYTES:
                order.add(*zip(*chunk, strict=True))
                chunk.clear()
                waiting = 0
    if chunk:
        order.add(*zip(*chunk, strict=True))
    return spool


def _write(lines: Path, targets: list[Path], order_path: Path, order: OutOfCoreOrder) -> None:
    with lines.open("rb") as stored, write_whole([order_path, *targets]) as (order_file, *streams):
        for row in order.rows():
            write_lines(streams[row.replica], order_file, [(row.name, _line_at(stored, row.place, row.size))])


def _line_at(stored: IO[bytes], place: int, size: int) -> bytes:
    stored.seek(place)
    return stored.read(size)


def _explain(order: OutOfCoreOrder) -> None:
    print(f"{len(order):,} requests, {order.tokens:,} tokens")
    rows: dict[str, Any] = {"shared edges of the trie": order.edges, "uncached tokens": order.uncached_tokens}
    for name, value in rows.items():
        print(f"{value:,} {name}")
    hit = 100.0 * (1.0 - order.uncached_tokens / order.tokens) if order.tokens else 0.0
    print(f"reordered; cache hit of at least {hit:.1f} %, by what each request finds of the one before it")
