"""Results of a batch and the requests they answer.

By custom_id, whatever order they come in.  An answer goes to a request only if nothing else is possible: what
could belong to two requests, or is not the only one of its request, is left out and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from peek.errors import WorkloadError
from peek.offline.formats.echo import clipped, echoed
from peek.offline.formats.lines import Line


class Match(NamedTuple):
    """Which result answers which request.

    Attributes:
        placed: line number in the batch file by index of the result.
        faults: what has no match, in words; results first, then requests.
    """

    placed: dict[int, int]
    faults: list[str]


def result_ids(lines: Iterable[Line], loads: Callable[[bytes], Any]) -> list[object]:
    """The custom_id of each result, None where it has none; `WorkloadError` names a line that is no JSON."""
    found: list[object] = []
    for index, line in enumerate(lines, start=1):
        try:
            row = loads(line.content)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"result {index}: not valid JSON: {clipped(str(error))}") from None
        found.append((row.get("custom_id") or None) if isinstance(row, dict) else None)
    return found


def match_results(
    found: Sequence[object], numbers: Sequence[int], ids: Sequence[str], by_position: bool = False
) -> Match:
    """Match results with requests; by position where neither results nor requests have a custom_id.

    Args:
        found: of each result, as `result_ids` gives them.
        numbers, ids: of each request in the order it ran, as `read_order` gives them.
        by_position: also where the requests have ids and no result has: runners seldom keep the order.

    Raises:
        WorkloadError: no result has a custom_id, and requests have; or there are not as many as requests.
    """
    if any(custom_id is not None for custom_id in found):
        return _by_id(found, numbers, ids)
    if found and any(ids) and not by_position:
        raise WorkloadError(
            "no result has a custom_id, though the requests have: --by-position takes the results in the"
            " order of the reordered batch"
        )
    if len(found) == len(numbers):
        return Match(dict(enumerate(numbers)), [])
    raise WorkloadError(
        f"{len(found)} results without custom_id cannot be matched to {len(numbers)} requests"
    )


def _by_id(found: Sequence[object], numbers: Sequence[int], ids: Sequence[str]) -> Match:
    due: dict[str, list[int]] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        due.setdefault(custom_id, []).append(number)
    placed: dict[int, int] = {}
    faults: list[str] = []
    first: dict[str, int] = {}
    for index, answered in enumerate(found):
        fault = _fault_of(answered, due, first)
        if fault or not isinstance(answered, str):
            faults.append(f"result {index + 1}: {fault}")
        else:
            first[answered] = index
            (placed[index],) = due[answered]
    unanswered = sorted((lines, custom_id) for custom_id, lines in due.items() if custom_id not in first)
    return Match(placed, faults + [_missing(*each) for each in unanswered])


def _fault_of(custom_id: object, due: dict[str, list[int]], first: dict[str, int]) -> str:
    """Why a result cannot be placed; "" if it can."""
    if custom_id is None:
        return "has no custom_id"
    if not isinstance(custom_id, str):
        return f"custom_id is {echoed(custom_id)}, not a string"
    shown = echoed(custom_id)
    if custom_id not in due:
        return f"no request has custom_id {shown}"
    if len(due[custom_id]) > 1:
        return f"custom_id {shown} is that of lines {_listed(due[custom_id])}"
    if custom_id in first:
        return f"custom_id {shown} again; the first is result {first[custom_id] + 1}, which is kept"
    return ""


def _missing(lines: list[int], custom_id: str) -> str:
    if custom_id == "":
        return f"line {_listed(lines)}: without a custom_id no result can be found"
    if len(lines) > 1:
        return f"line {_listed(lines)}: the same custom_id {echoed(custom_id)}, no result can be told apart"
    return f"line {lines[0]}: no result for custom_id {echoed(custom_id)}"


def _listed(lines: list[int]) -> str:
    """A few of the line numbers."""
    return ", ".join(map(str, lines[:3])) + (f" and {len(lines) - 3:,} more" if len(lines) > 3 else "")
