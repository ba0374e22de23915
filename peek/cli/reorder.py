"""`peek reorder`: put the lines of a batch file into an order that a prefix cache likes.

Plan.  Lines are kept as they are, byte for byte; only their order changes.  Beside the output goes an order
file, one line per output line, by which `peek restore` puts results back.  A line that cannot be
understood is named and left out, and the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from peek import InvalidKey, PeekError, WorkloadError
from peek.cli.batch_files import COMPRESSED, beside, json_loads, numbered, read_lines, write_whole
from peek.cli.simulate import parse_count
from peek.cli.tokenizing import load_tokenizer
from peek.offline.formats.requests import BatchRequest, key_of, parse_request
from peek.offline.pioneers import ENGINES, engine_named
from peek.offline.reordering import BLOCK_TOKENS, CACHE_TOKENS, Reordering, arrange
from peek.offline.replicas import split
from peek.offline.shape import contract, shape_of

OUT_OF_CORE_BYTES: Final = 2_000_000_000
"""Input size from which the file is not held in memory; compressed files count five times."""

LARGEST_REPLICAS: Final = 1000
SHOWN_BAD_LINES: Final = 20

InArgument = Annotated[Path, typer.Argument(metavar="IN", help="Batch file: .jsonl, .gz, .zst.")]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="Where it goes; OUT.order beside it.")]
OrderOption = Annotated[Path | None, typer.Option(help="Order file for `peek restore`, not OUT's name.")]
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


@dataclass
class Batch:
    """The lines of a file that could be read, and the others."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    bad: int = 0


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
    _check(source, target, cache_tokens, block_tokens, engine, replicas)
    encode = None if tokenizer is None else load_tokenizer(tokenizer)
    targets = [target] if replicas == 1 else [numbered(target, i) for i in range(replicas)]
    order_path = beside(target, ".order") if order is None else order
    if source.resolve() in {path.resolve() for path in (*targets, order_path)}:
        raise typer.BadParameter(f"{source} would be overwritten", param_hint="OUT")
    if out_of_core or (out_of_core is None and _is_large(source)):
        from peek.cli.reorder_large import reorder_large

        bad = reorder_large(source, targets, order_path, encode, block_tokens, explain)
    else:
        bad = _reorder(source, targets, order_path, encode, (cache_tokens, block_tokens, engine), explain)
    if bad:
        raise WorkloadError(f"{source}: {bad} bad line{'s' * (bad > 1)} left out")


def _check(
    source: Path, target: Path, cache_tokens: int, block_tokens: int, engine: str, replicas: int
) -> None:
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is unknown; valid: {', '.join(ENGINES)}", param_hint="--engine")
    if cache_tokens < block_tokens:
        raise typer.BadParameter(
            f"{cache_tokens} is less than one block of {block_tokens}", param_hint="--cache-tokens"
        )
    if replicas > LARGEST_REPLICAS:
        raise typer.BadParameter(f"{replicas} is not in 1..{LARGEST_REPLICAS}", param_hint="--replicas")
    if not source.exists():
        raise PeekError(f"{source}: no such file")
    if not target.parent.is_dir():
        raise PeekError(f"{target.parent}: no such folder")


def _is_large(source: Path) -> bool:
    return source.stat().st_size * (5 if source.suffix in COMPRESSED else 1) >= OUT_OF_CORE_BYTES


# -- reading ----------------------------------------------------------------------------------------------


class LineReader:
    """Reads requests, and names the lines that are none.

    Attributes:
        bad: lines left out so far.
    """

    def __init__(self, source: Path, encode: Callable[[str], list[int]] | None) -> None:
        self.bad = 0
        self._source = source
        self._encode = encode
        self._loads = json_loads()

    def read(self, number: int, line: bytes) -> tuple[BatchRequest, bytes] | None:
        """The request of a line and its key; None for a bad one."""
        try:
            request = parse_request(line, self._loads)
            return request, key_of(request.prompt, self._encode)
        except (WorkloadError, InvalidKey) as error:
            self.bad += 1
            if self.bad <= SHOWN_BAD_LINES:
                print(f"peek: {self._source}: line {number}: {error}", file=sys.stderr)
            return None


def _read(source: Path, encode: Callable[[str], list[int]] | None, keys: list[bytes]) -> Batch:
    batch = Batch()
    reader = LineReader(source, encode)
    for number, line in read_lines(source):
        found = reader.read(number, line)
        if found is not None:
            request, key = found
            keys.append(key)
            batch.lines.append(line)
            batch.numbers.append(number)
            batch.ids.append(request.custom_id)
            batch.namespaces.append(namespace_of(request))
    batch.bad = reader.bad
    return batch


def namespace_of(request: BatchRequest) -> str:
    """Token ids never share with text: the same number means something else."""
    kind = "" if isinstance(request.prompt, str) else "ids"
    return f"{request.namespace}/{kind}"


# -- in memory --------------------------------------------------------------------------------------------


def _reorder(
    source: Path,
    targets: list[Path],
    order_path: Path,
    encode: Callable[[str], list[int]] | None,
    cache: tuple[int, int, str],
    explain: bool,
) -> int:
    """Returns how many lines are bad."""
    cache_tokens, block_tokens, engine = cache
    keys: list[bytes] = []
    batch = _read(source, encode, keys)
    shape = contract(shape_of(keys, namespaces=batch.namespaces), block_tokens)
    keys.clear()
    result = arrange(shape, cache_tokens, block_tokens, engine_named(engine), min_gain=0.001)
    orders = [result.order]
    if len(targets) > 1:
        orders = [share.order for share in split(shape, result.order, len(targets), block_tokens)]
    with write_whole([order_path, *targets]) as (order_file, *streams):
        for stream, indices in zip(streams, orders, strict=True):
            write_lines(
                stream,
                order_file,
                ((order_line(batch.numbers[i], batch.ids[i]), batch.lines[i]) for i in indices),
            )
    if explain:
        _explain(result, len(batch.lines), int(shape.tokens.sum()), cache_tokens)
    return batch.bad


def order_line(number: int, custom_id: str) -> str:
    """A line of the order file: a JSON list of line number in IN and custom_id."""
    return json.dumps([number, custom_id])


def write_lines(stream: IO[bytes], order_file: IO[bytes], rows: Iterable[tuple[str, bytes]]) -> None:
    """Lines of the output, each with its line of the order file."""
    for order, line in rows:
        stream.write(line + b"\n")
        order_file.write(order.encode("ascii") + b"\n")


def _explain(result: Reordering, requests: int, tokens: int, cache_tokens: int) -> None:
    groups = result.groups
    in_groups = sum(group.size for group in groups)
    print(f"{requests:,} requests, {tokens:,} tokens")
    print(f"{len(groups):,} groups with {in_groups:,} requests; {requests - in_groups:,} share nothing")
    for group in groups[:5]:
        print(f"  {group.size:,} requests share {group.depth:,} tokens")
    if result.guard is None:
        print("reordered")
    else:
        print(f"left in the order it came in, guard: {result.guard}")
    rows: list[tuple[str, Any]] = [
        ("as it came", result.expected_hit_before),
        ("as written", result.expected_hit_after),
    ]
    print(f"expected cache hit with {cache_tokens:,} tokens: ", end="")
    print(", ".join(f"{name} {100.0 * value:.1f} %" for name, value in rows))
