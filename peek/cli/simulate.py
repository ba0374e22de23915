"""`peek simulate`: runs policies on the simulated engine, on a cell of the paper or on recorded traffic.

All arguments are checked before the first run, so that no mistake costs a run.  Every combination of workload
(seed, or speed of a trace), policy and router is a run.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import typer

from peek import PRESETS, PeekError, backend
from peek.cli import options as cli
from peek.cli.reading import ProgressBar
from peek.cli.report import Batch, as_json_text, check_plot, print_batches, save_plot
from peek.cli.writing import in_utf8, write_whole
from peek.simulation import cost as costs
from peek.simulation.answer import engine_of
from peek.simulation.cells import CELL_NAMES, LOADS, cell
from peek.simulation.cost import CostModel
from peek.simulation.engines import BLOCK_TOKENS, Job
from peek.simulation.fleet import MOST_REPLICAS, ROUTERS, FleetShape, simulate_fleet
from peek.simulation.simulate import CACHES, TARGETS, Target, simulate
from peek.simulation.trace import at_rate, at_session_rate, read_mooncake, read_sessions
from peek.simulation.workload import Workload, faster

ALL: Final = "all"  # label that stands for every preset
DEFAULT_POLICIES: Final = (  # those that `make demo` compares
    "fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek",
)  # fmt: skip
FLEET_POLICIES: Final = ["peek"]  # default policies of a fleet's engines

DEFAULT_CARD: Final = "h100"
DEFAULT_MODEL: Final = "qwen2.5-32b"

PER_REQUEST_COLUMNS: Final = (
    "request_id", "tenant", "arrival_s", "admitted_s", "first_token_s", "finished_s",
    "prompt_tokens", "cached_tokens", "output_tokens", "policy", "seed", "session",
)  # fmt: skip

_CELL_ONLY: Final = ("workload", "load", "seed", "trace_file")
_TRACE_ONLY: Final = ("trace_block", "rate_scale")
_NOT_OF_SESSIONS: Final = ("trace", "workload", "load", "trace_file", *_TRACE_ONLY)
_MACHINE: Final = ("card", "cards", "model", "memory_utilization")
_FLEET_ONLY: Final = ("router", "stale_s")

number_of_cards = partial(cli.count, "Number of accelerators, tensor parallel.", 1, 1024)
part_of_memory = partial(
    cli.value, "Share of the memory for weights and KV cache.", costs.UTILISATION, "FLOAT", cli.parse_part
)


@dataclass(frozen=True)
class SimulateOptions(cli.OfContext):
    workload: str = cli.value(f"A cell of the paper: {', '.join(CELL_NAMES)}.", "w1c")
    load: str = cli.value(f"Load of the cell: {', '.join(LOADS)}.", "heavy")
    policy: list[str] = cli.value(
        "Policy, repeatable; the others are compared with the first.  fcfs+lru is what vLLM and "
        f"SGLang do by default.  Valid: {', '.join(PRESETS)}, {ALL}, or module:Class of your own.",
        list(DEFAULT_POLICIES), "LABEL",
    )  # fmt: skip
    seed: list[int] = cli.value("Seed of cell or sessions, repeatable.", [42], "INT", cli.parse_seed)
    arena_tokens: int | None = cli.count("KV arena in tokens, in place of the workload's.")
    cache: str = cli.value("Engine kind: radix (SGLang-like), blocks (vLLM-like).", "radix")
    as_json: bool = cli.json_switch()
    plot: Path | None = cli.value("Write a figure: .png, .svg or .pdf.", None, "FILE")
    trace: Path | None = cli.value(
        "A Mooncake trace (JSONL, .gz, .xz, .zst; -: stdin), not a cell.", None, "FILE", cli.parse_source
    )
    trace_block: int | None = cli.count("Tokens per hash id if the trace does not say; else 512.")
    rate_scale: list[float] = cli.positive("Replay the trace this many times faster, repeatable.", [1.0])
    limit: int | None = cli.count("Take only the first rows, or sessions.")
    sessions: Path | None = cli.value(
        "Recorded sessions (.gz, .xz, .zst; -: stdin), a closed loop.", None, "FILE", cli.parse_source
    )
    session_rate: float = cli.positive("Sessions a second, if the file has no times.", 1.0)
    trace_file: Path | None = cli.value("Mooncake's conversation trace, for w4 and w4-shared.", None, "FILE")
    card: str | None = cli.value(
        "Accelerator, such as h100; with --model the arena follows from its memory.", None
    )
    cards: int = number_of_cards()
    model: str | None = cli.value("Model, such as llama-3.1-8b, or its config.json.", None)
    memory_utilization: float = part_of_memory()
    max_running: int | None = cli.count("Requests that run at once, in place of the workload's.")
    per_request: Path | None = cli.value(
        "Write a CSV line for each request of each run; .gz, .xz, .zst too.", None, "FILE", cli.parse_target
    )
    slo: list[Target] = cli.value(
        "Another target for goodput: seconds to the first token, milliseconds for each after it (100); "
        "repeatable.", [], "S[,MS]", cli.parse_slo,
    )  # fmt: skip
    replicas: int | None = cli.count(
        "Number of engines behind a router; the requests of a cell then come as many times faster.",
        most=MOST_REPLICAS,
    )
    router: list[str] = cli.value(
        f"Router, repeatable: {', '.join(ROUTERS)}.", ["round-robin", "prefix-hash", "peek"]
    )
    stale_s: float = cli.value(
        "Seconds until a router learns of a change; --cache blocks.", 0.0, "FLOAT", cli.parse_seconds
    )

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise `BadParameter` if one of these options is on the command line."""
        for name in names:
            if self.is_given(name):
                value = self.ctx.params[name]
                shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
                raise typer.BadParameter(f"{shown} {why}", param_hint=f"--{name.replace('_', '-')}")


