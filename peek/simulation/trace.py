"""Recorded traffic as a workload: Mooncake's trace format, and sessions that are replayed as a closed loop.

One JSON object per line, plain or compressed by gzip or xz:
`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}` with one
hash id per block of the prompt, the last block possibly partial.  Ids are chained (equal id, equal
prefix up to there), so they can serve as key symbols as they are.  Rows may also say how many tokens a
block has (`"block_tokens"`, as `peek trace` writes them) and whose request it is (`"tenant"`).

Rows of sessions also have `"session"`, `"turn"` (from 0) and `"gap_s"`: seconds from the end of the answer
before to this turn.  They may have `"tokens": [...]` in place of `timestamp`, `input_length` and `hash_ids`.

Operations to support: iterate over the rows, and build a `Workload` from them.  Whatever is wrong
with the file ends in a `WorkloadError` that names the file, the line and the value.

Plan: `_checked` owns everything that can go wrong with files, `row_of` and `_Sessions` everything that
can go wrong with a row, `read_mooncake` and `read_sessions` only translate.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from peek.errors import WorkloadError
from peek.simulation.workload import SimRequest, Workload, faster, pack_tokens, with_answers

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
_LARGEST_TOKEN: Final = 2**31 - 1  # of a packed symbol
_PACKED: Final[dict[str, Any]] = {  # first bytes, ending, what opens it
    "gzip": (b"\x1f\x8b", ".gz", gzip.open),
    "xz": (b"\xfd7zXZ\x00", ".xz", lzma.open),
}

Row = TypeVar("Row")


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
    path: str | PathLike[str], *, block_tokens: int | None = None, limit: int | None = None
) -> Workload:
    """Read a trace file into a workload.

    Key symbols are the hash ids of the *full* blocks, renumbered 0, 1, ... in order of first sight;
    the tokens of a partial last block count in `num_tokens` only, for no cache reuses part of a block.
    Rows may be out of time order: they are sorted, and the earliest arrives at 0.

    Args:
        path: JSONL file; gzip and xz are recognised by `.gz` and `.xz` or by content.
        block_tokens: tokens per hash id, becomes `unit_tokens`; None: what the rows say, else 512.
        limit: read only the first `limit` rows of the file.

    Returns:
        A workload named after the file, load "trace", seed 0; the first tenth is warm-up; the arena
        holds four requests as long as the longest (prompt and output), but at least 50,000 tokens,
        in whole blocks: below one such request the trace could not finish, and far above four there
        is no pressure left to study.

    Raises:
        WorkloadError: unreadable or malformed file (file, line, reason).
    """
    return recorded(_name(path), islice(iter_rows(path, block_tokens), limit))


def recorded(name: str, rows: Iterable[TraceRow]) -> Workload:
    """A workload of rows, at least one, in any order; see `read_mooncake`."""
    ordered = sorted(rows, key=lambda row: row.timestamp_ms)
    dense: dict[int, int] = {}
    requests = [
        SimRequest(
            request_id=f"trace-{position}",
            arrival_s=(row.timestamp_ms - ordered[0].timestamp_ms) / 1000.0,
            key=_key(row, dense),
            num_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            tenant=row.tenant,
        )
        for position, row in enumerate(ordered)
    ]
    return _workload(name, "trace", requests, ordered[0].block_tokens, len(ordered) // WARMUP_SHARE)


def _workload(
    name: str, load: str, requests: Sequence[SimRequest], unit_tokens: int, warmup: int = 0
) -> Workload:
    """A workload with the default limits; its arena holds a few of the longest requests, in whole units."""
    longest = max(request.num_tokens + request.output_tokens for request in requests)
    units = -(-max(ARENA_FLOOR_TOKENS, ARENA_LONGEST_PROMPTS * longest) // unit_tokens)
    return Workload(
        name=name, load=load, seed=0, requests=requests, warmup=warmup, max_running=MAX_RUNNING,
        arena_tokens=units * unit_tokens, unit_tokens=unit_tokens,
    )  # fmt: skip


def at_rate(workload: Workload, rate_scale: float) -> Workload:
    """The same requests, `rate_scale` times faster than recorded; `WorkloadError` if a time overflows."""
    scaled = faster(workload, rate_scale)
    if not isfinite(scaled.requests[-1].arrival_s):
        raise WorkloadError(f"rate_scale is {rate_scale!r}: arrival times grow beyond every number")
    return replace(scaled, rate_scale=rate_scale)


def _key(row: TraceRow, dense: dict[int, int]) -> bytes:
    """The full blocks of a row as symbols; `dense` numbers the hash ids seen so far."""
    full_blocks = row.hash_ids[: row.input_tokens // row.block_tokens]
    return pack_tokens([dense.setdefault(hash_id, len(dense)) for hash_id in full_blocks])


def _name(path: str | PathLike[str]) -> str:
    """The name of a file without what says how it is written."""
    return Path(path).name.removesuffix(".gz").removesuffix(".xz").removesuffix(".jsonl")


# -- sessions -------------------------------------------------------------------------------------------


def read_sessions(path: str | PathLike[str], *, rate: float, seed: int, limit: int | None = None) -> Workload:
    """Read recorded sessions, for a closed loop: a turn comes `gap_s` after the end of the answer before it.

    The first row tells the format of all.  With `hash_ids` the rows are those of `read_mooncake`, and a
    session begins at the `timestamp` of its first turn.  Else they have `tokens` (one symbol each), and
    sessions begin as `at_session_rate` draws it.  Turns of several sessions may alternate, in any order.

    Args:
        path: as for `read_mooncake`.
        rate: sessions that begin in a second, on average; not used where rows have times.
        seed: of the draws; not used where rows have times.
        limit: take only the first `limit` sessions of the file; of the others only the names are read.

    Returns:
        A workload named after the file, load "sessions", without warm-up; its arena as of `read_mooncake`.
        Where rows have times, its `session_rate` is None and its seed 0.

    Raises:
        WorkloadError: unreadable or malformed file (file, line, reason), or a rate at which times overflow.

    Cost: O(tokens), with four bytes for each token or block kept.
    """
    found = _Sessions(path, limit)
    requests = with_answers(found.requests(), found.unit_tokens)
    workload = _workload(_name(path).removesuffix(".sessions"), "sessions", requests, found.unit_tokens)
    return workload if found.has_times else at_session_rate(workload, rate, seed)


def at_session_rate(workload: Workload, rate: float, seed: int) -> Workload:
    """The same sessions, in the same order, that begin as a Poisson process of `rate` a second.

    Raises `WorkloadError` if a time overflows.
    """
    draws = Random(seed)
    starts: dict[str, float] = {}
    at_s = 0.0
    for request in workload.requests:
        if request.session not in starts:
            at_s += draws.expovariate(rate)
            starts[request.session] = at_s
    if not isfinite(at_s):
        raise WorkloadError(f"rate is {rate!r}: arrival times grow beyond every number")
    requests = [replace(each, arrival_s=starts[each.session]) for each in workload.requests]
    return replace(workload, requests=requests, seed=seed, session_rate=rate)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One checked turn; `start_ms` is 0 where rows have no times."""

    line: int
    gap_s: float
    start_ms: float
    key: bytes
    num_tokens: int
    output_tokens: int
    tenant: str


