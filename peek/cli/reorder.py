"""`peek reorder`, `peek restore`, `peek batch`: put a batch file into another order, and its results back.

Lines stay as they are, byte for byte.  A request that is not understood is named and kept, after the others.
A line that is no request is named and left out; the exit code is then 1 when all is done.

Requests go from the reader to a runner, and lines go from the runner to the writer.  The runner in memory has
a guard, which simulates a cache.  The runner out of core copies the good lines, unpacked, into a file beside
the output, because it reads them in another order at the end; DuckDB holds their keys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Final, NamedTuple

import numpy as np
import typer

from peek import PeekError, WorkloadError
from peek.cli import options as cli
from peek.cli import reading
from peek.cli.writing import open_to_write, work_folder, write_whole
from peek.compressed import bare
from peek.errors import needs
from peek.offline import formats
from peek.offline.batch_trie import BatchTrie
from peek.offline.block_keys import BLOCK_TOKENS
from peek.offline.formats import BatchRequest, Line
from peek.offline.reordering import CACHE_TOKENS, ENGINES, arrange, engine_named, hit_ratio, shares_of
from peek.offline.scale.duckdb_order import OutOfCoreOrder, Row
from peek.offline.shape import contract, finished

OUT_OF_CORE_BYTES: Final = 2_000_000_000  # of input; more is not held in memory; compressed counts 5 x
SPOOL_BYTES: Final = 500_000_000  # of results in memory; more are in a nameless file beside the output
MEMORY_LIMIT: Final = "1500MB"  # memory limit of the database; the process needs a few hundred megabytes more

IN_PLACE: Final = "{in}"
OUT_PLACE: Final = "{out}"
RESULTS: Final = "results.jsonl"
BEHIND: Final = "not understood, put behind the others"


@dataclass(frozen=True, kw_only=True)
class Ordering:
    source: Path = cli.read_path("IN", "Batch file: .jsonl, .gz, .xz, .zst, .parquet; -: stdin.")
    cache_tokens: int = cli.count("Tokens of the engine's KV cache.", CACHE_TOKENS)
    block_tokens: int = cli.count("Tokens of a cache block.", BLOCK_TOKENS)
    tokenizer: Path | None = cli.tokenizer_path()
    engine: str = cli.value(f"Engine that will run the file: {', '.join(ENGINES)}.", "vllm")
    out_of_core: bool | None = cli.switch(
        "--out-of-core/--in-memory", "Use DuckDB; by default for files of 2 GB and more.", None
    )
    explain: bool = cli.switch("--explain", "Print groups, guard and expected hits.")


# -- peek reorder -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReorderOptions(Ordering):
    target: Path = cli.written_path("Reordered file, its .order file beside it; -: stdout.")
    order: Path | None = cli.value(
        "Order file for `peek restore`, if not beside OUT.", None, "PATH", cli.parse_target
    )
    replicas: int = cli.count("Write one file for each of this many replicas.", 1, 1000)


def reorder_command(options: ReorderOptions) -> None:
    """Reorder an OpenAI-style batch file by shared prefixes.

    Lines stay as they are; `peek restore` puts the results back into the order of IN.
    """
    _say(*_reorder(options))


def _reorder(options: ReorderOptions) -> tuple[str, bool]:
    """Reorder a file; return a message on lines not understood, and whether any line is left out."""
    source, target = options.source, options.target
    _check(options)
    targets = [cli.numbered(target, i) for i in range(options.replicas)] if options.replicas > 1 else [target]
    outputs = [cli.beside(target, ".order") if options.order is None else options.order, *targets]
    if source != cli.STREAM and not source.exists():
        raise PeekError(f"{source}: no such file")
    tokenizer = reading.tokenizer_file(options.tokenizer)
    written = [("--order", outputs[0]), *(("OUT", path) for path in targets)]
    cli.refuse_clashes([("IN", source), ("--tokenizer", tokenizer)], written)
    for path in outputs:
        cli.check_target(path)
    is_large = _is_large(source) if options.out_of_core is None else options.out_of_core
    _check_tables(source, target, is_large)
    loads, encode = reading.json_loads(), reading.load_tokenizer(tokenizer)
    bad, unknown = reading.BadLines(source), reading.BadLines(source)
    bare, requests = -1, 0
    with _out_of_core(options, outputs) if is_large else nullcontext(_InMemory(options)) as runner:
        lines = reading.read_lines(source)
        for line, (request, key) in bad.made(lines, lambda each: formats.any_request(each, loads, encode)):
            if request.fault:
                unknown.leave_out(line.number, f"{BEHIND}: {request.fault}")
            if not line.end:
                bare = requests
            runner.add(line, request, f"{request.namespace}/{formats.kind_of(request.prompt)}", key)
            requests += 1
        with cli.naming(source):
            runner.arrange(options.replicas)
        _write(runner, source, outputs, bare)
    if options.explain:
        print("\n".join(runner.explanation()), file=sys.stderr if cli.STREAM in outputs else sys.stdout)
    return _told(source, (bad.count, "bad line", "left out"), (unknown.count, "line", BEHIND)), bad.count > 0


def _say(message: str, failed: bool) -> None:
    if failed:
        raise WorkloadError(message)
    if message:
        print(f"peek: {message}", file=sys.stderr)


def _told(what: object, *counts: tuple[int, str, str]) -> str:
    """Return a message on `what` with all counts but 0, each with its noun and fate; "" if all are 0."""
    told = ", ".join(f"{reading.counted(count, noun)} {fate}" for count, noun, fate in counts if count)
    return f"{what}: {told}" if told else ""


def _check(options: ReorderOptions) -> None:
    """Raise `BadParameter` or `PeekError` for options that are wrong whatever is in the files."""
    cli.check_choice("--engine", options.engine, ENGINES)
    cache, block, target = options.cache_tokens, options.block_tokens, options.target
    if cache < block:
        raise typer.BadParameter(f"{cache} is less than one block of {block}", param_hint="--cache-tokens")
    cli.check_no_folder(target)
    if cli.is_regular(target):
        return
    if options.replicas > 1:  # numbered names need the name of a regular file
        raise typer.BadParameter(f"{target} cannot be one file of several", param_hint="--replicas")
    if options.order is None:
        raise typer.BadParameter(f"needed, since no order file can lie beside {target}", param_hint="--order")


def _check_tables(source: Path, target: Path, out_of_core: bool) -> None:
    """Raise `BadParameter` for a table as target that would have to be made from lines."""
    if reading.is_table(target) and not reading.is_table(source):
        raise typer.BadParameter(f"{target}: a table can only be made from a table", param_hint="OUT")
    if reading.is_table(target) and out_of_core:
        raise typer.BadParameter(f"{target}: out of core, only lines are written", param_hint="OUT")


def _is_large(source: Path) -> bool:
    if source == cli.STREAM:
        return False
    return source.stat().st_size * (1 if bare(source) == source else 5) >= OUT_OF_CORE_BYTES


# -- the pipeline -----------------------------------------------------------------------------------------


def _write(runner: _InMemory | _OutOfCore, source: Path, outputs: list[Path], bare: int) -> None:
    """Write the order file, which is the first output, and a file for each replica.

    `bare` is the index of the line without an end of line; -1 if there is none.
    """
    with write_whole(outputs) as (order_file, *streams):
        ends = formats.new_ends(bare, *runner.last(), len(streams))
        numbers: list[list[int]] = [[] for _ in streams]
        to_table = reading.is_table(outputs[-1])
        for row, raw in runner.placed():
            order_file.write(formats.order_line(row.number, row.name))
            if to_table:
                numbers[row.replica].append(row.number)
            else:
                streams[row.replica].write(formats.with_end(raw, ends.get(row.prompt)))
        if to_table:
            for each, stream in zip(numbers, streams, strict=True):
                reading.copy_rows(source, each, stream)


class _Kept(NamedTuple):
    """What is kept of a request in memory."""

    number: int
    custom_id: str
    raw: bytes
    system: int  # equal for equal system prompts of a namespace; -1 for a request that is not understood


class _InMemory:
    """The runner in memory: it collects requests, then yields their lines in the new order."""

    def __init__(self, options: ReorderOptions) -> None:
        self._options = options
        self._engine = engine_named(options.engine)
        self._limit = OUT_OF_CORE_BYTES if options.out_of_core is None else 0
        self._bytes = 0
        self._kept: list[_Kept] = []
        self._trie = BatchTrie()
        self._systems: dict[tuple[str, str], int] = {}

    def add(self, line: Line, request: BatchRequest, namespace: str, key: bytes) -> None:
        """Add the next request of the batch; `PeekError` if the batch is too large for memory."""
        raw = line.content + line.end
        self._bytes += len(raw)
        if self._limit and self._bytes > self._limit:
            source = self._options.source
            raise PeekError(f"{source}: holds more than {self._limit:,} bytes: choose --out-of-core")
        known = self._systems
        system = -1 if request.fault else known.setdefault((namespace, request.system), len(known))
        self._kept.append(_Kept(line.number, request.custom_id, raw, system))
        self._trie.add(key, namespace)

    def arrange(self, replicas: int) -> None:
        """Find the order, once; `WorkloadError` if a custom_id occurs twice."""
        formats.check_ids((each.number, each.custom_id) for each in self._kept)
        block_tokens = self._options.block_tokens
        self._shape = contract(finished(self._trie), block_tokens)
        del self._trie  # its edges take memory
        self._found = arrange(self._shape, self._options.cache_tokens, block_tokens, self._engine)
        orders = [self._found.order]
        if replicas > 1:
            shares = shares_of(self._shape, self._found, replicas, block_tokens)
            orders = [share.order for share in shares]
        self._orders = [sorted(order, key=lambda index: self._kept[index].system < 0) for order in orders]

    def placed(self) -> Iterator[tuple[Row, bytes]]:
        """Yield the lines in the new order, replica after replica; a row's name is its custom_id as JSON."""
        for replica, order in enumerate(self._orders):
            for index in order:
                number, custom_id, raw, _ = self._kept[index]
                yield Row(index, 0, len(raw), number, json.dumps(custom_id), replica), raw

    def last(self) -> tuple[int, bytes]:
        """Return index and bytes of the last line in the new order; -1 and no bytes for an empty batch."""
        index = next((order[-1] for order in reversed(self._orders) if order), -1)
        return index, self._kept[index].raw if self._kept else b""

    def explanation(self) -> list[str]:
        groups, tokens = self._found.groups, int(self._shape.tokens.sum())
        requests = partial(reading.counted, noun="request")
        in_groups = sum(group.size for group in groups)
        guard, replicas = self._found.guard, self._options.replicas
        together = f"{reading.counted(len(groups), 'group')} with {requests(in_groups)}"
        kept = "left in the order it came in" if replicas == 1 else "one engine would take it as it came"
        return [
            f"{requests(len(self._kept))}, {reading.counted(tokens, 'token')}",
            f"{together}; {len(self._kept) - in_groups:,} share nothing",
            *(
                f"  {requests(group.size)} share{'s' * (group.size == 1)} {group.depth:,} tokens"
                for group in groups[:5]
            ),
            "reordered" if guard is None else f"{kept}, guard: {guard}",
            f"expected cache hit with {self._options.cache_tokens:,} tokens:",
            *(f"  {name:<34} {100.0 * hit:5.1f} %" for name, hit in self._hits().items()),
        ]

    def _hits(self) -> dict[str, float]:
        hits = {"as it came, the engine's own order": self._found.expected_hit_before or 0.0}
        if len(self._systems) > 1:
            order = np.argsort([each.system for each in self._kept], kind="stable")
            block, in_flight = self._options.block_tokens, self._engine.in_flight
            blocks = self._options.cache_tokens // block
            hits["sorted by system prompt alone"] = hit_ratio(self._shape, order, blocks, block, in_flight)
        return {**hits, "as written": self._found.expected_hit_after or 0.0}


