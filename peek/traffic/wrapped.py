"""Removes what surrounds a log's lines: a container runtime's JSON or prefix, or a document of many objects.

Docker, Kubernetes, systemd and log shippers wrap each line of a server.  `Unwrapping` removes the wrapping
and keeps its time.  `documents` cuts JSON arrays, and objects over several lines, into single objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from peek.errors import WorkloadError
from peek.offline.formats import Line
from peek.traffic.rows import is_request
from peek.traffic.times import seconds


class Inner(NamedTuple):
    """A line without its wrapping."""

    text: str
    row: dict[str, Any] | None = None  # the line as a JSON object, if it is one
    at_s: float | None = None  # seconds at which the line was written, as its wrapping says; None if unknown
    level: str = ""  # log level, from Python's logging as JSON, which lacks the engine's own prefix; else ""
    name: str = ""  # name for a request in the line that has none of its own
    is_last: bool = False  # whether the file ends with this line, without an end of line


_ISO: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)"
_CRI: Final = re.compile(rf"({_ISO}) (stdout|stderr) ([FP]) ?")
_PREFIXES: Final = (
    re.compile(rf"({_ISO}) "),  # kubectl logs --timestamps, docker logs -t
    re.compile(r"\[pod/[^\]\s]+\] "),  # kubectl logs --prefix
    re.compile(r"[\w.-]+ +\| "),  # docker compose logs
    re.compile(rf"(?:{_ISO}|[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d) \S+ [\w.@-]+\[\d+\]: "),  # journalctl
    re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)[^\]]*\] (?=\{)"),  # SGLang, before its JSON
)

_FIELDS: Final = (
    ("log", "time"), ("log", "@timestamp"), ("log", "timestamp"), ("log", "date"), ("log", "kubernetes"),
    ("message", "asctime"), ("message", "@timestamp"), ("message", "timestamp"), ("message", "time"),
    ("MESSAGE", "__REALTIME_TIMESTAMP"), ("line", "timestamp"), ("textPayload", "timestamp"),
    ("event", "asctime"), ("msg", "time"), ("msg", "ts"),
)  # fmt: skip
"""Fields of the line and of its time in JSON of Docker, Fluent Bit, a logger, journald, Loki and Google."""

_PAYLOADS: Final = ("jsonPayload", "_source", "hits")  # of Google; of Elastic, for a row and for all of them

_DOCKER_PART: Final = 16_000  # bytes below which a line without an end is whole; Docker splits at 16 KiB

# Fields in which an export holds its list of rows.
_LISTS: Final = ("data", "requests", "items", "records", "rows", "logs", "events", "hits", "results")

_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_DEEPEST: Final = 6  # wrappings around one line


class Unwrapping:
    """Removes the runtime's wrapping line by line, and joins lines that the runtime has split."""

    def __init__(self, loads: Callable[[Any], Any]) -> None:
        self._loads = loads
        self._parts: dict[str, list[str]] = {}

    def lines(self, content: bytes) -> Iterator[Inner]:
        """Yield the line inside; nothing while it is incomplete, several lines for an export."""
        return self._inside(Inner(content.decode("utf-8", "replace").rstrip("\r\n")))

    def _inside(self, inner: Inner, in_export: bool = False) -> Iterator[Inner]:
        for _ in range(_DEEPEST):
            found = self._once(inner)
            if found is None:
                return
            if found is inner:
                break
            inner = found
        whole = {} if in_export or inner.row is None else inner.row
        for rows in (whole[name] for name in _LISTS if name in whole):
            is_list = isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
            if is_list and not is_request(whole):  # else the list stands beside a request, as its answer does
                for row in rows:
                    yield from self._inside(inner._replace(text="", row=row), in_export=True)
                return
        yield inner

    def rest(self) -> list[str]:
        """Return and forget the lines of which only the beginning came."""
        parts, self._parts = self._parts, {}
        return list(map("".join, parts.values()))

    def _once(self, inner: Inner) -> Inner | None:
        text = _COLOURS.sub("", inner.text) if "\x1b" in inner.text else inner.text
        if inner.row is not None:
            return self._from_row(inner)
        cri = _CRI.match(text)
        if cri is not None:
            at_s = _time(cri[1], inner.at_s)
            return self._joined(f"cri {cri[2]}", Inner(text[cri.end() :], None, at_s), cri[3] == "F")
        for prefix in _PREFIXES:
            found = prefix.match(text)
            if found is not None and not text.startswith("INFO:"):
                at = found[1] if prefix.groups else None
                return Inner(text[found.end() :], None, _time(at, inner.at_s))
        if text.startswith("{"):
            with suppress(ValueError, RecursionError):
                row = self._loads(text)
                if isinstance(row, dict):
                    return inner._replace(text=text, row=row)
        return inner if text == inner.text else inner._replace(text=text)

    def _from_row(self, inner: Inner) -> Inner | None:
        row = inner.row or {}
        if is_request(row):
            return inner
        for field, clock in _FIELDS:
            text = row.get(field)
            if isinstance(text, str) and clock in row:
                at = row[clock]
                if field == "MESSAGE" and isinstance(at, str) and at.isdecimal() and len(at) < 20:
                    at = int(at)
                is_short = len(text.encode("utf-8", "replace")) < _DOCKER_PART
                ends = text.endswith("\n") or field != "log" or is_short
                level = str(row.get("levelname", "INFO")) if clock == "asctime" else ""
                found = Inner(text.rstrip("\r\n"), None, _time(at, inner.at_s), level)
                return self._joined(f"json {row.get('stream')}", found, ends)
            if isinstance(text, dict) and field in ("log", "message") and clock in row:
                return Inner("", text, _time(row[clock], inner.at_s))
        for payload in map(row.get, _PAYLOADS):
            if isinstance(payload, dict):
                return Inner("", payload, _time(row.get("timestamp"), inner.at_s))
        return inner

    def _joined(self, stream: str, part: Inner, ends: bool) -> Inner | None:
        """Return a line with the parts of it that came before in its stream; None until it ends."""
        self._parts.setdefault(stream, []).append(part.text)
        return part._replace(text="".join(self._parts.pop(stream))) if ends else None


