"""The order of `reorder` on a cluster, as a pipeline over a Ray Data dataset.

Nothing here starts a cluster or imports Ray: only methods of the dataset are called.  Four steps:

1. Find candidates for hot prefixes: every batch names the prefixes that many of its prompts share.
2. Count each candidate, and find its first prompt.  The result, a few thousand keys, goes to all workers.
3. A prompt's path (`block_keys`) begins with its hot prefixes.  The first block after them decides its
   bucket, so prompts that share more are in one small bucket.  The rest of the path is computed there.
4. The cluster sorts by path, and the sorted rows are cut into parts with about equal uncached tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np

from peek.errors import InvalidConfig
from peek.offline.block_keys import BLOCK_TOKENS, Keys, batch_keys, counted, edges_of, entry, shared_blocks
from peek.offline.replicas import balanced, saved_tokens
from peek.offline.shape import Ints

PATH: Final = "peek_path"
BUCKET: Final = "peek_bucket"

SUMMARIES: Final = 64  # places for each replica, among the sorted rows, where its part may end

Rows = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a dataset that the pipeline reads.  It is a plain record, as workers get it pickled."""

    tokens: str = "tokens"  # name of the column of token ids
    row: str = "row"  # name of the column of the prompt's index in the batch, unique
    block_tokens: int = BLOCK_TOKENS

    def keys(self, batch: Rows) -> tuple[Keys, Ints, Ints, Ints]:
        """Return the block keys of a batch, where each prompt's keys start, and row and depth of each key."""
        prompts = [np.asarray(prompt, np.int32) for prompt in batch[self.tokens]]
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        flat = np.concatenate(prompts) if prompts else np.zeros(0, np.int32)
        keys, starts, depths = batch_keys(flat, lengths, self.block_tokens)
        return keys, starts, np.repeat(np.asarray(batch[self.row], np.int64), np.diff(starts)), depths


def reorder_dataset(
    dataset: Any, *, columns: Columns | None = None, replicas: int = 1, partitions: int = 16
) -> list[Any]:
    """Order a dataset by shared prefixes and cut it into one dataset per replica.

    Args:
        dataset: a `ray.data.Dataset`; other columns are kept.
        columns: names of the columns to read; None takes the defaults.
        replicas: number of parts, cut by uncached tokens.
        partitions: number of pieces of a shuffle, about twice the cluster's CPUs.  A prefix is hot if at
            least two prompts of some batch have it, and at least 1 / (8 x partitions) of its prompts.

    Returns one materialised dataset per replica, in order, with the column `peek_path` added.  Concatenated,
    they are in the order of `reorder(prompts, simulate=False)`, ties included.  `InvalidConfig` for
    `replicas` or `partitions` below 1.

    Memory of the driver: the hot prefixes, and `SUMMARIES` summaries of rows for each replica.
    """
    if replicas < 1 or partitions < 1:
        raise InvalidConfig(f"{replicas} replicas, {partitions} partitions: less than one")
    reads = columns or Columns()
    hot = _hot_paths(dataset, reads, 1.0 / (8 * partitions), partitions)
    bucketed = dataset.map_batches(
        with_bucket, fn_kwargs={"columns": reads, "hot": hot, "buckets": 4 * partitions}, batch_format="numpy"
    )
    pathed = bucketed.groupby(BUCKET, num_partitions=partitions).map_groups(
        with_path, fn_kwargs={"columns": reads, "hot": hot}, batch_format="numpy"
    )
    ordered = pathed.repartition(partitions).sort([PATH, reads.row]).materialize()
    return _cut(ordered, reads, replicas)


def process_dataset(
    dataset: Any,
    processor: Callable[[Any], Any],
    *,
    columns: Columns | None = None,
    replicas: int = 1,
    partitions: int = 16,
) -> Any:
    """Run `processor(dataset)` in an order that suits prefix caches; return the rows sorted by index.

    The processor is one of Ray Data LLM (`ray.data.llm.build_processor`) with one engine (`concurrency=1`).
    It is called once for each replica, and must keep the column of indices.  The result is a dataset that
    runs when it is read.  Other arguments and errors are those of `reorder_dataset`.
    """
    row = (columns or Columns()).row
    parts = reorder_dataset(dataset, columns=columns, replicas=replicas, partitions=partitions)
    first, *others = [processor(part) for part in parts]
    return (first.union(*others) if others else first).sort(row)


def _hot_paths(dataset: Any, columns: Columns, share: float, partitions: int) -> dict[int, str]:
    offered = _counted(dataset, {"columns": columns, "share": share}, partitions)
    candidates = np.array([row["key"] for row in offered], np.int64).view(np.uint64)
    rows = _counted(dataset, {"columns": columns, "among": np.sort(candidates)}, partitions)
    if not rows:
        return {}
    rows.sort(key=itemgetter("depth"))
    names = ("key", "above", "count", "first", "depth")
    found, over, *numbers = (np.array([row[name] for row in rows], np.int64) for name in names)
    keys, above = found.view(np.uint64), over.view(np.uint64)
    edges = edges_of(keys, *numbers)
    paths: dict[int, str] = {}
    for key, parent in zip(keys.tolist(), above.tolist(), strict=True):
        paths[key] = paths.get(parent, "") + edges.get(key, "")
    return paths