class _OutOfCore:
    """The runner out of core, for larger files.  It has no guard, so it always reorders."""

    def __init__(self, order: OutOfCoreOrder, path: Path, spool: IO[bytes]) -> None:
        self._order = order
        self._path = path
        self._spool = spool
        self._place = 0

    def add(self, line: Line, request: BatchRequest, namespace: str, key: bytes) -> None:
        raw = line.content + line.end
        self._spool.write(raw)
        record = (self._place, len(raw), line.number, json.dumps(request.custom_id))
        self._order.add(key, namespace, record, bool(request.fault))
        self._place += len(raw)

    def arrange(self, replicas: int) -> None:
        self._spool.close()
        if repeated := self._order.arrange(replicas):
            raise formats.repeated_id_error(repeated[0], repeated[1], json.loads(repeated[2]))

    def placed(self, start: int = 0) -> Iterator[tuple[Row, bytes]]:
        with self._path.open("rb") as lines:
            for row in self._order.rows(start):
                lines.seek(row.place)
                yield row, lines.read(row.size)

    def last(self) -> tuple[int, bytes]:
        row, raw = next(self.placed(len(self._order) - 1), (None, b""))
        return (-1 if row is None else row.prompt), raw

    def explanation(self) -> list[str]:
        order = self._order
        hit = 100.0 * (1.0 - order.uncached_tokens / order.tokens) if order.tokens else 0.0
        return [
            f"{reading.counted(len(order), 'request')}, {reading.counted(order.tokens, 'token')}",
            f"{reading.counted(order.edges, 'shared edge')} of the trie",
            f"{reading.counted(order.uncached_tokens, 'uncached token')}",
            f"reordered; cache hit of at least {hit:.1f} %, by what each request finds of the one before it",
        ]


