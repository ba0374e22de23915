"""Reads logs of all formats: each line goes to the format that it has, and none is dropped silently.

A format of `FORMATS` gets a line without what a container runtime puts around it.  It leaves the line to the
next format, returns its events, or raises an error.  So one file may mix formats.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from peek.errors import InvalidKey, WorkloadError
from peek.offline.formats import Line, excerpt, excerpt_of, json_fault
from peek.traffic.engines import Facts, Format, SglangLog, VllmLog
from peek.traffic.events import Arrival, Ending, Event, Measured
from peek.traffic.rows import LARGEST, TIME_NAMES, RequestRows, is_request, parsed, tokens_of
from peek.traffic.times import seconds
from peek.traffic.wrapped import Inner, Unwrapping, documents

LENGTHS_HINT: Final = (
    "these rows have lengths and no prompts: what they share is not known, and taken as nothing"
)


class _Router(Format):
    name, kind = "vLLM production-stack's router log", "log"
    hint = "the router logs no prompts: take the log of the engines behind it"

    _LINE: Final = re.compile(
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] (?:DEBUG|INFO|WARNING|ERROR|CRITICAL): "
    )
    _ROUTED: Final = re.compile(r"Routing request \S+ (?:with session id \S+ )?to \S+ at [\d.]+")

    def events(self, line: Inner) -> Iterable[Event] | None:
        routed = self._ROUTED.search(line.text) is not None
        if line.row is not None or not (routed or self._LINE.match(line.text)):
            return None
        self.bare += routed
        return ()


class _Access(Format):
    name, kind = "an access log", "log"
    hint = "an access log has no prompts: take the engine's own log, or log the bodies of requests"

    _CALL: Final = re.compile(r'"(GET|POST|PUT|HEAD|DELETE|OPTIONS) (/\S*) HTTP/[\d.]+" \d{3}\b')
    _ASKED: Final = re.compile(r"/(?:completions|messages|responses|embeddings|generate)\b")

    def events(self, line: Inner) -> Iterable[Event] | None:
        row = line.row or {}
        if is_request(row):
            return None
        asked = row.get("request")
        found = self._CALL.search(f'"{asked}" 200' if row else line.text)  # nginx's `request`, or a line
        place = asked if isinstance(asked, dict) else row
        method, path = place.get("method"), place.get("path", place.get("uri", place.get("url")))
        method, path = found.groups() if found else (method, path)
        if not isinstance(method, str) or not isinstance(path, str):
            return None
        self.bare += method.upper() == "POST" and self._ASKED.search(path) is not None
        return ()


class _Csv(Format):
    """CSV: lengths as Azure and BurstGPT publish them, or requests in columns named like JSON fields."""

    name = "CSV"

    # Columns of Azure's and of BurstGPT's lengths, with the unit of numeric times.
    _LENGTHS: Final = {
        ("timestamp", "contexttokens", "generatedtokens"): "",
        ("timestamp", "model", "request tokens", "response tokens"): "s",
    }

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._columns: list[str] = []
        self._lengths: tuple[str, ...] = ()  # those of `_LENGTHS` that the file has

    def begin(self) -> None:
        self._columns = []

    def events(self, line: Inner) -> Iterable[Event] | None:
        if line.row is not None or "," not in line.text:
            return None
        if self._columns:
            return self._cells(line)
        try:
            return self._header(_split(line.text), line.name.endswith(":1"))
        except csv.Error:  # no CSV: carriage returns in the line, as a progress bar writes them
            return None

    def _header(self, cells: list[str], is_first: bool) -> Iterable[Event] | None:
        """Read a header; one without times has to be the file's first line."""
        columns, rows = [cell.strip().lower() for cell in cells], self.reader.rows
        self._lengths = next((names for names in self._LENGTHS if set(names) <= set(columns)), ())
        named = [path.partition(".")[0].lower() or None for path in (rows.prompt, rows.time)]
        asked = {"prompt", "messages", "body", "request_body", "input", named[0]} & set(columns)
        timed = {*map(str.lower, TIME_NAMES), named[1]} & set(columns)
        if not self._lengths and not (asked and (timed or is_first)):
            return None
        self._columns = columns if self._lengths else [cell.strip() for cell in cells]
        self.hint = LENGTHS_HINT if self._lengths else ""
        self.reader.is_lengths |= bool(self._lengths)
        return ()

    def _cells(self, line: Inner) -> Iterator[Event]:
        cells = _split(line.text, strict=True)
        if line.is_last:
            raise WorkloadError("the last line has no end, so its last number may be cut")
        if len(cells) != len(self._columns):
            raise WorkloadError(f"{len(cells)} cells for {len(self._columns)} columns")
        row = dict(zip(self._columns, cells, strict=True))
        if self._lengths:
            at_s = seconds(row["timestamp"], self._LENGTHS[self._lengths])
            yield self._measured(line.name, at_s, *(row[name] for name in self._lengths[-2:]))
        else:
            found = {name: parsed(cell) for name, cell in row.items() if cell}
            told = self.reader.rows.output  # cells are text, so a number there is a length, not an answer
            found.update({told: tokens_of(found[told])} if tokens_of(found.get(told)) else {})
            yield from self.reader.rows.events(found, line.name)

    def _measured(self, name: str, at_s: float, prompt: str, answer: str) -> Measured:
        if not (prompt.isdecimal() and answer.isdecimal()):
            raise WorkloadError(
                f"lengths are {excerpt_of(prompt)} and {excerpt_of(answer)}, not whole numbers"
            )
        tokens = _bounded(prompt)
        if tokens == 0:
            raise WorkloadError("the prompt is empty")
        return Measured(name, at_s, tokens, _bounded(answer))


