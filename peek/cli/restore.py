"""`peek restore`: put the results of a reordered batch back into the order of the original file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from peek import WorkloadError
from peek.cli.extras import json_loads
from peek.cli.places import check_target, parse_source, parse_target, refuse_clashes
from peek.cli.reading import read_lines
from peek.cli.tables import check_tables, copy_rows, is_table
from peek.cli.writing import write_whole
from peek.offline.formats.lines import end_swap
from peek.offline.formats.order_file import read_order
from peek.offline.formats.results import match_results, result_ids

SHOWN_FAULTS: Final = 20

ResultsArgument = Annotated[
    Path,
    typer.Argument(parser=parse_source, metavar="RESULTS", help="Results of the reordered batch; -: stdin."),
]
OutArgument = Annotated[
    Path,
    typer.Argument(parser=parse_target, metavar="OUT", help="Where the ordered results go; -: stdout."),
]
OrderOption = Annotated[
    Path,
    typer.Option(parser=parse_source, metavar="PATH", help="The order file that `peek reorder` wrote."),
]


PositionOption = Annotated[
    bool,
    typer.Option("--by-position", help="Results without custom_id are in the order of the reordered batch."),
]


def restore_command(
    results: ResultsArgument, target: OutArgument, order: OrderOption, by_position: PositionOption = False
) -> None:
    """Put results back into the order of the original batch file.

    Results are found by custom_id; by position only where the requests have none, or with --by-position.
    """
    refuse_clashes([("RESULTS", results), ("--order", order)], [("OUT", target)])
    check_target(target)
    check_tables(results, target, out_of_core=False)
    loads = json_loads()
    with _naming(order):
        numbers, ids = read_order(read_lines(order), loads)
    lines = list(read_lines(results))
    with _naming(results):
        placed, faults = match_results(result_ids(lines, loads), numbers, ids, by_position)
    ranked = sorted(placed, key=placed.__getitem__)
    raw = [line.content + line.end for line in lines]
    bare = len(lines) - 1 if lines and not lines[-1].end else -1
    swap = end_swap(bare, ranked[-1], raw[ranked[-1]]) if bare in placed else end_swap(-1, -1, b"")
    with write_whole([target]) as (stream,):
        if is_table(target):
            copy_rows(results, [lines[index].number for index in ranked], stream)
        else:
            for index in ranked:
                stream.write(swap.apply(index, raw[index]))
    for fault in faults[:SHOWN_FAULTS]:
        print(f"peek: {results}: {fault}", file=sys.stderr)
    if faults:
        raise WorkloadError(f"{results}: {len(faults)} of its results or their requests have no match")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of what is in a file name the file."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from None
