"""`peek bench`: measures how long `peek` takes on given prompts, on this machine, with this build."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

from peek import WorkloadError, __version__, backend
from peek.cli import options as cli
from peek.cli import reading
from peek.offline.block_keys import BLOCK_TOKENS
from peek.offline.formats import Line, key_of, parse_request
from peek.simulation.trace import iter_rows
from peek.simulation.workload import pack_tokens
from peek.timing import Bench, Figure, aligned, random_key, readable

DRAWN: Final = "drawn: one of 100 prefixes of 2,048 tokens and 128 of its own"


@dataclass(frozen=True)
class BenchOptions:
    source: Path | None = cli.read_path(
        "IN", "Requests as JSONL or a trace; without it they are drawn.", None
    )
    waiting: int = cli.count("Requests that wait; as many came before them.", 1000, 100_000)
    policy: str = cli.value("Policy, or module:Class of your own.", "peek", "LABEL")
    rounds: int = cli.count("Rounds of each measurement.", 50, 10_000)
    tokenizer: Path | None = cli.tokenizer_path()
    as_json: bool = cli.json_switch()


def bench_command(options: BenchOptions) -> None:
    """Measure tree, walk, plan and offline order on your own prompts.

    Times are processor time of one thread.  The last requests wait; half of those before are in the cache.
    """
    policy, source = options.policy, options.source
    cli.check_policies([policy])
    if source is None and options.tokenizer is not None:
        raise typer.BadParameter(f"{options.tokenizer} is of no use without IN", param_hint="--tokenizer")
    bad, limit = reading.BadLines(source or cli.STREAM), 2 * options.waiting
    work = _drawn(limit) if source is None else _read(source, limit, options.tokenizer, bad)
    keys, what, block_symbols = work
    bench = Bench(keys, min(options.waiting, max(1, len(keys) // 2)), policy, options.rounds, block_symbols)
    figures = []
    with reading.ProgressBar(None, "measuring") as progress:
        for figure in bench.figures():
            figures.append(figure)
            progress.next_part(figure.what)
    setting: dict[str, Any] = {
        "peek": __version__,
        "backend": backend(),
        "prompts": what,
        "policy": policy,
        "waiting": len(bench.waiting),
        "waiting_symbols": sum(map(len, bench.waiting)) // 4,
        "cached_prompts": len(bench.cached),
        "rounds": options.rounds,
    }
    if options.as_json:
        print(json.dumps({**setting, "rows": [vars(figure) for figure in figures]}, indent=2))
    else:
        _print(setting, figures)
    bad.complain()


_Work = tuple[list[bytes], str, int]  # prompts as keys, their description, and the symbols per cache block


def _drawn(count: int) -> _Work:
    rng = np.random.default_rng(0)
    heads = [random_key(rng, 2048) for _ in range(100)]
    drawn = rng.integers(0, len(heads), size=count).tolist()
    return [heads[head] + random_key(rng, 128) for head in drawn], DRAWN, BLOCK_TOKENS


def _read(source: Path, limit: int, tokenizer: Path | None, bad: reading.BadLines) -> _Work:
    if not cli.is_regular(source):
        raise typer.BadParameter(f"{source}: only a file can be read twice", param_hint="IN")
    loads, first = reading.json_loads(), None
    with suppress(ValueError, RecursionError):
        first = loads(next(reading.read_lines(source), Line(0, b"null", b"")).content)
    if isinstance(first, dict) and "hash_ids" in first:
        rows = list(islice(iter_rows(source), limit))
        dense: dict[int, int] = {}
        keys = [pack_tokens([dense.setdefault(each, len(dense)) for each in row.hash_ids]) for row in rows]
        return keys, f"{source}, a symbol is a block of {rows[0].block_tokens} tokens", 1
    encode = reading.load_tokenizer(tokenizer)

    def made(line: Line) -> bytes:
        return key_of(parse_request(line.content, loads).prompt, encode)

    keys = [key for _, key in islice(bad.made(reading.read_lines(source), made), limit)]
    if not keys:
        raise WorkloadError(f"{source}: holds no request that is understood")
    return keys, f"{source}, a symbol is a token", BLOCK_TOKENS


def _print(setting: dict[str, Any], figures: list[Figure]) -> None:
    times = [(each.what, readable(each.best_s), readable(each.median_s), each.ratio) for each in figures]
    rows = [(*shown, f"{ratio:.2f}" if ratio else "") for *shown, ratio in times]
    print("\n".join(aligned([("", "best", "median", "x"), *rows], "<>>>")))
    print(
        f"\npeek {setting['peek']}, {setting['backend']}, policy {setting['policy']}; {setting['prompts']};\n"
        f"{setting['waiting']:,} wait with {reading.counted(setting['waiting_symbols'], 'symbol')}, "
        f"{setting['cached_prompts']:,} earlier ones are cached.\n"
        f"Processor time of {reading.counted(setting['rounds'], 'round')}; "
        "x: times one cache match per request."
    )