@contextmanager
def _out_of_core(options: ReorderOptions, outputs: list[Path]) -> Iterator[_OutOfCore]:
    """Make the runner out of core; its files are in a folder that is removed when the work is done."""
    try:
        import duckdb
    except ImportError:
        raise needs("duckdb", "--out-of-core") from None
    targets = [*outputs[1:], outputs[0]]
    try:
        with (
            work_folder(targets) as folder,
            closing(duckdb.connect(str(folder / "batch.duckdb"))) as database,
            open_to_write(folder / "lines", os.O_CREAT | os.O_EXCL) as spool,
        ):
            database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            yield _OutOfCore(OutOfCoreOrder(database, options.block_tokens), folder / "lines", spool)
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # DuckDB's error after Ctrl-C
            raise
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        raise PeekError(f"--out-of-core: {formats.excerpt(str(error).partition(chr(10))[0])}") from None


# -- peek restore -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestoreOptions:
    results: Path = cli.read_path("RESULTS", "Results of the reordered batch; -: stdin.")
    target: Path = cli.written_path("Where the ordered results go; -: stdout.")
    order: Path = cli.value("The order file that `peek reorder` wrote.", MISSING, "PATH", cli.parse_source)
    by_position: bool = cli.switch(
        "--by-position", "Results without custom_id are in the order of the reordered batch."
    )


