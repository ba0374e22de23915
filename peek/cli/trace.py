"""`peek trace`: turns a log of requests into a block-hash trace, which `peek simulate --trace` replays.

The trace holds no text of prompts or answers, only lengths, times, and salted hashes by which equal
beginnings of prompts are found.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from peek import PeekError, WorkloadError
from peek.cli import options as cli
from peek.cli import reading
from peek.cli.reading import BadLines, counted, json_loads, read_lines
from peek.cli.writing import write_whole
from peek.offline.formats import Encode, excerpt_of
from peek.traffic import BLOCK_TOKENS, UNITS, Counts, Reader, RequestRows, Tracer

KINDS: Final = {"auto": "", "jsonl": "rows", "log": "log"}
"""Values of --format, each with the kind of `Reader` formats that it admits."""

ESTIMATE: Final = " (four bytes of text taken as a token; --tokenizer counts them)"
SMALLEST_SALT: Final = 16  # least bytes of a salt: random ones are then too many to try out

_SPANS: Final = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))
_YEAR_S: Final = 366 * 86_400.0  # no log spans more, unless some times are wrong or from another clock


field_path = partial(cli.value, "Dotted path of the field, in place of the usual ones.", "", "PATH")
unit_of_times = partial(cli.value, f"Unit of numeric times: {', '.join(UNITS)}.", "", "UNIT")
rate_of_requests = partial(cli.positive, "Requests a second, in place of the log's times.")
unknown_tokens = partial(cli.count, "Tokens of an answer whose length is not in the log.", 128)


@dataclass(frozen=True)
class TraceOptions:
    source: Path = cli.read_path("IN", "Requests as JSONL, or an engine's log; .gz, .xz, .zst; -: stdin.")
    target: Path = cli.written_path("The trace: .jsonl, .gz, .xz, .zst; -: stdout.")
    form: str = cli.value(
        "jsonl: only rows of requests; log: only servers' logs; auto: by each line.",
        "auto", "NAME", None, "--format",
    )  # fmt: skip
    time_field: str = field_path()
    prompt_field: str = field_path()
    output_field: str = field_path()
    tenant_field: str = cli.value("Dotted path of the tenant's name; written as a hash.", "", "PATH")
    time_unit: str = unit_of_times()
    block_tokens: int = cli.count("Tokens per block.", BLOCK_TOKENS)
    tokenizer: Path | None = cli.tokenizer_path()
    salt_file: Path | None = cli.value(
        "File with the secret for the hashes, to join traces; else a new one is drawn.", None, "PATH"
    )
    rate: float | None = rate_of_requests()
    output_tokens: int = unknown_tokens()


def trace_command(options: TraceOptions) -> None:
    """Turn a log of requests into a trace for `peek simulate --trace`.

    The trace holds times, lengths and salted block hashes; no text of prompts or answers.
    """
    source, target, tokenizer = options.source, options.target, reading.tokenizer_file(options.tokenizer)
    cli.check_choice("--format", options.form, KINDS)
    read = [("IN", source), ("--salt-file", options.salt_file), ("--tokenizer", tokenizer)]
    cli.refuse_clashes(read, [("OUT", target)])
    cli.check_target(target)
    if reading.is_table(target):
        raise typer.BadParameter(f"{target}: a trace is lines, not a table", param_hint="OUT")
    encode = reading.load_tokenizer(tokenizer)
    tracer = Tracer(_salt(options.salt_file), options.block_tokens, encode)
    rows = request_rows(options, options.tenant_field, encode)
    reader = Reader(rows, json_loads(), KINDS[options.form])
    (bad,) = read_logs([source], reader, tracer)
    with cli.naming(source), write_whole([target]) as (stream,):
        for row in tracer.rows(options.output_tokens, options.rate):
            stream.write(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")
    counts = tracer.counts
    estimate = ESTIMATE * (encode is None and counts.texts > 0)
    size, unknown = f"in blocks of {options.block_tokens}{estimate}", f"taken as {options.output_tokens}"
    said = [*summary(counts, size, unknown), *counts.doubts, *unread(reader.not_understood())]
    print("\n".join([*said, *reader.hints()]), file=sys.stderr)
    bad.complain(reader.cut())


def request_rows(options: Any, tenant: str, encode: Encode | None) -> RequestRows:
    """Return the reader of rows that the options of `peek trace` or `peek check` ask for."""
    cli.check_choice("--time-unit", options.time_unit, ("", *UNITS))
    fields = (options.time_field, options.prompt_field, options.output_field, tenant)
    return RequestRows(*fields, options.time_unit, encode)


def read_logs(sources: Sequence[Path], reader: Reader, tracer: Tracer) -> list[BadLines]:
    """Read all logs; return the lines left out of each, the first of which are named on stderr.

    `WorkloadError` if no request is read, or none has the named field of its answer's length.
    """
    faults = []
    for source in sources:
        bad = BadLines(source)
        faults.append(bad)
        for number, events in reader.file(read_lines(source)):
            with bad.leaving_out(number):
                for event in events:
                    tracer.take(event)
    for event in reader.rest():
        with faults[-1].leaving_out(0):
            tracer.take(event)
    with cli.naming(*sources):
        if not tracer.counts.requests:
            said = [*reader.hints(), *unread(reader.not_understood())]
            raise WorkloadError("; ".join(["holds no request that is understood", *said]))
        if reader.rows.output and not tracer.counts.answered:
            raise WorkloadError(f"no request has {excerpt_of(reader.rows.output)} (--output-field)")
    return faults


def unread(left: Mapping[str, Any]) -> list[str]:
    """Return a message on the lines of no known format; `left` comes from `Reader.not_understood`."""
    if not left["lines"]:
        return []
    lines = counted(left["lines"], "line")
    return [f"{lines} of no known format, first line {left['line']}: {left['first']}"]


def _salt(path: Path | None) -> bytes:
    if path is None:
        return secrets.token_bytes(32)
    salt = path.read_bytes().strip()
    if len(salt) < SMALLEST_SALT:
        raise PeekError(
            f"{path}: holds {len(salt)} bytes, need {SMALLEST_SALT}:"
            " whoever guesses the salt can try out prompts"
        )
    return salt


def summary(counts: Counts, tokens: str, unknown: str) -> list[str]:
    """Write counts, a line each; `tokens` and `unknown` are words put after tokens and unknown answers."""
    known = f"{counts.answered:,} told, {counts.allowed:,} as long as allowed"
    said = [
        f"{counted(counts.requests, 'request')}, {counted(counts.prompt_tokens, 'token')} {tokens}",
        pace(counts.span_s, counts.requests),
        f"answers: {known}, {counts.unknown:,} {unknown}",
    ]
    if counts.cached is not None:
        hit = f"{100.0 * counts.cached:.1f} % of {counts.engine_prompt_tokens:,} tokens"
        said.append(f"the log says that {hit} were cached")
    return said


def pace(span_s: float, requests: int) -> str:
    """Write span and rate of the requests, so that a wrong unit of times shows."""
    if span_s <= 0.0:
        return "all at one time"
    parts, unit = next((each for each in _SPANS if span_s >= 2.0 * each[0]), (1.0, "s"))
    text = f"over {span_s / parts:,.3g} {unit}, {requests / span_s:,.3g} requests a second"
    if span_s < _YEAR_S:
        return text
    return f"{text}: are all times of one clock and unit? (--time-field, --time-unit)"
