"""The order file: one line per request, in the order of the output.

Each is a JSON list of the line number in the batch file and the custom_id, "" where it has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from peek.errors import WorkloadError
from peek.offline.formats.echo import echoed
from peek.offline.formats.lines import Line


def order_line(number: int, id_text: str) -> bytes:
    """A line of the file; `id_text` is `as_text(custom_id)`."""
    return f"[{number}, {id_text}]\n".encode("ascii")


def as_text(custom_id: str) -> str:
    """A custom_id as JSON, in ASCII."""
    return json.dumps(custom_id)


def read_order(lines: Iterable[Line], loads: Callable[[bytes], Any]) -> tuple[list[int], list[str]]:
    """Numbers and custom_ids of the requests; `WorkloadError` names a line that is none of an order file."""
    numbers: list[int] = []
    ids: list[str] = []
    for at, content, _ in lines:
        try:
            number, custom_id = loads(content)
        except (ValueError, TypeError, RecursionError):
            raise WorkloadError(f"line {at}: not a line of an order file") from None
        if type(number) is not int or number < 1 or not isinstance(custom_id, str):
            raise WorkloadError(f"line {at}: not a line of an order file")
        numbers.append(number)
        ids.append(custom_id)
    if len(set(numbers)) < len(numbers):
        raise WorkloadError("not an order file: a line number occurs twice")
    return numbers, ids


def repeated_id_error(first: int, second: int, custom_id: str) -> WorkloadError:
    """The error for two requests with one custom_id, whose results nobody could tell apart."""
    return WorkloadError(
        f"line {second}: custom_id {echoed(custom_id)} is that of line {first}, too: "
        "their results could not be told apart"
    )


def find_repeated(numbers: Iterable[int], ids: Iterable[str]) -> tuple[int, int, str] | None:
    """The first two requests with one custom_id: their line numbers and the id; None if there are none."""
    seen: dict[str, int] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        if custom_id and seen.setdefault(custom_id, number) != number:
            return seen[custom_id], number, custom_id
    return None
