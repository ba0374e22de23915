"""`peek reorder`: put the lines of a batch file into an order that a prefix cache likes.

Plan.  Lines are kept as they are, byte for byte; only their order changes.  Beside the output goes an order
file, one line per output line, by which `peek restore` puts results back.  A line that cannot be
understood is named and left out, and the exit code is 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from peek import PeekError
from peek.cli.compression import COMPRESSED
from peek.cli.options import parse_count
from peek.cli.places import (
    STREAM,
    beside,
    check_no_folder,
    check_target,
    is_regular,
    numbered,
    parse_source,
    parse_target,
    refuse_clashes,
)
from peek.cli.reorder_job import ReorderJob
from peek.cli.reorder_large import reorder_large
from peek.cli.reorder_memory import reorder_in_memory
from peek.cli.tables import check_tables
from peek.cli.tokenizing import load_tokenizer, tokenizer_file
from peek.offline.pioneers import ENGINES
from peek.offline.reordering import BLOCK_TOKENS, CACHE_TOKENS

OUT_OF_CORE_BYTES: Final = 2_000_000_000
"""Input size from which the file is not held in memory; compressed files count five times."""

LARGEST_REPLICAS: Final = 1000

InArgument = Annotated[
    Path,
    typer.Argument(
        parser=parse_source, metavar="IN", help="Batch file: .jsonl, .gz, .zst, .parquet; -: stdin."
    ),
]
OutArgument = Annotated[
    Path,
    typer.Argument(
        parser=parse_target, metavar="OUT", help="Where it goes, its .order file beside it; -: stdout."
    ),
]
OrderOption = Annotated[
    Path | None,
    typer.Option(parser=parse_target, metavar="PATH", help="Order file for `peek restore`, not OUT's name."),
]
CacheOption = Annotated[
    int, typer.Option(parser=parse_count, metavar="INT", help="Tokens of the engine's KV cache.")
]
BlockOption = Annotated[int, typer.Option(parser=parse_count, metavar="INT", help="Tokens of a cache block.")]
TokenizerOption = Annotated[
    Path | None, typer.Option(help="Local tokenizer file; without one, four bytes count as a token.")
]
EngineOption = Annotated[str, typer.Option(help=f"What will run it: {', '.join(ENGINES)}.")]
ReplicasOption = Annotated[
    int, typer.Option(parser=parse_count, metavar="INT", help="Write one file for each of so many replicas.")
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print groups, guard and expected hits.")]
OutOfCoreOption = Annotated[
    bool | None,
    typer.Option("--out-of-core/--in-memory", help="Through DuckDB; by default for files of 2 GB and more."),
]


def reorder_command(
    source: InArgument,
    target: OutArgument,
    order: OrderOption = None,
    cache_tokens: CacheOption = CACHE_TOKENS,
    block_tokens: BlockOption = BLOCK_TOKENS,
    tokenizer: TokenizerOption = None,
    engine: EngineOption = "vllm",
    replicas: ReplicasOption = 1,
    explain: ExplainOption = False,
    out_of_core: OutOfCoreOption = None,
) -> None:
    """Reorder an OpenAI-style batch file by shared prefixes.

    Lines stay as they are; `peek restore` puts the results back into the order of IN.
    """
    _check_options(cache_tokens, block_tokens, engine, replicas)
    check_no_folder(target)
    if not is_regular(target):
        _check_stream(target, order, replicas)
    targets = [target] if replicas == 1 else [numbered(target, i) for i in range(replicas)]
    order_path = beside(target, ".order") if order is None else order
    if source != STREAM and not source.exists():
        raise PeekError(f"{source}: no such file")
    read = {"IN": source}
    if tokenizer is not None:
        read["--tokenizer"] = tokenizer = tokenizer_file(tokenizer)
    refuse_clashes(read.items(), [("--order", order_path), *(("OUT", path) for path in targets)])
    for path in (order_path, *targets):
        check_target(path)
    is_large = _is_large(source) if out_of_core is None else out_of_core
    check_tables(source, target, is_large)
    encode = None if tokenizer is None else load_tokenizer(tokenizer)
    limit = OUT_OF_CORE_BYTES if out_of_core is None else 0
    job = ReorderJob(source, targets, order_path, encode, cache_tokens, block_tokens, engine, explain, limit)
    bad = reorder_large(job) if is_large else reorder_in_memory(job)
    bad.complain()


def _check_options(cache_tokens: int, block_tokens: int, engine: str, replicas: int) -> None:
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is unknown; valid: {', '.join(ENGINES)}", param_hint="--engine")
    if cache_tokens < block_tokens:
        raise typer.BadParameter(
            f"{cache_tokens} is less than one block of {block_tokens}", param_hint="--cache-tokens"
        )
    if replicas > LARGEST_REPLICAS:
        raise typer.BadParameter(f"{replicas} is not in 1..{LARGEST_REPLICAS}", param_hint="--replicas")


def _check_stream(target: Path, order: Path | None, replicas: int) -> None:
    """No names can be made from that of a folder, a device or a stream."""
    if replicas > 1:
        raise typer.BadParameter(f"{target} cannot be one file of several", param_hint="--replicas")
    if order is None:
        raise typer.BadParameter(f"needed, since no order file can lie beside {target}", param_hint="--order")


def _is_large(source: Path) -> bool:
    if source == STREAM:
        return False
    return source.stat().st_size * (5 if source.suffix in COMPRESSED else 1) >= OUT_OF_CORE_BYTES