def _split(text: str, strict: bool = False) -> list[str]:
    """Return the cells of a CSV record of any length; Python's limit is shorter than many prompts."""
    limit = csv.field_size_limit(len(text))
    try:
        return next(csv.reader([text], strict=strict))
    finally:
        csv.field_size_limit(limit)


class _Trace(Format):
    name = "Mooncake's trace"

    _NEEDED: Final = ("timestamp", "input_length", "output_length")

    def events(self, line: Inner) -> Iterable[Event] | None:
        row = line.row
        if row is None or not row.keys() >= set(self._NEEDED) or is_request(row):
            return None
        return self._read(row, line.name)

    def _read(self, row: dict[str, Any], name: str) -> Iterator[Event]:
        numbers = [row[field] for field in self._NEEDED]
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
            raise WorkloadError("timestamp, input_length and output_length are not all numbers")
        ids, block = row.get("hash_ids"), row.get("block_tokens", _MOONCAKE_TOKENS)
        at_s, prompt = seconds(numbers[0], "ms"), _bounded(numbers[1])
        if prompt == 0:
            raise WorkloadError("the prompt is empty")
        if ids is None:
            self.hint = LENGTHS_HINT
            self.reader.is_lengths = True
            block = 0
        elif not isinstance(ids, list) or set(map(type, ids)) - {int} or min(ids, default=0) < 0:
            raise WorkloadError("hash_ids are no whole numbers")
        elif not isinstance(block, int) or block < 1 or len(ids) != -(-prompt // block):
            raise WorkloadError(f"{len(ids)} hash_ids for {prompt} tokens in blocks of {block!r}")
        yield Measured(name, at_s, prompt, _bounded(numbers[2]), ids, block, str(row.get("tenant", "")))


class _Sessions(Format):
    name = "recorded sessions"
    hint = "sessions without times are replayed by `peek simulate --sessions FILE`"

    def events(self, line: Inner) -> Iterable[Event] | None:
        if line.row is None or not line.row.keys() >= {"session", "turn", "tokens"}:
            return None
        self.bare += 1
        return ()


class _Requests(Format):
    """Rows that hold a request, in any form; subclasses are for the forms of certain senders."""

    name = "requests as OpenAI's"

    def events(self, line: Inner) -> Iterable[Event] | None:
        row = line.row
        if row is None or not (self.mine(row) and (is_request(row) or self.reader.rows.prompt)):
            return None
        return self._read(line, row)

    def mine(self, row: dict[str, Any]) -> bool:
        return True

    def _read(self, line: Inner, row: dict[str, Any]) -> Iterator[Event]:
        for event in self.reader.rows.events(row, line.name):
            if isinstance(event, Arrival) and event.at_s is None:
                event = event._replace(at_s=line.at_s)
            yield event


class _Anthropic(_Requests):
    name = "requests as Anthropic's"

    def mine(self, row: dict[str, Any]) -> bool:
        body = row.get("params", row.get("body", row.get("request", row)))
        body = body if isinstance(body, dict) else row
        return "anthropic_version" in body or "params" in row or ("messages" in body and "system" in body)


class _Litellm(_Requests):
    name = "LiteLLM's log"
    hint = "LiteLLM leaves messages out with turn_off_message_logging; its logging callback writes them"

    def mine(self, row: dict[str, Any]) -> bool:
        is_payload = "startTime" in row and "messages" in row
        return is_payload or "proxy_server_request" in row or "litellm_call_id" in row


class _Proxy(_Requests):
    name = "an access log with bodies"

    def mine(self, row: dict[str, Any]) -> bool:
        return any(name in row for name in ("request_body", "requestBody", "req_body", "http_buffered_trace"))

    def _read(self, line: Inner, row: dict[str, Any]) -> Iterator[Event]:
        path = row.get("path", row.get("uri"))
        if isinstance(path, str) and not _Access._ASKED.search(path):
            return iter(())
        return super()._read(line, row)


FORMATS: Final[tuple[type[Format], ...]] = (
    _Trace, _Sessions, _Litellm, _Proxy, _Anthropic, _Requests, _Access, _Router, VllmLog, SglangLog, _Csv,
)  # fmt: skip
"""The formats in the order in which each gets a line."""

_MOONCAKE_TOKENS: Final = 512
_NOT_UNDERSTOOD: Final = (
    KeyError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError, csv.Error,
)  # fmt: skip
_JSON: Final = re.compile(r"\s*(?:\{|\[\s*[\[\]{\"])")


class Reader:
    """Reads the lines of logs, one file after another, in formats of one kind ("rows", "log") or of all ("").

    `rows` reads requests from rows; it knows the fields that the user has named.  `loads` parses JSON.
    """

    def __init__(self, rows: RequestRows, loads: Callable[[Any], Any], kind: str = "") -> None:
        self.rows = rows
        self.loads = loads
        self.facts = Facts()
        self.own = 0  # lines of a known format that yield no event
        self.unknown = 0  # lines of no known format
        self.example, self.where = "", 0  # the first line of no known format, and its number
        self.is_lengths = False  # whether any rows held lengths without prompts
        self.formats = [each(self) for each in FORMATS if kind in ("", each.kind)]
        self._unwrapping = Unwrapping(loads)
        self._kind = kind
        self._file = -1

    def file(self, lines: Iterable[Line]) -> Iterator[tuple[int, Iterator[Event]]]:
        """Yield each line's number and events; for an export, row by row.

        Iterating over the events raises `WorkloadError` or `InvalidKey` if the line or row is broken.
        """
        self._file += 1
        for each in self.formats:
            each.begin()
        for number, content, end in documents(lines):
            for place, inner in enumerate(self._unwrapping.lines(content)):
                name = f"{self._file}:{number}" + (f".{place}" if place else "")
                yield number, self._of(inner._replace(name=name, is_last=not end), number)
        for part in self._unwrapping.rest():
            yield 0, self._of(Inner(part, name=f"{self._file}:rest"), 0)

    def rest(self) -> Iterator[Event]:
        """Return the events that are still held back when all files are read."""
        for each in self.formats:
            for event in each.rest():
                each.requests += 1
                yield event

    def cut(self) -> str:
        """Return a message if a log has cut prompts; else ""."""
        return "; ".join(filter(None, (each.cut() for each in self.formats)))

    def hints(self) -> list[str]:
        """Return the hints of formats whose logs came without prompts."""
        read = any(each.requests for each in self.formats)
        lacking = (each for each in self.formats if each.bare or (each.lines and not read))
        said = [each.hint for each in lacking if not (read and isinstance(each, _Access))]
        return list(dict.fromkeys(filter(None, said)))

    def not_understood(self) -> dict[str, Any]:
        """Return the count of lines of no known format, and the first one's number and an excerpt."""
        return {"lines": self.unknown, "line": self.where, "first": self.example}

    def _of(self, line: Inner, number: int) -> Iterator[Event]:
        for each in self.formats:
            try:
                found = each.events(line)
                if found is None:
                    continue
                each.lines += 1
                events = list(found)
            except (WorkloadError, InvalidKey):
                raise
            except _NOT_UNDERSTOOD as error:
                what = excerpt_of(error)
                raise WorkloadError(f"a request is logged in a way that is not understood: {what}") from None
            each.requests += sum(not isinstance(event, Ending) for event in events)
            self.own += not events
            yield from events
            return
        self._leave(line, number)

    def _leave(self, line: Inner, number: int) -> None:
        """Count a line of no known format; one that looks like JSON is broken, except in a log."""
        text = line.text
        if self._kind != "log":
            if line.row is not None:
                list(self.rows.events(line.row, line.name))
            if _JSON.match(text):
                try:
                    self.loads(text)
                except (ValueError, RecursionError) as error:
                    raise WorkloadError(f"not valid JSON: {json_fault(error)}") from None
                raise WorkloadError("a JSON list, not an object")
        self.unknown += 1
        if self.unknown == 1:
            self.example, self.where = excerpt(text or repr(line.row)), number


def _bounded(tokens: int | float | str) -> int:
    """Return a length, also from text in digits."""
    if isinstance(tokens, str) and len(tokens) < 20:
        tokens = int(tokens)
    if not isinstance(tokens, int) or not 0 <= tokens <= LARGEST:
        shown = excerpt(str(tokens))
        raise WorkloadError(f"a length is {shown}, not a whole number in 0..{LARGEST}")
    return tokens
