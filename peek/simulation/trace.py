"""Recorded traffic in Mooncake's trace format, as a workload.

One JSON object per line, plain or gzip-compressed:
`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}` with one
hash id per block of the prompt, the last block possibly partial.  Ids are chained (equal id, equal
prefix up to there), so they can serve as key symbols as they are.  Rows may also say how many tokens a
block has (`"block_tokens"`, as `peek trace` writes them) and whose request it is (`"tenant"`).

Operations to support: iterate over the rows, and build a `Workload` from them.  Whatever is wrong
with the file ends in a `WorkloadError` that names the file, the line and the value.

Plan: `_lines` owns everything that can go wrong with files, `_parse` everything that can go wrong
with a row, `read_mooncake` only translates.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Final

from peek.errors import WorkloadError
from peek.simulation.workload import SimRequest, Workload, faster, pack_tokens

MOONCAKE_BLOCK_TOKENS: Final = 512
"""Tokens per hash id in the published Mooncake traces."""

MAX_RUNNING: Final = 256
"""Cap on running requests for a trace; the cap of most of the paper's cells."""

WARMUP_SHARE: Final = 10
"""One row in 10 is warm-up: the paper leaves out the first 10-20 % of a cell."""

ARENA_LONGEST_PROMPTS: Final = 4
"""The default arena holds four requests as long as the longest of the trace ..."""

ARENA_FLOOR_TOKENS: Final = 50_000
"""... and is never smaller than this, the paper's single-card arena."""

_LARGEST: Final = 2**53  # beyond it neither JSON readers nor floats keep integers apart
_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One checked row: time in ms, lengths in tokens (both >= 1), one hash id per started block."""

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    tenant: str = ""


def read_mooncake(
    path: str | PathLike[str],
    *,
    block_tokens: int | None = None,
    rate_scale: float = 1.0,
    limit: int | None = None,
) -> Workload:
    """Read a trace file into a workload.

    Key symbols are the hash ids of the *full* blocks, renumbered 0, 1, ... in order of first sight;
    the tokens of a partial last block count in `num_tokens` only, for no cache reuses part of a block.
    Rows may be out of time order: they are sorted, and the earliest arrives at 0.

    Args:
        path: JSONL file; gzip is recognised by `.gz` or by content.
        block_tokens: tokens per hash id, becomes `unit_tokens`; None: what the rows say, else 512.
        rate_scale: how many times faster than recorded the requests arrive.
        limit: read only the first `limit` rows of the file.

    Returns:
        A workload named after the file, load "trace", seed 0; the first tenth is warm-up; the arena
        holds four requests as long as the longest (prompt and output), but at least 50,000 tokens,
        in whole blocks: below one such request the trace could not finish, and far above four there
        is no pressure left to study.

    Raises:
        WorkloadError: unreadable or malformed file (file, line, reason), or a bad argument.
    """
    if block_tokens is not None:
        _check_positive("block_tokens", block_tokens)
    if limit is not None:
        _check_positive("limit", limit)
    if not (isfinite(rate_scale) and rate_scale > 0):  # before the file is read
        raise WorkloadError(f"rate_scale is {rate_scale!r}, not a finite number above 0")
    rows = sorted(islice(iter_rows(path, block_tokens), limit), key=lambda row: row.timestamp_ms)
    block_tokens = rows[0].block_tokens
    requests = _requests(rows, block_tokens)
    longest = max(row.input_tokens + row.output_tokens for row in rows)
    arena_blocks = -(-max(ARENA_FLOOR_TOKENS, ARENA_LONGEST_PROMPTS * longest) // block_tokens)
    workload = Workload(
        name=Path(path).name.removesuffix(".gz").removesuffix(".jsonl"),
        load="trace",
        seed=0,
        requests=requests,
        warmup=len(rows) // WARMUP_SHARE,
        max_running=MAX_RUNNING,
        arena_tokens=arena_blocks * block_tokens,
        unit_tokens=block_tokens,
    )
    return at_rate(workload, rate_scale)


def at_rate(workload: Workload, rate_scale: float) -> Workload:
    """The same requests, `rate_scale` times faster than recorded; `WorkloadError` if a time overflows."""
    scaled = faster(workload, rate_scale)
    if not isfinite(scaled.requests[-1].arrival_s):
        raise WorkloadError(f"rate_scale is {rate_scale!r}: arrival times grow beyond every number")
    return replace(scaled, rate_scale=rate_scale)


def _requests(rows: list[TraceRow], block_tokens: int) -> tuple[SimRequest, ...]:
    """Translate rows, ascending in time, to requests."""
    dense: dict[int, int] = {}
    start_ms = rows[0].timestamp_ms
    requests = []
    for position, row in enumerate(rows):
        full_blocks = row.hash_ids[: row.input_tokens // block_tokens]
        symbols = [dense.setdefault(hash_id, len(dense)) for hash_id in full_blocks]
        requests.append(
            SimRequest(
                request_id=f"trace-{position}",
                arrival_s=(row.timestamp_ms - start_ms) / 1000.0,
                key=pack_tokens(symbols),
                num_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                tenant=row.tenant,
            )
        )
    return tuple(requests)


def iter_rows(path: str | PathLike[str], block_tokens: int | None = None) -> Iterator[TraceRow]:
    """Yield the rows of a trace file in file order; blank lines are skipped.

    Args:
        path: as for `read_mooncake`.
        block_tokens: of every row; None: what the first row says, 512 if it does not.

    Raises:
        WorkloadError: while iterating, at the first thing that is wrong; also for a file without rows.
    """
    empty = True
    for line_number, line in _lines(path):
        if not line.strip():
            continue
        empty = False
        try:
            row = _parse(line, block_tokens)
        except WorkloadError as error:
            raise WorkloadError(f"{path}, line {line_number}: {error}") from None
        block_tokens = row.block_tokens
        yield row
    if empty:
        raise WorkloadError(f"{path}: empty trace, no rows")


def _lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of a plain or gzip file; every read error names the place."""
    line_number = 0
    try:
        with open(path, "rb") as probe:
            packed = probe.read(2) == _GZIP_MAGIC or str(path).endswith(".gz")
        opener = gzip.open if packed else open
        with opener(path, "rt", encoding="utf-8-sig") as stream:
            for line_number, line in enumerate(stream, start=1):
                yield line_number, line
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: bad gzip data after line {line_number}: {error}") from None
    except UnicodeDecodeError as error:  # decoded in chunks, so the line itself is not known
        raise WorkloadError(f"{path}: not UTF-8 text after line {line_number}: {error.reason}") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL character
        raise WorkloadError(f"{str(path)!r}: cannot read: {error}") from None


