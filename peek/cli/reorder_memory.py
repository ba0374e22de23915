"""`peek reorder` for a file that fits into memory: guarded by a simulated cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peek.cli.batch_files import read_lines, write_whole
from peek.cli.request_lines import LineReader, namespace_of, order_line, write_lines
from peek.offline.pioneers import engine_named
from peek.offline.reordering import Reordering, arrange
from peek.offline.replicas import split
from peek.offline.shape import contract, shape_of


@dataclass
class Batch:
    """The lines of a file that could be read, and the others."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    bad: int = 0


def reorder_in_memory(
    source: Path,
    targets: list[Path],
    order_path: Path,
    encode: Callable[[str], list[int]] | None,
    cache: tuple[int, int, str],
    explain: bool,
) -> int:
    """Returns how many lines are bad."""
    cache_tokens, block_tokens, engine = cache
    keys: list[bytes] = []
    batch = _read(source, encode, keys)
    shape = contract(shape_of(keys, namespaces=batch.namespaces), block_tokens)
    keys.clear()
    result = arrange(shape, cache_tokens, block_tokens, engine_named(engine), min_gain=0.001)
    orders = [result.order]
    if len(targets) > 1:
        orders = [share.order for share in split(shape, result.order, len(targets), block_tokens)]
    with write_whole([order_path, *targets]) as (order_file, *streams):
        for stream, indices in zip(streams, orders, strict=True):
            write_lines(
                stream,
                order_file,
                ((order_line(batch.numbers[i], batch.ids[i]), batch.lines[i]) for i in indices),
            )
    if explain:
        _explain(result, len(batch.lines), int(shape.tokens.sum()), cache_tokens)
    return batch.bad


def _read(source: Path, encode: Callable[[str], list[int]] | None, keys: list[bytes]) -> Batch:
    batch = Batch()
    reader = LineReader(source, encode)
    for number, line in read_lines(source):
        found = reader.read(number, line)
        if found is not None:
            request, key = found
            keys.append(key)
            batch.lines.append(line)
            batch.numbers.append(number)
            batch.ids.append(request.custom_id)
            batch.namespaces.append(namespace_of(request))
    batch.bad = reader.bad
    return batch


def _explain(result: Reordering, requests: int, tokens: int, cache_tokens: int) -> None:
    groups = result.groups
    in_groups = sum(group.size for group in groups)
    print(f"{requests:,} requests, {tokens:,} tokens")
    print(f"{len(groups):,} groups with {in_groups:,} requests; {requests - in_groups:,} share nothing")
    for group in groups[:5]:
        print(f"  {group.size:,} requests share {group.depth:,} tokens")
    if result.guard is None:
        print("reordered")
    else:
        print(f"left in the order it came in, guard: {result.guard}")
    rows: list[tuple[str, Any]] = [
        ("as it came", result.expected_hit_before),
        ("as written", result.expected_hit_after),
    ]
    print(f"expected cache hit with {cache_tokens:,} tokens: ", end="")
    print(", ".join(f"{name} {100.0 * value:.1f} %" for name, value in rows))
