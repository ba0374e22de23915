"""`peek trace`: one's own traffic as a block-hash trace, which `peek simulate --trace` replays.

Nothing of what was asked or answered is in the trace, only lengths, times, and salted hashes that tell which
prompts begin alike.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from peek import InvalidKey, PeekError, WorkloadError
from peek.cli.extras import json_loads
from peek.cli.options import parse_count, parse_rate
from peek.cli.places import check_target, parse_source, parse_target, refuse_clashes
from peek.cli.reading import read_lines
from peek.cli.request_lines import BadLines
from peek.cli.tokenizing import load_tokenizer, tokenizer_file
from peek.cli.writing import write_whole
from peek.offline.formats.echo import clipped
from peek.offline.formats.lines import Line
from peek.traffic.engine_logs import EngineLog
from peek.traffic.events import Event
from peek.traffic.request_rows import Fields, RequestRows
from peek.traffic.times import UNITS
from peek.traffic.tracer import Counts, Tracer

FORMATS: Final = ("auto", "jsonl", "log")

UNKNOWN_TOKENS: Final = 128
"""Of an answer whose length nobody tells."""

SMALLEST_SALT: Final = 16
"""Bytes: as many as nobody can try out, if they are random."""

BLOCK_TOKENS: Final = 16
"""vLLM's block; SGLang's page is 1, which its prompts hardly tell from 16."""

_SPANS: Final = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))
_YEAR_S: Final = 366 * 86_400.0
"""No log is as long: one time is of another clock, or none."""

InArgument = Annotated[
    Path,
    typer.Argument(
        parser=parse_source, metavar="IN", help="Requests as JSONL, or an engine's log; .gz, .zst; -: stdin."
    ),
]
OutArgument = Annotated[
    Path, typer.Argument(parser=parse_target, metavar="OUT", help="The trace: .jsonl, .gz; -: stdout.")
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="jsonl: a request a line; log: vLLM's or SGLang's; auto: by the first line.",
    ),
]
FieldOption = Annotated[str, typer.Option(metavar="PATH", help="Dotted path; not the usual places.")]
TenantOption = Annotated[
    str, typer.Option(metavar="PATH", help="Dotted path of who asks; written as a hash.")
]
UnitOption = Annotated[str, typer.Option(metavar="UNIT", help=f"Of numeric times: {', '.join(UNITS)}.")]
BlockOption = Annotated[int, typer.Option(parser=parse_count, metavar="INT", help="Tokens of a block.")]
TokenizerOption = Annotated[
    Path | None, typer.Option(help="Local tokenizer file; without one, four bytes of text count as a token.")
]
SaltOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Secret for the hashes, so that traces can be joined; else a new one."),
]
RateOption = Annotated[
    float | None,
    typer.Option(parser=parse_rate, metavar="FLOAT", help="Requests a second, in place of the log's times."),
]
OutputTokensOption = Annotated[
    int, typer.Option(parser=parse_count, metavar="INT", help="Length of answers of which nobody tells it.")
]


def trace_command(
    source: InArgument,
    target: OutArgument,
    form: FormatOption = "auto",
    time_field: FieldOption = "",
    prompt_field: FieldOption = "",
    output_field: FieldOption = "",
    tenant_field: TenantOption = "",
    time_unit: UnitOption = "",
    block_tokens: BlockOption = BLOCK_TOKENS,
    tokenizer: TokenizerOption = None,
    salt_file: SaltOption = None,
    rate: RateOption = None,
    output_tokens: OutputTokensOption = UNKNOWN_TOKENS,
) -> None:
    """Turn a log of requests into a trace for `peek simulate --trace`.

    The trace holds times, lengths and salted block hashes; nothing of what was asked or answered.
    """
    _check_choice("--format", form, FORMATS)
    _check_choice("--time-unit", time_unit, ("", *UNITS))
    if target.suffix == ".zst":
        raise typer.BadParameter(f"{target}: traces are read plain or as .gz", param_hint="OUT")
    read = [("IN", source), *((("--salt-file", salt_file),) if salt_file else ())]
    if tokenizer is not None:
        tokenizer = tokenizer_file(tokenizer)
        read.append(("--tokenizer", tokenizer))
    refuse_clashes(read, [("OUT", target)])
    check_target(target)
    encode = None if tokenizer is None else load_tokenizer(tokenizer)
    tracer = Tracer(_salt(salt_file), block_tokens, encode)
    bad = BadLines(source)
    lines = read_lines(source)
    fields = Fields(time_field, prompt_field, output_field, tenant_field, time_unit)
    log = EngineLog(json_loads())
    for number, found in _events(lines, form, RequestRows(fields, encode), log):
        try:
            for event in found:
                tracer.take(event)
        except (WorkloadError, InvalidKey) as error:
            bad.leave_out(number, error)
    if not tracer.counts.requests:
        raise WorkloadError(f"{source}: holds no request that is understood")
    _write(tracer, target, source, output_tokens, rate)
    _explain(tracer.counts, output_tokens, block_tokens, encode is None and tracer.counts.texts > 0)
    bad.complain(log.cut())


def _check_choice(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        shown = ", ".join(filter(None, valid))
        raise typer.BadParameter(f"{value!r} is unknown; valid: {shown}", param_hint=option)


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


def _events(
    lines: Iterator[Line], form: str, rows: RequestRows, log: EngineLog
) -> Iterator[tuple[int, Iterator[Event]]]:
    """Of each line that may tell something, its number and what it tells."""
    first = next(lines, None)
    if first is None:
        return
    is_log = form == "log" or (form == "auto" and not _is_request(first.content))
    for number, content, _ in chain([first], lines):
        if is_log:
            yield number, log.events(content.decode("utf-8", "replace"))
        else:
            yield number, _parsed(content, number, rows)
    yield 0, log.rest()


def _is_request(line: bytes) -> bool:
    """Whether a first line is a row rather than a line of a log."""
    return line.lstrip().startswith(b"{") and b'"event": "request.' not in line and b'"levelname"' not in line


def _parsed(line: bytes, number: int, rows: RequestRows) -> Iterator[Event]:
    try:
        row = json_loads()(line)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"not valid JSON: {clipped(str(error))}") from None
    yield from rows.events(row, str(number))


def _write(tracer: Tracer, target: Path, source: Path, output_tokens: int, rate: float | None) -> None:
    try:
        with write_whole([target]) as (stream,):
            for row in tracer.rows(output_tokens, rate):
                stream.write(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")
    except WorkloadError as error:
        raise WorkloadError(
            f"{source}: {error}: name their place with --time-field, or give --rate"
        ) from None


def _explain(counts: Counts, output_tokens: int, block_tokens: int, is_estimate: bool) -> None:
    note = " (four bytes of text taken as a token; --tokenizer counts them)" if is_estimate else ""
    told, allowed = counts.answered, counts.allowed
    unknown = counts.requests - told - allowed
    said = [
        f"{counts.requests:,} requests, {counts.prompt_tokens:,} tokens in blocks of {block_tokens}{note}",
        _pace(counts),
        f"length of answers: {told:,} told, {allowed:,} as allowed, {unknown:,} as {output_tokens}",
    ]
    if counts.engine_prompt_tokens:
        hit = 100.0 * counts.engine_cached_tokens / counts.engine_prompt_tokens
        said.append(f"the log says that {hit:.1f} % of {counts.engine_prompt_tokens:,} tokens were cached")
    if counts.doubt:
        said.append(counts.doubt)
    if counts.started_before:
        said.append(f"{counts.started_before:,} answers to requests that are not in the log")
    print("\n".join(said), file=sys.stderr)


def _pace(counts: Counts) -> str:
    """How long it took and how fast it came, so that a wrong unit of times shows."""
    span_s = counts.span_s
    if span_s <= 0.0:
        return "all at one time"
    parts, unit = next((each for each in _SPANS if span_s >= 2.0 * each[0]), (1.0, "s"))
    text = f"over {span_s / parts:,.3g} {unit}, {counts.requests / span_s:,.3g} requests a second"
    return (
        text
        if span_s < _YEAR_S
        else f"{text}: are all times of one clock and unit? (--time-field, --time-unit)"
    )