def simulate_command(options: SimulateOptions) -> None:
    """Compare policies on the simulated engine, in modelled time.

    A roofline model, by default of the paper's hardware and model, gives the time of each step.  So all
    figures depend on the arguments alone, except planning times, which are measured.
    """
    policies = list(dict.fromkeys(
        label for each in options.policy for label in (PRESETS if each == ALL else [each])
    ))  # fmt: skip
    cli.check_policies(policies)
    cli.check_choice("--cache", options.cache, CACHES)
    _check_source(options)
    shapes = _shapes(options)
    if shapes and not options.is_given("policy"):
        policies = FLEET_POLICIES
    _check_files(options)
    cost, given = None, {"arena_tokens": options.arena_tokens, "max_running": options.max_running}
    if any(map(options.is_given, _MACHINE)):
        cost = machine(options.card or DEFAULT_CARD, options.cards, options.model or DEFAULT_MODEL)
        given["arena_tokens"] = options.arena_tokens or arena_of(cost, options.memory_utilization)
    sizes: dict[str, Any] = {name: size for name, size in given.items() if size is not None}
    cost = cost or costs.cost_model_for(options.workload)
    batches = [Batch(replace(each, **sizes), options.cache, cost, []) for each in _workloads(options)]
    per_request = io.StringIO()
    lines = csv.writer(per_request, lineterminator="\n")
    lines.writerow(PER_REQUEST_COLUMNS)
    _run(options, batches, policies, shapes, None if options.per_request is None else lines)
    if options.plot is not None:  # before the table, because a table above an error looks like success
        save_plot(options.plot, batches)
    if options.per_request is not None:
        with write_whole([options.per_request]) as (stream,):
            stream.write(in_utf8(per_request.getvalue()))
    if options.as_json:
        print(as_json_text(batches))
    else:
        print_batches(batches)


# -- wrong usage ----------------------------------------------------------------------------------------


