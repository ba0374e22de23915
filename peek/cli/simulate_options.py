"""The options of `peek simulate`: their types, and what the help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from peek import PRESETS
from peek.cli.options import parse_count, parse_part, parse_rate, parse_seed
from peek.simulation.cells import CELL_NAMES, LOADS
from peek.simulation.fleet import ROUTERS

ALL: Final = "all"
"""In place of a policy: every one that has a name."""

WorkloadOption = Annotated[str, typer.Option(help=f"A cell of the paper: {', '.join(CELL_NAMES)}.")]
LoadOption = Annotated[str, typer.Option(help=f"Load of the cell: {', '.join(LOADS)}.")]
PolicyOption = Annotated[
    list[str],
    typer.Option(
        metavar="LABEL",
        help="Policy, repeatable; the others are compared with the first.  fcfs+lru is what vLLM and SGLang "
        "do by default.  Valid: "
        f"{', '.join(PRESETS)}, {ALL}, or module:Class of your own.",
    ),
]
SeedOption = Annotated[
    list[int], typer.Option(parser=parse_seed, metavar="INT", help="Seed of the cell, repeatable.")
]
ArenaOption = Annotated[
    int | None,
    typer.Option(parser=parse_count, metavar="INT", help="KV arena in tokens, not the workload's."),
]
CacheOption = Annotated[str, typer.Option(help="Engine kind: radix (SGLang-like), blocks (vLLM-like).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
PlotOption = Annotated[Path | None, typer.Option(help="Write a figure: .png, .svg or .pdf.")]
TraceOption = Annotated[
    Path | None, typer.Option(help="A Mooncake trace (JSONL, .gz too) in place of a cell.")
]
BlockOption = Annotated[
    int | None,
    typer.Option(
        parser=parse_count, metavar="INT", help="Tokens per hash id, where the trace does not say; else 512."
    ),
]
RateOption = Annotated[
    list[float],
    typer.Option(
        parser=parse_rate, metavar="FLOAT", help="Replay the trace so many times faster, repeatable."
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(parser=parse_count, metavar="INT", help="Take only the first rows of the trace.")
]
TraceFileOption = Annotated[
    Path | None, typer.Option(help="Mooncake's conversation trace, for w4 and w4-shared.")
]
CardOption = Annotated[
    str | None, typer.Option(help="Accelerator, as h100; with --model the arena follows from its memory.")
]
CardsOption = Annotated[
    int, typer.Option(parser=parse_count, metavar="INT", help="So many of them together, tensor parallel.")
]
ModelOption = Annotated[str | None, typer.Option(help="Model, as llama-3.1-8b, or its config.json.")]
MemoryOption = Annotated[
    float,
    typer.Option(parser=parse_part, metavar="FLOAT", help="Part of the memory for weights and KV cache."),
]
RunningOption = Annotated[
    int | None,
    typer.Option(parser=parse_count, metavar="INT", help="Requests that run at once, not the workload's."),
]
PerRequestOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a CSV line for each request of each run; .gz too.")
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        parser=parse_count, metavar="INT",
        help="So many engines behind a router; a cell's requests then come so many times as fast.",
    ),
]  # fmt: skip
RouterOption = Annotated[
    list[str], typer.Option(metavar="NAME", help=f"Router, repeatable: {', '.join(ROUTERS)}.")
]
StaleOption = Annotated[
    float, typer.Option(metavar="FLOAT", help="Seconds until a router hears of anything; --cache blocks.")
]
