"""`peek reorder` for a file that fits into memory: guarded by a simulated cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from peek import PeekError, WorkloadError
from peek.cli.reorder_job import ReorderJob
from peek.cli.request_lines import BadLines, RequestLines
from peek.cli.tables import copy_rows, is_table
from peek.cli.writing import write_whole
from peek.offline.formats.lines import end_swap
from peek.offline.formats.order_file import as_text, find_repeated, order_line, repeated_id_error
from peek.offline.guards import hit_ratio
from peek.offline.pioneers import engine_named
from peek.offline.reordering import Reordering, arrange
from peek.offline.replicas import split
from peek.offline.shape import BatchShape, contract, shape_of


@dataclass
class _Lines:
    """The requests of a file.

    Attributes:
        systems: of each, the number of its system prompt, equal where that is.
        bare: index of the one whose line has no end, -1 if all have one.
    """

    raw: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    systems: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    bare: int = -1


def reorder_in_memory(job: ReorderJob) -> BadLines:
    """Returns which lines are bad."""
    requests = RequestLines(job.source, job.encode)
    lines = _read(requests, job)
    repeated = find_repeated(lines.numbers, lines.ids)
    if repeated is not None:
        raise WorkloadError(f"{job.source}: {repeated_id_error(*repeated)}")
    shape = contract(shape_of(lines.keys, namespaces=lines.namespaces), job.block_tokens)
    lines.keys.clear()
    result = arrange(shape, job.cache_tokens, job.block_tokens, engine_named(job.engine), min_gain=0.001)
    orders = [result.order]
    if len(job.targets) > 1:
        orders = [share.order for share in split(shape, result.order, len(job.targets), job.block_tokens)]
    _write(lines, orders, job)
    if job.explain:
        _explain(result, lines, shape, job)
    return requests.bad


def _read(requests: RequestLines, job: ReorderJob) -> _Lines:
    lines = _Lines()
    total = 0
    systems: dict[tuple[str, str], int] = {}
    for line in requests:
        if not line.has_end:
            lines.bare = len(lines.raw)
        total += len(line.raw)
        if job.memory_bytes and total > job.memory_bytes:
            raise PeekError(f"{job.source}: holds more than {job.memory_bytes:,} bytes: choose --out-of-core")
        lines.raw.append(line.raw)
        lines.numbers.append(line.number)
        lines.ids.append(line.custom_id)
        lines.namespaces.append(line.namespace)
        lines.systems.append(systems.setdefault((line.namespace, line.system), len(systems)))
        lines.keys.append(line.key)
    return lines


def _write(lines: _Lines, orders: list[list[int]], job: ReorderJob) -> None:
    last = next((order[-1] for order in reversed(orders) if order), -1)
    swap = end_swap(lines.bare, last, lines.raw[last] if lines.raw else b"", len(orders))
    with write_whole(job.outputs) as (order_file, *streams):
        for target, stream, order in zip(job.targets, streams, orders, strict=True):
            for index in order:
                order_file.write(order_line(lines.numbers[index], as_text(lines.ids[index])))
            if is_table(target):
                copy_rows(job.source, [lines.numbers[index] for index in order], stream)
                continue
            for index in order:
                stream.write(swap.apply(index, lines.raw[index]))


def _explain(result: Reordering, lines: _Lines, shape: BatchShape, job: ReorderJob) -> None:
    groups, requests = result.groups, len(lines.raw)
    in_groups = sum(group.size for group in groups)
    said = [
        f"{requests:,} requests, {int(shape.tokens.sum()):,} tokens",
        f"{len(groups):,} groups with {in_groups:,} requests; {requests - in_groups:,} share nothing",
        *(f"  {group.size:,} requests share {group.depth:,} tokens" for group in groups[:5]),
        "reordered" if result.guard is None else f"left in the order it came in, guard: {result.guard}",
        f"expected cache hit with {job.cache_tokens:,} tokens:",
        *(f"  {name:<34} {100.0 * hit:5.1f} %" for name, hit in _hits(result, lines, shape, job).items()),
    ]
    print("\n".join(said), file=job.talk)


def _hits(result: Reordering, lines: _Lines, shape: BatchShape, job: ReorderJob) -> dict[str, float]:
    """What orders that one might have chosen would bring."""
    hits = {"as it came, the engine's own order": result.expected_hit_before or 0.0}
    systems = np.array(lines.systems)
    if len(systems) and systems.max():
        order = np.argsort(systems, kind="stable")
        blocks, in_flight = job.cache_tokens // job.block_tokens, engine_named(job.engine).in_flight
        hits["sorted by system prompt alone"] = hit_ratio(shape, order, blocks, job.block_tokens, in_flight)
    return {**hits, "as written": result.expected_hit_after or 0.0}