def _check_source(options: SimulateOptions) -> None:
    """Raise `BadParameter` for options that belong to another kind of workload."""
    if options.sessions is not None:
        options.refuse(_NOT_OF_SESSIONS, "is given together with --sessions, which replaces cell and trace")
        return
    options.refuse(("session_rate",), "needs --sessions")
    if options.trace is None:
        options.refuse(_TRACE_ONLY, "needs --trace")
        options.refuse(("limit",), "needs --trace or --sessions")
    else:
        options.refuse(_CELL_ONLY, "is given together with --trace, which replaces the cell")


def _check_files(options: SimulateOptions) -> None:
    """Refuse two paths to one file, one file for several speeds, and files that could not be written."""
    written = [("--plot", options.plot), ("--per-request", options.per_request)]
    if options.as_json and options.per_request == cli.STREAM:
        raise typer.BadParameter("standard output has the JSON object", param_hint="--per-request")
    for option, path in written:
        if path is not None and len(options.rate_scale) > 1:
            raise typer.BadParameter("takes one --rate-scale", param_hint=option)
    read = [
        ("--trace", options.trace), ("--trace-file", options.trace_file), ("--sessions", options.sessions),
        ("--model", model_file(options.model or "")),
    ]  # fmt: skip
    cli.refuse_clashes(read, written)
    if options.per_request is not None:
        cli.check_target(options.per_request)
    if options.plot is not None:
        check_plot(options.plot)


def _shapes(options: SimulateOptions) -> list[FleetShape]:
    """Return the fleets to run; none for a single engine."""
    if options.replicas is None:
        options.refuse(_FLEET_ONLY, "needs --replicas")
        return []
    if options.is_given("per_request"):
        raise typer.BadParameter("is for a single engine", param_hint="--per-request")
    if options.stale_s > 0.0 and options.cache != "blocks":
        raise typer.BadParameter(f"{options.stale_s} needs --cache blocks", param_hint="--stale-s")
    for name in options.router:
        cli.check_choice("--router", name, ROUTERS)
    with cli.as_usage_error("--stale-s"):
        return [FleetShape(name, [1.0] * options.replicas, options.stale_s) for name in options.router]


def _check_block(cache: str, block: int | None, option: str = "--trace-block") -> None:
    if block and cache == "blocks" and block < BLOCK_TOKENS and BLOCK_TOKENS % block:
        said = f"{block} does not divide the block of {BLOCK_TOKENS} tokens of --cache blocks"
        raise typer.BadParameter(said, param_hint=option)


def model_file(model: str) -> Path | None:
    """Return the path of a model's config.json; None for a name."""
    return Path(model) if Path(model).suffix == ".json" else None


def machine(card: str, cards: int, model: str) -> CostModel:
    """Return the cost model of cards and a model (name or config.json); `BadParameter` for unknown names."""
    with cli.as_usage_error("--card"):
        hardware = costs.card_named(card.lower(), cards)
    path = model_file(model)
    if path is None:
        with cli.as_usage_error("--model", ", or a config.json"):
            return CostModel(hardware, costs.model_named(model.lower()))
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise PeekError(f"{path}: not valid JSON") from None
    if not isinstance(config, dict):
        raise PeekError(f"{path}: not a JSON object")
    return CostModel(hardware, costs.model_of(str(path), config))


def arena_of(cost: CostModel, part: float) -> int:
    """Return the arena in tokens that the weights leave; `BadParameter` if there is none, or too much."""
    with cli.as_usage_error("--card", ": more of them with --cards, or --memory-utilization"):
        tokens = costs.arena_tokens(cost.hardware, cost.model, part)
    if tokens > cli.LARGEST_COUNT:
        said = f"an arena of {tokens:,} tokens, above {cli.LARGEST_COUNT:,}: choose it with --arena-tokens"
        raise typer.BadParameter(said, param_hint="--model")
    return tokens


# -- workloads and runs ---------------------------------------------------------------------------------