class _Sessions:
    """The sessions of a file, checked.

    Attributes:
        has_times: whether the rows are Mooncake's, with a time each.
        unit_tokens: tokens per symbol.
    """

    def __init__(self, path: str | PathLike[str], limit: int | None) -> None:
        self.has_times = False
        self.unit_tokens = 1
        self._limit = limit
        self._dense: dict[int, int] = {}
        self._turns: dict[str, dict[int, _Turn]] = {}
        for _ in _checked(path, self._take):
            pass
        for session, turns in self._turns.items():
            for wanted, number in enumerate(sorted(turns)):
                if number != wanted:
                    said = f"turn {number} of session {_short(session)} is there without turn {wanted}"
                    raise WorkloadError(f"{path}, line {turns[number].line}: {said}")

    def requests(self) -> list[SimRequest]:
        """All turns, sessions in order of their start; the earliest starts at 0."""
        start_ms = min(turns[0].start_ms for turns in self._turns.values())
        requests = []
        for session, turns in sorted(self._turns.items(), key=lambda item: item[1][0].start_ms):
            before = None
            for number in range(len(turns)):
                turn = turns[number]
                request = SimRequest(
                    request_id=f"{session}/{number}",
                    arrival_s=(turns[0].start_ms - start_ms) / 1000.0,
                    key=turn.key,
                    num_tokens=turn.num_tokens,
                    output_tokens=turn.output_tokens,
                    after=before,
                    think_s=0.0 if before is None else turn.gap_s,
                    tenant=turn.tenant,
                    session=session,
                )
                requests.append(request)
                before = request.request_id
        return requests

    def _take(self, row: dict[str, Any], line: int) -> None:
        """Check one row and keep it; the `WorkloadError` says what is wrong, the caller adds where."""
        _check_fields(row, ("session", "turn", "gap_s"))
        if not self._turns:
            self.has_times = "hash_ids" in row
        session = row["session"]
        if isinstance(session, bool) or not isinstance(session, (str, int)):  # whole numbers are names, too
            raise WorkloadError(f"session is {_short(session)}, not a string or an integer")
        if session == "":
            raise WorkloadError("session is '', no name")
        session = str(session)
        if session not in self._turns and len(self._turns) == self._limit:
            return
        number = _whole("turn", row["turn"])
        gap_s = _time("gap_s", row["gap_s"], "s")
        if self.has_times:  # as Mooncake's; the first row says how many tokens a block has
            found = row_of(row, self.unit_tokens if self._turns else None)
            self.unit_tokens = found.block_tokens
            start_ms, key, tokens = found.timestamp_ms, _key(found, self._dense), found.input_tokens
        else:
            start_ms, key, tokens = 0.0, _tokens_key(row), len(row["tokens"])
        turn = _Turn(line, gap_s, start_ms, key, tokens, _output_tokens(row), _tenant(row))
        kept = self._turns.setdefault(session, {}).setdefault(number, turn)
        if kept is not turn:
            said = f"turn {number} of session {_short(session)}"
            raise WorkloadError(f"{said} is there twice, first in line {kept.line}")


