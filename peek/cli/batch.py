"""`peek batch`: a program that runs batch files, the file reordered before it, the results put back after.

What an engine has computed is worth more than a tidy folder: if anything fails once there are results, they
stay beside OUT with their order file, for `peek restore`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from peek import PeekError
from peek.cli.options import parse_count
from peek.cli.places import check_target, parse_source, parse_target, refuse_clashes
from peek.cli.reorder import CacheOption, EngineOption, ExplainOption, TokenizerOption, reorder_command
from peek.cli.restore import restore_command
from peek.cli.writing import work_folder
from peek.offline.reordering import BLOCK_TOKENS, CACHE_TOKENS

IN_PLACE: Final = "{in}"
OUT_PLACE: Final = "{out}"
RESULTS: Final = "results.jsonl"

InArgument = Annotated[
    Path, typer.Argument(parser=parse_source, metavar="IN", help="Batch file: .jsonl, .gz, .zst; -: stdin.")
]
OutArgument = Annotated[
    Path,
    typer.Argument(
        parser=parse_target, metavar="OUT", help="Where the results go, in IN's order; -: stdout."
    ),
]
CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND ...", help=f"Runs the file {IN_PLACE} and writes the results {OUT_PLACE}."
    ),
]
BlockOption = Annotated[int, typer.Option(parser=parse_count, metavar="INT", help="Tokens of a cache block.")]


def batch_command(
    source: InArgument,
    target: OutArgument,
    command: CommandArgument,
    cache_tokens: CacheOption = CACHE_TOKENS,
    block_tokens: BlockOption = BLOCK_TOKENS,
    tokenizer: TokenizerOption = None,
    engine: EngineOption = "vllm",
    explain: ExplainOption = False,
) -> None:
    """Reorder a batch file, run it with COMMAND, and put the results back into the order of IN.

    peek batch in.jsonl results.jsonl -- vllm run-batch --model MODEL -i {in} -o {out}
    """
    for place in (IN_PLACE, OUT_PLACE):
        if not any(place in word for word in command):
            raise typer.BadParameter(f"no word of it holds {place}", param_hint="COMMAND")
    refuse_clashes([("IN", source)], [("OUT", target)])
    check_target(target)
    with work_folder([target], RESULTS) as folder:
        ordered, results = folder / "ordered.jsonl", folder / RESULTS
        reorder_command(
            source,
            ordered,
            None,
            cache_tokens,
            block_tokens,
            tokenizer,
            engine,
            explain=explain,
            out_of_core=None,
        )
        _run(command, ordered, results)
        restore_command(results, target, ordered.with_suffix(".order"))


def _run(command: list[str], ordered: Path, results: Path) -> None:
    words = [word.replace(IN_PLACE, str(ordered)).replace(OUT_PLACE, str(results)) for word in command]
    try:
        code = subprocess.run(words, check=False).returncode
    except OSError as error:
        reason = "no such program" if isinstance(error, FileNotFoundError) else error.strerror
        raise PeekError(f"{words[0]}: {reason}") from None
    if code:
        raise PeekError(f"{words[0]}: {f'ended by signal {-code}' if code < 0 else f'exit status {code}'}")
    if not results.exists():
        raise PeekError(f"{words[0]}: has written no results to {OUT_PLACE}")
