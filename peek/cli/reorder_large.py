"""`peek reorder` for files larger than memory: keys and order in DuckDB, lines read again from the file.

The lines are first copied beside the output, unpacked and without the bad ones, since they are read in
another order at the end.  The copy and the database are in a folder that goes when the work is done.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Final

from peek import PeekError, WorkloadError
from peek.cli.extras import needs
from peek.cli.reorder_job import ReorderJob
from peek.cli.request_lines import BadLines, RequestLine, RequestLines
from peek.cli.writing import open_to_write, work_folder, write_whole
from peek.offline.formats.echo import clipped
from peek.offline.formats.lines import end_swap
from peek.offline.formats.order_file import as_text, order_line, repeated_id_error
from peek.offline.scale.duckdb_order import OutOfCoreOrder, Row

MEMORY_LIMIT: Final = "1500MB"
"""Of the database; the process needs a few hundred megabytes besides."""

CHUNK_LINES: Final = 20_000
CHUNK_BYTES: Final = 64_000_000


def reorder_large(job: ReorderJob) -> BadLines:
    """Returns which lines are bad.  Always reorders: no cache is simulated."""
    try:
        import duckdb
    except ImportError:
        raise needs("duckdb", "--out-of-core") from None
    requests = RequestLines(job.source, job.encode)
    try:
        with work_folder([*job.targets, job.order_path]) as folder:
            database = duckdb.connect(str(folder / "batch.duckdb"))
            try:
                database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
                order = OutOfCoreOrder(database, job.block_tokens)
                _reorder(job, requests, order, folder / "lines")
            finally:
                database.close()
    except duckdb.Error as error:
        raise PeekError(f"--out-of-core: {clipped(str(error).partition(chr(10))[0])}") from None
    if job.explain:
        _explain(order, job)
    return requests.bad


def _reorder(job: ReorderJob, requests: RequestLines, order: OutOfCoreOrder, spool: Path) -> None:
    bare = _collect(spool, requests, order)
    repeated = order.repeated_name()
    if repeated is not None:
        first, second, name = repeated
        raise WorkloadError(f"{job.source}: {repeated_id_error(first, second, json.loads(name))}")
    order.arrange(len(job.targets))
    with spool.open("rb") as lines, write_whole(job.outputs) as (order_file, *streams):
        last = order.last()
        last_line = b"" if last is None else _line_at(lines, last)
        swap = end_swap(bare, -1 if last is None else last.prompt, last_line, len(streams))
        for row in order.rows():
            streams[row.replica].write(swap.apply(row.prompt, _line_at(lines, row)))
            order_file.write(order_line(row.number, row.name))


def _collect(spool: Path, requests: RequestLines, order: OutOfCoreOrder) -> int:
    """Read the source once into `order` and the file whose places it tells; the index of the line without an
    end, -1 if every line has one.
    """
    chunk: list[RequestLine] = []
    bare = -1
    count = waiting = place = 0
    with open_to_write(spool, os.O_CREAT | os.O_EXCL) as spooled:
        for line in requests:
            spooled.write(line.raw)
            if not line.has_end:
                bare = count
            count += 1
            chunk.append(line)
            waiting += len(line.key)
            if len(chunk) >= CHUNK_LINES or waiting >= CHUNK_BYTES:
                place = _add(chunk, place, order)
                chunk.clear()
                waiting = 0
        _add(chunk, place, order)
    return bare


def _add(chunk: list[RequestLine], place: int, order: OutOfCoreOrder) -> int:
    """Add lines that begin at `place` of the spool; where the next ones begin."""
    rows: list[tuple[int, int, int, str]] = []
    for line in chunk:
        rows.append((place, len(line.raw), line.number, as_text(line.custom_id)))
        place += len(line.raw)
    order.add([line.key for line in chunk], [line.namespace for line in chunk], rows)
    return place


def _line_at(stored: IO[bytes], row: Row) -> bytes:
    stored.seek(row.place)
    return stored.read(row.size)


def _explain(order: OutOfCoreOrder, job: ReorderJob) -> None:
    hit = 100.0 * (1.0 - order.uncached_tokens / order.tokens) if order.tokens else 0.0
    said = [
        f"{len(order):,} requests, {order.tokens:,} tokens",
        f"{order.edges:,} shared edges of the trie",
        f"{order.uncached_tokens:,} uncached tokens",
        f"reordered; cache hit of at least {hit:.1f} %, by what each request finds of the one before it",
    ]
    print("\n".join(said), file=job.talk)
