"""`peek restore`: put the results of a reordered batch back into the order of the original file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peek import PeekError, WorkloadError
from peek.cli.batch_files import json_loads, read_lines, write_whole

SHOWN_FAULTS: Final = 20

ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="Results of the reordered batch.")]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="Where the ordered results go.")]
OrderOption = Annotated[Path, typer.Option(help="The order file that `peek reorder` wrote.")]


def restore_command(results: ResultsArgument, target: OutArgument, order: OrderOption) -> None:
    """Put results back into the order of the original batch file.

    Results are found by custom_id; where no result has one, by position.
    """
    loads = json_loads()
    numbers, ids = _read_order(order, loads)
    if target.exists() and results.exists() and results.samefile(target):
        raise typer.BadParameter(f"{results} would be overwritten", param_hint="OUT")
    lines = [line for _, line in read_lines(results)]
    rows = [_id_of(number, line, loads, results) for number, line in enumerate(lines, start=1)]
    if any(rows):
        placed, faults = _by_id(rows, numbers, ids, results)
    elif len(lines) == len(numbers):
        placed, faults = dict(enumerate(numbers)), []
    else:
        raise WorkloadError(
            f"{results}: {len(lines)} results without custom_id cannot be matched to {len(numbers)} requests"
        )
    with write_whole([target]) as (stream,):
        for index in sorted(placed, key=placed.__getitem__):
            stream.write(lines[index] + b"\n")
    for fault in faults[:SHOWN_FAULTS]:
        print(f"peek: {fault}", file=sys.stderr)
    if faults:
        raise WorkloadError(f"{results}: {len(faults)} of its results or their requests have no match")


def _read_order(path: Path, loads: Callable[[bytes], Any]) -> tuple[list[int], list[str]]:
    numbers: list[int] = []
    ids: list[str] = []
    for at, line in read_lines(path):
        try:
            number, custom_id = loads(line)
        except (ValueError, TypeError):
            raise PeekError(f"{path}: line {at}: not a line of an order file") from None
        if type(number) is not int or not isinstance(custom_id, str):
            raise PeekError(f"{path}: line {at}: not a line of an order file")
        numbers.append(number)
        ids.append(custom_id)
    return numbers, ids


def _id_of(number: int, line: bytes, loads: Callable[[bytes], Any], path: Path) -> str:
    try:
        row = loads(line)
    except ValueError as error:
        raise WorkloadError(f"{path}: result {number}: not valid JSON: {error}") from None
    custom_id = row.get("custom_id") if isinstance(row, dict) else None
    return custom_id if isinstance(custom_id, str) else ""


def _by_id(
    rows: list[str], numbers: list[int], ids: list[str], path: Path
) -> tuple[dict[int, int], list[str]]:
    """Line number in the original file by index of the result; and what has no match."""
    due: dict[str, deque[int]] = {}
    for number, custom_id in zip(numbers, ids, strict=True):
        due.setdefault(custom_id, deque()).append(number)
    placed = {}
    faults = []
    for index, custom_id in enumerate(rows):
        waiting = due.get(custom_id)
        if waiting:
            placed[index] = waiting.popleft()
        else:
            faults.append(f"{path}: result {index + 1}: no request has custom_id {custom_id!r}")
    missing = sorted((number, custom_id) for custom_id, left in due.items() for number in left)
    faults += [f"line {number}: no result for custom_id {custom_id!r}" for number, custom_id in missing]
    return placed, faults