def _workloads(options: SimulateOptions) -> list[Workload]:
    """Return one workload per seed of a cell or of sessions, or per speed of a trace."""
    if options.sessions is not None:
        return _sessions(options.sessions, options)
    if options.trace is None:
        return _cells(options)
    _check_block(options.cache, options.trace_block)
    recorded = read_mooncake(options.trace, block_tokens=options.trace_block, limit=options.limit)
    _check_block(options.cache, recorded.unit_tokens)
    return [at_rate(recorded, scale) for scale in options.rate_scale]


def _cells(options: SimulateOptions) -> list[Workload]:
    name, trace_file = options.workload, options.trace_file
    cli.check_choice("--workload", name, CELL_NAMES)
    cli.check_choice("--load", options.load, LOADS)
    if trace_file is not None and not name.startswith("w4"):
        raise typer.BadParameter(f"{trace_file} is of no use to {name}", param_hint="--trace-file")
    engine = engine_of(options.cache).name  # a cell takes its rates and caps
    with nullcontext() if trace_file else cli.as_usage_error("--workload"):  # else the file is at fault
        cells = [cell(name, options.load, seed, engine, trace=trace_file) for seed in options.seed]
    return [faster(each, options.replicas or 1) for each in cells]


def _sessions(path: Path, options: SimulateOptions) -> list[Workload]:
    """Return one workload per seed; a single one if the file says when sessions begin."""
    rate, seeds = options.session_rate, options.seed
    recorded = read_sessions(path, rate=rate, seed=seeds[0], limit=options.limit)
    _check_block(options.cache, recorded.unit_tokens, "--sessions")
    if recorded.session_rate is None:
        options.refuse(("session_rate", "seed"), f"is of no use: {path} says when its sessions begin")
        return [recorded]
    return [recorded, *(at_session_rate(recorded, rate, seed) for seed in seeds[1:])]


def _run(
    options: SimulateOptions, batches: list[Batch], policies: list[str], shapes: list[FleetShape], lines: Any
) -> None:
    """Run each workload under each policy and fleet, or without `shapes` on a single engine, with `_note`."""
    fleets: list[FleetShape | None] = [*shapes] or [None]
    requests = sum(len(batch.workload.requests) for batch in batches) * len(policies) * len(fleets)
    targets = [*TARGETS, *options.slo]
    with ProgressBar(requests) as progress:
        how = (options.cache, time.perf_counter, batches[0].cost, progress.show)
        for batch, label, shape in product(batches, policies, fleets):
            workload, name = batch.workload, label if shape is None else f"{shape.router}, {label}"
            progress.next_part(f"{name}, seed {workload.seed}" if len(batches) > 1 else name)
            if shape is None:
                watch = None if lines is None else partial(_note, lines, label, workload.seed)
                figures = simulate(workload, label, *how, watch, targets)
            else:
                figures = simulate_fleet(workload, label, shape, *how, targets=targets)
            batch.runs.append({**figures, **_setting(batch)})


def _setting(batch: Batch) -> dict[str, Any]:
    workload = batch.workload
    found = {
        "warmup": workload.warmup,
        "arena_tokens": workload.arena_tokens,
        "cache": batch.cache,
        "hardware": batch.cost.hardware.name,
        "model": batch.cost.model.name,
        "backend": backend(),
    }
    if workload.session_rate is not None:
        return {**found, "session_rate": workload.session_rate}
    return {**found, "rate_scale": workload.rate_scale} if workload.load == "trace" else found


def _note(lines: Any, policy: str, seed: int, jobs: list[Job]) -> None:
    """Write the requests of one run as CSV, in order of arrival; times in seconds since the run's start."""
    for job in jobs:
        times = (job.arrival_s, job.admitted_s, job.first_token_s, job.finished_s)
        lines.writerow([
            job.request_id, job.request.tenant, *(f"{time_s:.6f}" for time_s in times), job.prompt_tokens,
            job.cached_at_admission, job.output_tokens, policy, seed, job.request.session,
        ])  # fmt: skip