def _tokens_key(row: dict[str, Any]) -> bytes:
    """The tokens of a row as a key."""
    _check_fields(row, ("tokens", "output_length"))
    tokens = row["tokens"]
    if not isinstance(tokens, list):
        raise WorkloadError(f"tokens is {_short(tokens)}, not a list")
    if not tokens:
        raise WorkloadError("tokens is empty: an empty prompt cannot be served")
    if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) > _LARGEST_TOKEN:
        for token in tokens:  # to name the first that is wrong
            _whole("tokens entry", token, _LARGEST_TOKEN, "2**31 - 1")
    return pack_tokens(tokens)


# -- rows and lines -------------------------------------------------------------------------------------


def iter_rows(path: str | PathLike[str], block_tokens: int | None = None) -> Iterator[TraceRow]:
    """Yield the rows of a trace file in file order; blank lines are skipped.

    Args:
        path: as for `read_mooncake`.
        block_tokens: of every row; None: what the first row says, 512 if it does not.

    Raises:
        WorkloadError: while iterating, at the first thing that is wrong; also for a file without rows.
    """
    wanted = block_tokens

    def check(row: dict[str, Any], _: int) -> TraceRow:
        nonlocal wanted
        found = row_of(row, wanted)
        wanted = found.block_tokens
        return found

    return _checked(path, check)