def restore_command(options: RestoreOptions) -> None:
    """Put results back into the order of the original batch file.

    Results are found by custom_id; by position only where the requests have none, or with --by-position.
    """
    results, target = options.results, options.target
    cli.refuse_clashes([("RESULTS", results), ("--order", options.order)], [("OUT", target)])
    cli.check_target(target)
    _check_tables(results, target, out_of_core=False)
    loads = reading.json_loads()
    with cli.naming(options.order):
        numbers, ids = formats.read_order(reading.read_lines(options.order), loads)
    bad = reading.BadLines(results)
    folder = str(cli.real_path(target).parent) if cli.is_regular(target) else None
    with SpooledTemporaryFile(SPOOL_BYTES, dir=folder) as spool:
        lines = _Spooled(spool)
        kept = lines.kept(reading.read_lines(results))
        made = bad.made(kept, lambda line: formats.id_of(line.content, loads))
        found = {line.number: custom_id for line, custom_id in made}
        with cli.naming(results):
            placed, faults = formats.match_results(
                found, list(lines.places), numbers, ids, options.by_position
            )
        for fault in faults[: reading.SHOWN_FAULTS]:
            print(f"peek: {results}: {fault}", file=sys.stderr)
        told = _told(
            results if placed else f"{results}: nothing written",
            (len(numbers) - len(placed), "request", "without a result"),
            (len(found) - len(placed), "result", "without a request"),
            (bad.count, "bad line", "left out"),
        )
        if placed or not told:
            _write_back(lines, sorted(placed, key=placed.__getitem__), options)
    if told:
        raise WorkloadError(told)


