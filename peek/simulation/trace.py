"""Read recorded traffic as a workload: traces in Mooncake's format, and sessions for a closed loop.

A trace has one JSON object per line, plain or compressed by gzip, xz or Zstandard:
`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}` with one hash id per
block of the prompt; the last block may be partial.  Equal ids mean equal prefixes up to the end of the block,
so they can serve as symbols.  A row may also have `"block_tokens"` and `"tenant"`.

Rows of sessions also have `"session"`, `"turn"` (from 0) and `"gap_s"`, the seconds from the end of the
answer before to this turn.  They may have `"tokens": [...]` in place of `timestamp`, `input_length` and
`hash_ids`.

The path `-` is standard input.  A fault of a row raises a `WorkloadError` that names file, line and value.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from peek.compressed import bare, damage, unpacked
from peek.errors import WorkloadError
from peek.simulation.workload import SimRequest, Workload, faster, pack_tokens, with_answers

MOONCAKE_BLOCK_TOKENS: Final = 512  # tokens per hash id in the published Mooncake traces
MAX_RUNNING: Final = 256  # the engine's cap for a trace, as in most of the paper's cells
WARMUP_SHARE: Final = 10  # the first 1 / 10 of the rows is warm-up; the paper leaves out 10-20 % of a cell
ARENA_LONGEST_PROMPTS: Final = 4  # size of the default arena, in requests as long as the longest
ARENA_FLOOR_TOKENS: Final = 50_000  # least size of the default arena: the paper's, of a single card
_LONGEST: Final = 100_000_000  # most tokens of a prompt or answer: to simulate more would take for ever
_LARGEST: Final = 2**53  # floats, and JSON readers that use them, confuse integers above it
_LARGEST_TOKEN: Final = 2**31 - 1  # the largest packed symbol

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One checked row of a trace: lengths in tokens, both >= 1, and one hash id per block, partial or not."""

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    tenant: str = ""


def read_mooncake(
    path: str | PathLike[str], *, block_tokens: int | None = None, limit: int | None = None
) -> Workload:
    """Read a trace file, or the first `limit` rows of it, into a workload that is named after the file.

    Symbols are the hash ids of the *full* blocks, renumbered 0, 1, ... in order of their first appearance.
    The tokens of a partial last block count in `num_tokens` only, as no cache reuses part of a block.  Rows
    are sorted by time, and the earliest request arrives at 0.

    The arena holds four requests as long as the longest (prompt and output), and at least 50,000 tokens.
    If it held less than one the trace could not finish; far above four there is no memory pressure to study.
    `block_tokens` are the tokens per hash id (`unit_tokens`); None takes those of the rows, or 512.
    """
    return recorded(_name(path), islice(iter_rows(path, block_tokens), limit))


