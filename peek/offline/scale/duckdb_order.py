"""The order of `reorder` for batches larger than memory, on a DuckDB connection that the caller opens.

The database gets the chained keys of blocks.  Equal keys mean equal prefixes, so `GROUP BY key` finds the
nodes of the trie.  Nodes with the same prompts below (equal count and equal first prompt) form one edge of
the compressed trie.  Sorting the prompts by their paths (`block_keys`) replaces the traversal.  DuckDB groups
and sorts on disk where its memory limit requires it.  The order is that of `reorder`, ties included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from peek.offline.block_keys import batch_keys, shared_blocks
from peek.offline.replicas import balanced, saved_tokens

FETCH_ROWS: Final = 20_000  # in memory while the order is read
# Prompts, or bytes of their keys, after which a chunk goes to the database.
CHUNK_PROMPTS: Final = 20_000
CHUNK_BYTES: Final = 64_000_000

_TABLES: Final = """
CREATE TABLE rows(row BIGINT, tokens BIGINT, blocks BIGINT, place BIGINT, size BIGINT, number BIGINT,
                  name VARCHAR, last BIGINT);
CREATE TABLE keys(key UBIGINT, row BIGINT, depth INTEGER);
"""

_EDGES: Final = """
CREATE TABLE edges AS
SELECT arg_min(key, depth) AS key, n, first, max(depth) AS bottom
FROM (SELECT key, any_value(depth) AS depth, count(*) AS n, min(row) AS first FROM keys GROUP BY key)
WHERE n >= 2 GROUP BY n, first
"""

_PATHS: Final = """
CREATE TABLE paths AS
SELECT k.row AS row, max(e.bottom) AS shared,
       string_agg(printf('%08x%010x%06x', 4294967295 - e.n, e.first, e.bottom), '' ORDER BY k.depth) AS path
FROM keys k JOIN edges e ON k.key = e.key GROUP BY k.row
"""

_ORDERED: Final = """
CREATE TABLE ordered AS
SELECT row, tokens, blocks, place, size, number, name,
       coalesce(path, '') || CASE WHEN blocks > coalesce(shared, 0)
         THEN printf('%08x%010x%06x', 4294967294, row, blocks) ELSE '' END AS path
FROM rows LEFT JOIN paths USING (row) ORDER BY last, path, row
"""

_REPEATED: Final = """
SELECT first, number, name
FROM rows JOIN (SELECT name, min(number) AS first FROM rows GROUP BY name HAVING count(*) > 1) USING (name)
WHERE name <> '""' AND number > first ORDER BY number LIMIT 1
"""


class Row(NamedTuple):
    """One prompt of the order: its index, as it was added, the caller's record, and its replica, from 0."""

    prompt: int
    place: int
    size: int
    number: int
    name: str
    replica: int


class OutOfCoreOrder:
    """Collects a batch chunk by chunk, then computes its order.

    `connection` is a DuckDB connection to an empty database, on disk if the batch is larger than memory.
    """

    def __init__(self, connection: Any, block_tokens: int, chunk_prompts: int = CHUNK_PROMPTS) -> None:
        self._db = connection
        self._block_tokens = block_tokens
        self._chunk_prompts = chunk_prompts
        self._chunk: list[tuple[bytes, str, tuple[int, int, int, str], bool]] = []
        self._chunk_bytes = 0
        self._count = 0
        self._cuts: list[int] = []
        self.tokens = 0  # tokens of the prompts that the database has
        self.uncached_tokens = 0  # after `arrange`: tokens that prompts do not share with the prompt before
        self.edges = 0  # after `arrange`: shared edges of the trie; with 0 the prompts keep their order
        connection.execute(_TABLES)

    def __len__(self) -> int:
        return self._count

    def add(self, key: bytes, namespace: str, record: tuple[int, int, int, str], last: bool = False) -> None:
        """Add a prompt, as packed int32 tokens; prompts with `last` come after all others.

        The `record` comes back in `Row`: place and size of the prompt's line, a number, and a name as JSON
        text.  Cost: about 10 us per prompt and 50 ns per block; memory for 30 bytes per token of a chunk.
        """
        self._chunk.append((key, namespace, record, last))
        self._chunk_bytes += len(key)
        if len(self._chunk) >= self._chunk_prompts or self._chunk_bytes >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._chunk:
            return
        keys, namespaces, records, last = zip(*self._chunk, strict=True)
        self._chunk.clear()
        self._chunk_bytes = 0
        tokens = np.frombuffer(b"".join(keys), np.int32)
        lengths = np.array([len(key) >> 2 for key in keys], np.int64)
        found, starts, depths = batch_keys(tokens, lengths, self._block_tokens, list(namespaces))
        blocks = np.diff(starts)
        index = self._count + np.arange(len(keys))
        *numbers, names = zip(*records, strict=True)
        rows = {"row": index, "tokens": lengths, "blocks": blocks, "name": np.array(names, object)}
        for name, values in zip(("place", "size", "number", "last"), (*numbers, last), strict=True):
            rows[name] = np.array(values, np.int64)
        self._insert("rows", rows)
        self._insert("keys", {"key": found, "row": np.repeat(index, blocks), "depth": depths})
        self._count += len(keys)
        self.tokens += int(lengths.sum())

    def _insert(self, table: str, columns: dict[str, Any]) -> None:
        self._db.register("chunk", columns)
        self._db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM chunk")
        self._db.unregister("chunk")

    def arrange(self, replicas: int = 1) -> tuple[int, int, str] | None:
        """Compute the order and where each replica's part begins.  Call it once, after the last `add`.

        If a name other than the empty one repeats, it returns its lowest number, its next number, and the
        name.
        """
        self._flush()
        repeated: tuple[int, int, str] | None = self._db.execute(_REPEATED).fetchone()
        if repeated is not None:
            return repeated
        self._db.execute(_EDGES)
        self.edges = self._db.execute("SELECT count(*) FROM edges").fetchone()[0]
        self._db.execute(_PATHS)
        self._db.execute("DROP TABLE keys")
        self._db.execute(_ORDERED if self.edges else _ORDERED.replace(" path, row", " row"))
        tokens, shared = np.empty((2, self._count), np.int64)
        previous = ""
        for at, (length, path) in enumerate(_fetched(self._db.execute("SELECT tokens, path FROM ordered"))):
            tokens[at] = length
            shared[at] = shared_blocks(previous, path)
            previous = path
        saved = saved_tokens(shared, tokens, self._block_tokens)
        self.uncached_tokens = int((tokens - saved).sum())
        self._cuts = balanced(tokens - saved, saved, 0, replicas)[0]
        return None

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the prompts in order, replica by replica, from place `start`.  Memory: `FETCH_ROWS` rows."""
        query = f"SELECT row, place, size, number, name FROM ordered OFFSET {max(start, 0)}"
        replica = 0
        for at, row in enumerate(_fetched(self._db.execute(query)), start=start):
            while at >= self._cuts[replica + 1]:
                replica += 1
            yield Row._make((*row, replica))


def _fetched(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(FETCH_ROWS):
        yield from rows