def _write_back(lines: _Spooled, ranked: list[int], options: RestoreOptions) -> None:
    """Write the results with these numbers, in this order."""
    bare = lines.bare if lines.bare in ranked else -1
    ends = formats.new_ends(bare, ranked[-1], lines.raw(ranked[-1])) if ranked else {}
    with write_whole([options.target]) as (stream,):
        if reading.is_table(options.target):
            reading.copy_rows(options.results, ranked, stream)
        else:
            for number in ranked:
                stream.write(formats.with_end(lines.raw(number), ends.get(number)))


class _Spooled:
    """Lines by number, in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.places: dict[int, tuple[int, int]] = {}  # place and size of each line, with its end
        self.bare = -1  # number of the line that has no end

    def kept(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines, each once it is kept."""
        for line in lines:
            raw = line.content + line.end
            self.places[line.number] = self._file.tell(), len(raw)
            self._file.write(raw)
            if not line.end:
                self.bare = line.number
            yield line

    def raw(self, number: int) -> bytes:
        place, size = self.places[number]
        self._file.seek(place)
        return self._file.read(size)


# -- peek batch -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Ordering):
    target: Path = cli.written_path("Where the results go, in IN's order; -: stdout.")
    command: list[str] = cli.read_path(
        "-- COMMAND ...", f"Runs the file {IN_PLACE} and writes the results {OUT_PLACE}.", parser=None
    )


def batch_command(options: BatchOptions) -> None:
    """Reorder a batch file, run it, and put the results back.

    peek batch in.jsonl results.jsonl -- vllm run-batch --model MODEL -i {in} -o {out}
    """
    for place in (IN_PLACE, OUT_PLACE):
        if not any(place in word for word in options.command):
            raise typer.BadParameter(f"no word of it holds {place}", param_hint="COMMAND")
    cli.refuse_clashes([("IN", options.source)], [("OUT", options.target)])
    cli.check_target(options.target)
    # Results are expensive: if anything fails after the first result, the folder with results and order file
    # stays beside OUT, for `peek restore`.
    with work_folder([options.target], RESULTS) as folder:
        ordered, results = folder / "ordered.jsonl", folder / RESULTS
        ordering = {field.name: getattr(options, field.name) for field in fields(Ordering)}
        told = sys.stderr if options.target == cli.STREAM else sys.stdout  # for messages
        with redirect_stdout(told):
            fault, failed = _reorder(ReorderOptions(target=ordered, **ordering))
        if not fault or ordered.stat().st_size:
            try:
                _run(options.command, ordered, results, None if told is sys.stdout else told)
                restore_command(RestoreOptions(results, options.target, ordered.with_suffix(".order")))
            except PeekError as error:
                raise PeekError("; ".join(filter(None, (str(error), fault)))) from None
    _say(fault, failed)


def _run(command: list[str], ordered: Path, results: Path, stdout: IO[str] | None) -> None:
    words = [word.replace(IN_PLACE, str(ordered)).replace(OUT_PLACE, str(results)) for word in command]
    try:
        with subprocess.Popen(words, stdout=stdout) as runner:
            code = _waited(runner)
    except OSError as error:
        reason = "no such program" if isinstance(error, FileNotFoundError) else error.strerror
        raise PeekError(f"{words[0]}: {reason}") from None
    if code:
        raise PeekError(f"{words[0]}: {f'ended by signal {-code}' if code < 0 else f'exit status {code}'}")
    if not results.exists():
        raise PeekError(f"{words[0]}: has written no results to {OUT_PLACE}")


def _waited(runner: subprocess.Popen[bytes]) -> int:
    """Return the exit code.  Ctrl-C reaches the runner, too, which may save its work; a second one kills."""
    try:
        return runner.wait()
    except KeyboardInterrupt:
        try:
            runner.wait()
        finally:
            runner.kill()
        raise