def _checked(path: str | PathLike[str], check: Callable[[dict[str, Any], int], Row]) -> Iterator[Row]:
    """Yield what `check` makes of each row and its line's number, from 1.

    The file may be compressed.  Every `WorkloadError` names the place, those of `check`, too.
    """
    number = 0
    packing = ""
    empty = True
    try:
        packing = _packing(path)
        opened = _PACKED[packing][2] if packing else open
        with opened(path, "rt", encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    empty = False
                    yield check(_object(line), number)
        if empty:
            raise WorkloadError("empty trace, no rows")
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}" if empty else f"{path}, line {number}: {error}") from None
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise WorkloadError(f"{path}: bad {packing} data after line {number}: {error}") from None
    except UnicodeDecodeError as error:  # decoded in chunks, so the line itself is not known
        raise WorkloadError(f"{path}: not UTF-8 text after line {number}: {error.reason}") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL character
        raise WorkloadError(f"{str(path)!r}: cannot read: {error}") from None


def _packing(path: str | PathLike[str]) -> str:
    """How a file is compressed, "" for not at all."""
    with open(path, "rb") as probe:
        start = probe.read(6)
    by_content = [packing for packing, (magic, _, _) in _PACKED.items() if start.startswith(magic)]
    by_name = [packing for packing, (_, ending, _) in _PACKED.items() if str(path).endswith(ending)]
    return [*by_content, *by_name, ""][0]


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line; the `WorkloadError` says what is wrong, the caller adds where."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: a line of 100,000 brackets
        raise WorkloadError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"expected a JSON object, found {type(row).__name__}")
    return row


def row_of(row: dict[str, Any], wanted: int | None = None) -> TraceRow:
    """Check a row of Mooncake's format; the `WorkloadError` says what is wrong, the caller adds where."""
    _check_fields(row, ("timestamp", "input_length", "output_length", "hash_ids"))
    timestamp = _time("timestamp", row["timestamp"], "ms")
    input_tokens = _whole("input_length", row["input_length"])
    if input_tokens == 0:
        raise WorkloadError("input_length is 0: an empty prompt cannot be served")
    output_tokens = _output_tokens(row)
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
    return TraceRow(timestamp, input_tokens, output_tokens, checked_ids, block_tokens, _tenant(row))


def _check_fields(row: dict[str, Any], fields: Iterable[str]) -> None:
    for field in fields:
        if field not in row:
            raise WorkloadError(f"missing field {field!r}")


def _output_tokens(row: dict[str, Any]) -> int:
    # Some traces record 0 for requests cut off at once; an engine always samples one token.
    return max(1, _whole("output_length", row["output_length"]))


def _tenant(row: dict[str, Any]) -> str:
    tenant = row.get("tenant", "")
    if not isinstance(tenant, str):
        raise WorkloadError(f"tenant is {_short(tenant)}, not a string")
    return tenant


def _time(field: str, value: object, unit: str) -> float:
    """`value` as a number in 0..2**53, or a `WorkloadError` that names the field and its unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WorkloadError(f"{field} is {_short(value)}, not a number")
    if not 0 <= value <= _LARGEST:  # false for NaN, too
        raise WorkloadError(f"{field} is {_short(value)}, outside 0..2**53 {unit}")
    return float(value)


def _block_tokens(said: object, wanted: int | None) -> int:
    """Tokens of a block: as the row says, which must be what is wanted, or what is wanted."""
    if said is None:
        return MOONCAKE_BLOCK_TOKENS if wanted is None else wanted
    block_tokens = _whole("block_tokens", said)
    if block_tokens == 0:
        raise WorkloadError("block_tokens is 0, not above 0")
    if wanted not in (None, block_tokens):
        raise WorkloadError(f"block_tokens is {block_tokens}, not {wanted}")
    return block_tokens


def _whole(field: str, value: object, largest: int = _LARGEST, shown: str = "2**53") -> int:
    """`value` as an integer in 0..`largest`, or a `WorkloadError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(f"{field} is {_short(value)}, not an integer")
    if value < 0:
        raise WorkloadError(f"{field} is {_short(value)}, negative")
    if value > largest:
        raise WorkloadError(f"{field} is {_short(value)}, above {shown}")
    return value


def _short(value: object) -> str:
    """The value for a one-line message: containers by their type, the rest cut to 60 characters."""
    text = f"a {type(value).__name__}" if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