def _parse(line: str, wanted: int | None) -> TraceRow:
    """Check one line; the `WorkloadError` says what is wrong, the caller adds where."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: a line of 100,000 brackets
        raise WorkloadError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"expected a JSON object, found {type(row).__name__}")
    for field in ("timestamp", "input_length", "output_length", "hash_ids"):
        if field not in row:
            raise WorkloadError(f"missing field {field!r}")
    timestamp = row["timestamp"]
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
        raise WorkloadError(f"timestamp is {_short(timestamp)}, not a number")
    if not 0 <= timestamp <= _LARGEST:  # false for NaN, too
        raise WorkloadError(f"timestamp is {_short(timestamp)}, outside 0..2**53 ms")
    input_tokens = _whole("input_length", row["input_length"])
    if input_tokens == 0:
        raise WorkloadError("input_length is 0: an empty prompt cannot be served")
    # Some traces record 0 for requests cut off at once; an engine always samples one token.
    output_tokens = max(1, _whole("output_length", row["output_length"]))
    hash_ids = row["hash_ids"]
    if not isinstance(hash_ids, list):
        raise WorkloadError(f"hash_ids is {_short(hash_ids)}, not a list")
    block_tokens = _block_tokens(row.get("block_tokens"), wanted)
    blocks = -(-input_tokens // block_tokens)
    if len(hash_ids) != blocks:
        raise WorkloadError(
            f"{len(hash_ids)} hash_ids, but input_length {input_tokens} makes {blocks} blocks of "
            f"{block_tokens} tokens"
        )
    checked_ids = tuple(_whole("hash_ids entry", item) for item in hash_ids)
    tenant = row.get("tenant", "")
    if not isinstance(tenant, str):
        raise WorkloadError(f"tenant is {_short(tenant)}, not a string")
    return TraceRow(float(timestamp), input_tokens, output_tokens, checked_ids, block_tokens, tenant)


def _block_tokens(said: object, wanted: int | None) -> int:
    """Tokens of a block: as the row says, which must be what is wanted, or what is wanted."""
    if said is None:
        return MOONCAKE_BLOCK_TOKENS if wanted is None else wanted
    block_tokens = _whole("block_tokens", said)
    _check_positive("block_tokens", block_tokens)
    if wanted not in (None, block_tokens):
        raise WorkloadError(f"block_tokens is {block_tokens}, not {wanted}")
    return block_tokens


def _whole(field: str, value: object) -> int:
    """`value` as an integer in 0..2**53, or a `WorkloadError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(f"{field} is {_short(value)}, not an integer")
    if value < 0:
        raise WorkloadError(f"{field} is {_short(value)}, negative")
    if value > _LARGEST:
        raise WorkloadError(f"{field} is {_short(value)}, above 2**53")
    return value


def _short(value: object) -> str:
    """The value for a one-line message: containers by their type, the rest cut to 60 characters."""
    text = f"a {type(value).__name__}" if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_positive(name: str, value: int) -> None:
    if value <= 0:
        raise WorkloadError(f"{name} is {value}, not above 0")