def recorded(name: str, rows: Iterable[TraceRow]) -> Workload:
    """Make a workload of checked rows, at least one, in any order; see `read_mooncake`."""
    ordered = sorted(rows, key=lambda row: row.timestamp_ms)
    dense: dict[int, int] = {}
    requests = []
    for position, row in enumerate(ordered):
        at_s = (row.timestamp_ms - ordered[0].timestamp_ms) / 1000.0
        name_of, key = f"trace-{position}", _key(row, dense)
        requests.append(
            SimRequest(name_of, at_s, key, row.input_tokens, row.output_tokens, tenant=row.tenant)
        )
    return _workload(name, "trace", requests, ordered[0].block_tokens, len(ordered) // WARMUP_SHARE)


def _workload(
    name: str, load: str, requests: Sequence[SimRequest], unit_tokens: int, warmup: int
) -> Workload:
    """Make a workload with the default seats and the default arena, in whole units."""
    longest = max(request.num_tokens + request.output_tokens for request in requests)
    units = -(-max(ARENA_FLOOR_TOKENS, ARENA_LONGEST_PROMPTS * longest) // unit_tokens)
    return Workload(
        name=name, load=load, seed=0, requests=requests, warmup=warmup, max_running=MAX_RUNNING,
        arena_tokens=units * unit_tokens, unit_tokens=unit_tokens,
    )  # fmt: skip


def at_rate(workload: Workload, rate_scale: float) -> Workload:
    """Return the same requests, `rate_scale` times as fast; `WorkloadError` if an arrival time overflows."""
    scaled = faster(workload, rate_scale)
    if not isfinite(scaled.requests[-1].arrival_s):
        raise WorkloadError(f"rate_scale is {rate_scale!r}: arrival times grow beyond every number")
    return replace(scaled, rate_scale=rate_scale)


def _key(row: TraceRow, dense: dict[int, int]) -> bytes:
    """Return the full blocks of a row as packed symbols; `dense` numbers the hash ids found so far."""
    full_blocks = row.hash_ids[: row.input_tokens // row.block_tokens]
    return pack_tokens([dense.setdefault(hash_id, len(dense)) for hash_id in full_blocks])


def _name(path: str | PathLike[str]) -> str:
    """Return the name of a file without its endings for format and compression."""
    return bare(Path(path)).name.removesuffix(".jsonl")


# -- sessions -------------------------------------------------------------------------------------------


def read_sessions(path: str | PathLike[str], *, rate: float, seed: int, limit: int | None = None) -> Workload:
    """Read recorded sessions as a closed loop: a turn arrives `gap_s` after the end of the answer before it.

    The first row decides the format of all rows.  With `hash_ids`, rows are those of `read_mooncake`, and a
    session begins at the `timestamp` of its first turn.  Else rows have `tokens`, one symbol each, and
    `at_session_rate` draws when sessions begin.  Rows may come in any order.  There is no warm-up.

    `limit` is the number of sessions to take from the start; only the names of others are checked.
    O(tokens); memory for four bytes per token or block that is kept.
    """
    found = _Sessions(path, limit)
    requests = with_answers(found.requests(), found.unit_tokens)
    workload = _workload(_name(path).removesuffix(".sessions"), "sessions", requests, found.unit_tokens, 0)
    return workload if found.has_times else at_session_rate(workload, rate, seed)


def at_session_rate(workload: Workload, rate: float, seed: int) -> Workload:
    """Return the same sessions in the same order, begun by a Poisson process at `rate` per second.

    `WorkloadError` if an arrival time overflows.
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


class _Sessions:
    """The checked sessions of a file; `has_times` tells whether rows have Mooncake's fields."""

    def __init__(self, path: str | PathLike[str], limit: int | None) -> None:
        self.has_times = False
        self.unit_tokens = 1
        self._limit = limit
        self._dense: dict[int, int] = {}
        # By session and number: the line of a turn, and its request at the time of its row, if it has one.
        self._turns: dict[str, dict[int, tuple[int, SimRequest]]] = {}
        for _ in _checked(path, self._take):
            pass
        for session, turns in self._turns.items():
            for wanted, number in enumerate(sorted(turns)):
                if number != wanted:
                    said = f"turn {number} of session {_short(session)} is there without turn {wanted}"
                    raise WorkloadError(f"{path}, line {turns[number][0]}: {said}")

    def requests(self) -> list[SimRequest]:
        """Return the turns of all sessions, sessions in order of their start; the earliest starts at 0."""
        sessions = [[turns[number][1] for number in range(len(turns))] for turns in self._turns.values()]
        sessions.sort(key=lambda turns: turns[0].arrival_s)
        start_ms = sessions[0][0].arrival_s
        starts = [(turns, (turns[0].arrival_s - start_ms) / 1000.0) for turns in sessions]
        return [replace(turn, arrival_s=start_s) for turns, start_s in starts for turn in turns]

    def _take(self, row: dict[str, Any], line: int) -> None:
        """Check a row and keep its turn.  The `WorkloadError` gives the fault; the caller adds the place."""
        _check_fields(row, "session", "turn", "gap_s")
        if not self._turns:
            self.has_times = "hash_ids" in row
        session = row["session"]
        if isinstance(session, bool) or not isinstance(session, (str, int)):  # an integer is a name, too
            raise WorkloadError(f"session is {_short(session)}, not a string or an integer")
        if session == "":
            raise WorkloadError("session is '', no name")
        session = str(session)
        if session not in self._turns and len(self._turns) == self._limit:
            return
        number = _whole("turn", row["turn"])
        gap_s = _time("gap_s", row["gap_s"], "s")
        if self.has_times:  # the first row decides how many tokens a block has
            found = row_of(row, self.unit_tokens if self._turns else None)
            self.unit_tokens = found.block_tokens
            start_ms, key, tokens = found.timestamp_ms, _key(found, self._dense), found.input_tokens
        else:
            start_ms, key, tokens = 0.0, _tokens_key(row), len(row["tokens"])
        before, think_s = (f"{session}/{number - 1}", gap_s) if number else (None, 0.0)
        request = SimRequest(
            f"{session}/{number}", start_ms, key, tokens, _output_tokens(row),
            after=before, think_s=think_s, tenant=_tenant(row), session=session,
        )  # fmt: skip
        first, kept = self._turns.setdefault(session, {}).setdefault(number, (line, request))
        if kept is not request:
            said = f"turn {number} of session {_short(session)}"
            raise WorkloadError(f"{said} is there twice, first in line {first}")


def _tokens_key(row: dict[str, Any]) -> bytes:
    _check_fields(row, "tokens", "output_length")
    tokens = row["tokens"]
    if not isinstance(tokens, list):
        raise WorkloadError(f"tokens is {_short(tokens)}, not a list")
    if not tokens:
        raise WorkloadError("tokens is empty: an empty prompt cannot be served")
    if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) > _LARGEST_TOKEN:
        for token in tokens:  # raises for the first invalid token
            _whole("tokens entry", token, _LARGEST_TOKEN, "2**31 - 1")
    return pack_tokens(tokens)


# -- rows and lines -------------------------------------------------------------------------------------


def iter_rows(path: str | PathLike[str], block_tokens: int | None = None) -> Iterator[TraceRow]:
    """Yield the rows of a trace file, see `read_mooncake`; `WorkloadError` at a fault, or for no rows."""
    wanted = block_tokens

    def check(row: dict[str, Any], _: int) -> TraceRow:
        nonlocal wanted
        if "input_length" not in row and "hash_ids" not in row:
            raise WorkloadError("not a row of a trace; `peek trace` makes a trace of a log")
        found = row_of(row, wanted)
        wanted = found.block_tokens
        return found

    return _checked(path, check)


def _checked(path: str | PathLike[str], check: Callable[[dict[str, Any], int], Row]) -> Iterator[Row]:
    """Yield `check` of each row and its line, from 1; adds file and line to every `WorkloadError`."""
    number = 0
    packing = ""
    empty = True
    try:
        is_stream = str(path) == "-"
        with open(0 if is_stream else path, "rb", closefd=not is_stream) as raw:
            packing, stream = unpacked(raw, Path(path))
            with io.TextIOWrapper(stream, encoding="utf-8-sig") as text:
                for number, line in enumerate(text, start=1):
                    if line.strip():
                        empty = False
                        yield check(_object(line), number)
        if empty:
            raise WorkloadError("empty trace, no rows")
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}" if empty else f"{path}, line {number}: {error}") from None
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such file") from None
    except damage() as error:
        raise WorkloadError(f"{path}: bad {packing} data, in line {number + 1} or later: {error}") from None
    except UnicodeDecodeError as error:  # text is decoded in chunks, so the exact line is not known
        what = f"not UTF-8 text, in line {number + 1} or later: {error.reason}"
        raise WorkloadError(f"{path}: {what}") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL character
        raise WorkloadError(f"{str(path)!r}: cannot read: {error}") from None


def _object(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object.  The `WorkloadError` gives the fault; the caller adds the place."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: a line of 100,000 brackets
        raise WorkloadError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"expected a JSON object, found {type(row).__name__}")
    return row


def row_of(row: dict[str, Any], wanted: int | None = None) -> TraceRow:
    """Check a row of Mooncake's format.  The `WorkloadError` gives the fault; the caller adds the place."""
    _check_fields(row, "timestamp", "input_length", "output_length", "hash_ids")
    timestamp = _time("timestamp", row["timestamp"], "ms")
    input_tokens = _whole("input_length", row["input_length"], _LONGEST, "100000000")
    if input_tokens == 0:
        raise WorkloadError("input_length is 0: an empty prompt cannot be served")
    output_tokens = _output_tokens(row)
    hash_ids = row["hash_ids"]
    if not isinstance(hash_ids, list):
        raise WorkloadError(f"hash_ids is {_short(hash_ids)}, not a list")
    block_tokens = _block_tokens(row.get("block_tokens"), wanted)
    blocks = -(-input_tokens // block_tokens)
    if len(hash_ids) != blocks:
        made = f"input_length {input_tokens} makes {blocks} blocks of {block_tokens} tokens"
        raise WorkloadError(f"{len(hash_ids)} hash_ids, but {made}")
    checked_ids = tuple(_whole("hash_ids entry", item) for item in hash_ids)
    return TraceRow(timestamp, input_tokens, output_tokens, checked_ids, block_tokens, _tenant(row))


def _check_fields(row: dict[str, Any], *fields: str) -> None:
    for field in fields:
        if field not in row:
            raise WorkloadError(f"missing field {field!r}")


def _output_tokens(row: dict[str, Any]) -> int:
    # Some traces record 0 for requests that were cut off at once, but an engine samples at least one token.
    return max(1, _whole("output_length", row["output_length"], _LONGEST, "100000000"))


def _tenant(row: dict[str, Any]) -> str:
    tenant = row.get("tenant", "")
    if not isinstance(tenant, str):
        raise WorkloadError(f"tenant is {_short(tenant)}, not a string")
    return tenant


def _time(field: str, value: object, unit: str) -> float:
    """Return `value` as a number in 0..2**53; else `WorkloadError` names the field and its unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WorkloadError(f"{field} is {_short(value)}, not a number")
    if not 0 <= value <= _LARGEST:  # refuses NaN, too
        raise WorkloadError(f"{field} is {_short(value)}, outside 0..2**53 {unit}")
    return float(value)


def _block_tokens(said: object, wanted: int | None) -> int:
    """Return the tokens of a block: those of the row, else `wanted`, else 512; both must agree."""
    if said is None:
        return MOONCAKE_BLOCK_TOKENS if wanted is None else wanted
    block_tokens = _whole("block_tokens", said)
    if block_tokens == 0:
        raise WorkloadError("block_tokens is 0, not above 0")
    if wanted not in (None, block_tokens):
        raise WorkloadError(f"block_tokens is {block_tokens}, not {wanted}")
    return block_tokens


def _whole(field: str, value: object, largest: int = _LARGEST, shown: str = "2**53") -> int:
    """Return `value` as an integer in 0..`largest`; else `WorkloadError` names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkloadError(f"{field} is {_short(value)}, not an integer")
    if value < 0:
        raise WorkloadError(f"{field} is {_short(value)}, negative")
    if value > largest:
        raise WorkloadError(f"{field} is {_short(value)}, above {shown}")
    return value


def _short(value: object) -> str:
    """Show a value in a one-line message: lists and objects by their type, others cut to 60 characters."""
    text = f"a {type(value).__name__}" if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