def _time(value: object, outer_s: float | None) -> float | None:
    """Return `outer_s` if it is known, because the outermost time is the finest, else `value` in seconds."""
    if outer_s is not None or value is None or isinstance(value, dict):
        return outer_s
    with suppress(WorkloadError):
        return seconds(value)
    return None


# A string without an end takes the rest of its line, because trying each quote would take quadratic time.
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\]]')


def documents(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield each object of a JSON array, or of a file of objects over several lines, as one line.

    It does the same for CSV records with line ends in quotes.  The first line decides; any other file passes
    unchanged.  Anything incomplete at the end of the file is the last line.  Memory: one object, and after a
    damaged one the rest of the file.
    """
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return
    lines, start = chain([first], rest), first.content.strip()
    base = 1 if re.match(rb"\[\s*($|\{|\[\s*\{)", start) else 0
    if not base and start != b"{":
        yield from _records(lines) if _CSV_HEADER.match(start) else lines
        return
    yield from _objects(lines, base, 0, strict=False)


def _objects(lines: Iterable[Line], base: int, depth: int, strict: bool) -> Iterator[Line]:
    """Yield each object at depth `base`, and what is between them; begin at `depth`.

    An object without an end takes the rest.  If a later line begins like the object's first line, damage has
    hidden other objects.  From there on all is read again, `strict`: such a line ends the object before it.
    """
    held: list[Line] = []  # lines of the open object; the first one is cut to where the object begins
    lead = b""  # how its first line begins
    for line in lines:
        content, at = line.content, 0
        begins = len(content) - len(content.lstrip())
        if strict and held and content.startswith(lead):
            yield _joined(held, b"\n")
            held, depth = [], base
        for mark in _MARKS.finditer(content):
            sign = mark[0]
            if sign in (b"{", b"["):
                if depth == base and sign == b"{":
                    at = mark.start()
                    lead = content[: mark.end()] if at == begins else sign
                depth += 1
            elif (sign == b"}" and depth > base) or (sign == b"]" and depth):  # a surplus one closes nothing
                depth -= 1
                if depth == base and sign == b"}":
                    yield _joined([*held, Line(line.number, content[at : mark.end()], b"")], b"\n")
                    held, at = [], mark.end()
        left = content[at:]
        if depth > base or held:
            held.append(Line(line.number, left, b""))
        elif left.strip(b" ,[]\t\r"):
            yield Line(line.number, left, b"\n")
    again = next((i for i, line in enumerate(held) if i and not strict and line.content.startswith(lead)), 0)
    if held:
        yield _joined(held[:again] or held, b"\n" if again else b"")
    if again:
        yield from _objects(held[again:], base, base, strict=True)


def _joined(lines: list[Line], end: bytes) -> Line:
    return Line(lines[0].number, b"\n".join(line.content for line in lines), end)


_CSV_HEADER: Final = re.compile(
    rb'(?i)(?=.*,)(?:[\w". -]*,)*"?(?:body|input|messages|prompt|request_body)"? *(?:,|$)'
)

_LONGEST_RECORD: Final = 1 << 26  # bytes: a quote that is never closed does not take the whole file


def _records(lines: Iterable[Line]) -> Iterator[Line]:
    """Join lines until their quotes are closed; blank lines, which `lines` lacks, come back."""
    held: list[bytes] = []
    first = last = quotes = size = 0
    end = b""
    for line in lines:
        held += [end, b"\n" * (line.number - last - 1)] if held else []
        first = first if held else line.number
        held.append(line.content)
        last, end = line.number, line.end
        size += len(line.content)
        quotes += line.content.count(b'"')
        if quotes % 2 == 0 or size > _LONGEST_RECORD:
            yield Line(first, b"".join(held), end)
            held, quotes, size = [], 0, 0
    if held:
        yield Line(first, b"".join(held), b"")