def _counted(dataset: Any, arguments: Rows, partitions: int) -> list[Rows]:
    """Return `count_keys` of all batches, added up by key on the cluster."""
    counts = dataset.map_batches(count_keys, fn_kwargs=arguments, batch_format="numpy", batch_size=None)
    grouped = counts.groupby("key", num_partitions=max(1, partitions // 4))
    added: list[Rows] = grouped.map_groups(add_up, batch_format="numpy").take_all()
    return added


# -- what runs on the workers -----------------------------------------------------------------------------


def count_keys(batch: Rows, columns: Columns, share: float = 0.0, among: Keys | None = None) -> Rows:
    """Return count, first row, depth and the key above, for some keys of this batch.

    They are the keys in `among`, or without it, those that at least `share` of the prompts, and two, have.
    """
    keys, _, rows, depths = columns.keys(batch)
    found, counts, at = counted(keys, rows)
    above = np.where(depths[at] == 1, np.uint64(0), keys[at - 1])
    told = {"key": found.view(np.int64), "count": counts, "first": rows[at], "depth": depths[at]}
    told["above"] = above.view(np.int64)
    least = max(2.0, share * len(batch[columns.row]))
    kept = counts >= least if among is None else np.isin(found, among)
    return {name: np.asarray(values[kept], np.int64) for name, values in told.items()}


def add_up(group: Rows) -> Rows:
    """Add up one key's counts of all batches."""
    added = {"count": group["count"].sum(keepdims=True), "first": group["first"].min(keepdims=True)}
    return {name: values[:1] for name, values in group.items()} | added


def hot_depths(keys: Keys, starts: Ints, hot: dict[int, str]) -> Ints:
    """Return how many leading blocks of each prompt are hot."""
    is_hot = np.isin(keys, np.fromiter(hot, np.uint64, len(hot)))
    total = np.concatenate([[0], np.cumsum(is_hot)])
    return np.asarray(total[starts[1:]] - total[starts[:-1]], np.int64)


def with_bucket(batch: Rows, columns: Columns, hot: dict[int, str], buckets: int) -> Rows:
    """Add the bucket of each row: by its first block that is not hot, or by its index if all blocks are."""
    keys, starts, _, _ = columns.keys(batch)
    at = starts[:-1] + hot_depths(keys, starts, hot)
    choice = np.asarray(batch[columns.row], np.uint64).copy()
    inside = at < starts[1:]
    choice[inside] = keys[at[inside]]
    return {**batch, BUCKET: (choice % np.uint64(buckets)).astype(np.int64)}


def with_path(batch: Rows, columns: Columns, hot: dict[int, str]) -> Rows:
    """Replace the bucket of each row by its path."""
    keys, starts, rows, depths = columns.keys(batch)
    hot_blocks = hot_depths(keys, starts, hot)
    cold = depths > np.repeat(hot_blocks, np.diff(starts))
    found, counts, at = counted(keys[cold], rows[cold])
    edges = edges_of(found, counts, rows[cold][at], depths[cold][at])
    tops = np.isin(keys, np.fromiter(edges, np.uint64, len(edges)))
    paths = []
    spans = (starts[:-1].tolist(), starts[1:].tolist(), hot_blocks.tolist())
    for index, start, end, heat in zip(batch[columns.row], *spans, strict=True):
        path = hot[int(keys[start + heat - 1])] if heat else ""
        path += "".join([edges[key] for key in keys[start:end][tops[start:end]].tolist()])
        if end - start > (int(path[-6:], 16) if path else 0):
            path += entry(1, int(index), end - start)
        paths.append(path)
    kept = {name: values for name, values in batch.items() if name != BUCKET}
    return {**kept, PATH: np.array(paths, object)}


def summarise(batch: Rows, columns: Columns) -> Rows:
    """Sum up successive sorted rows: number, uncached tokens, first and last path, first prompt's length."""
    paths = list(batch[PATH])
    lengths = np.array([len(prompt) for prompt in batch[columns.tokens]], np.int64)
    shared = np.array([0, *map(shared_blocks, paths[:-1], paths[1:])], np.int64)
    uncached = int((lengths - saved_tokens(shared, lengths, columns.block_tokens)).sum())
    found = {"first": paths[0], "last": paths[-1], "rows": len(paths), "uncached": uncached}
    return {name: [value] for name, value in {**found, "head": int(lengths[0])}.items()}


def _cut(ordered: Any, columns: Columns, replicas: int) -> list[Any]:
    if replicas == 1:
        return [ordered]
    size = ordered.count() // (SUMMARIES * replicas) + 1
    rows = ordered.map_batches(
        summarise, fn_kwargs={"columns": columns}, batch_format="numpy", batch_size=size
    ).take_all()
    rows.sort(key=itemgetter("first"))
    ends, starts = ["", *(row["last"] for row in rows[:-1])], [row["first"] for row in rows]
    shared = np.array(list(map(shared_blocks, ends, starts)), np.int64)
    saved = saved_tokens(shared, np.array([row["head"] for row in rows], np.int64), columns.block_tokens)
    costs = np.array([row["uncached"] for row in rows], np.int64) - saved
    cuts, _ = balanced(costs, saved, 0, replicas)
    before = np.concatenate([[0], np.cumsum([row["rows"] for row in rows])])
    parts: list[Any] = ordered.split_at_indices([int(before[cut]) for cut in cuts[1:-1]])
    return parts
