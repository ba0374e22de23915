"""`peek simulate`: the embedded engine on one of the paper's cells or on recorded traffic.

Plan: first everything that the command line alone tells (wrong usage), then what the outside world must offer
(recorded file, folder of the figure, matplotlib), and only then the runs, so that no mistake costs a run.
Every combination of seed, policy and router is a run; the runs of one seed share one workload.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peek import PRESETS, InvalidConfig, PeekError, WorkloadError, backend
from peek.cli.options import (
    JsonOption,
    as_usage_error,
    check_choice,
    check_policies,
    check_target,
    count,
    parse_part,
    parse_seed,
    parse_slo,
    positive,
    refuse_clashes,
    value,
)
from peek.cli.reading import ProgressBar
from peek.cli.report import Batch, as_json_text, check_plot, print_batches, save_plot
from peek.cli.writing import write_whole
from peek.simulation.cells import CELL_NAMES, LOADS, cell
from peek.simulation.cost import (
    UTILISATION,
    CostModel,
    Model,
    arena_tokens,
    card_named,
    cost_model_for,
    model_named,
    model_of,
)
from peek.simulation.engines import BLOCK_TOKENS, Job
from peek.simulation.fleet import ROUTERS, FleetShape, simulate_fleet
from peek.simulation.simulate import CACHES, TARGETS, Target, simulate
from peek.simulation.trace import at_rate, at_session_rate, read_mooncake, read_sessions
from peek.simulation.workload import Workload, faster

ALL: Final = "all"
"""Stands for every policy that has a name."""

DEFAULT_POLICIES: Final = (
    "fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek",
)  # fmt: skip
"""The policies that `make demo` compares."""

FLEET_POLICIES: Final = ["peek"]
"""Policies of a fleet's engines where none is named."""

DEFAULT_ROUTERS: Final = ("round-robin", "prefix-hash", "peek")

DEFAULT_CARD: Final = "h100"
DEFAULT_MODEL: Final = "qwen2.5-32b"
LARGEST_CARDS: Final = 1024

ENGINE_OF: Final = {"radix": "sglang", "blocks": "vllm"}
"""Whose column of a cell's rates and caps goes with an engine kind."""

PER_REQUEST_COLUMNS: Final = (
    "request_id", "tenant", "arrival_s", "admitted_s", "first_token_s", "finished_s",
    "prompt_tokens", "cached_tokens", "output_tokens", "policy", "seed", "session",
)  # fmt: skip

_CELL_ONLY: Final = ("workload", "load", "seed", "trace_file")
_TRACE_ONLY: Final = ("trace_block", "rate_scale")
_NOT_OF_SESSIONS: Final = ("trace", "workload", "load", "trace_file", *_TRACE_ONLY)
_MACHINE: Final = ("card", "cards", "model", "memory_utilization")
_FLEET_ONLY: Final = ("router", "stale_s")


@dataclass(frozen=True)
class SimulateOptions:
    """The command line of `peek simulate`."""

    ctx: typer.Context
    workload: Annotated[str, value(f"A cell of the paper: {', '.join(CELL_NAMES)}.")] = "w1c"
    load: Annotated[str, value(f"Load of the cell: {', '.join(LOADS)}.")] = "heavy"
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="LABEL",
            help="Policy, repeatable; the others are compared with the first.  fcfs+lru is what vLLM and "
            f"SGLang do by default.  Valid: {', '.join(PRESETS)}, {ALL}, or module:Class of your own.",
        ),
    ] = field(default_factory=lambda: list(DEFAULT_POLICIES))
    seed: Annotated[list[int], value("Seed of cell or sessions, repeatable.", "INT", parse_seed)] = field(
        default_factory=lambda: [42]
    )
    arena_tokens: Annotated[int | None, count("KV arena in tokens, not the workload's.")] = None
    cache: Annotated[str, value("Engine kind: radix (SGLang-like), blocks (vLLM-like).")] = "radix"
    as_json: JsonOption = False
    plot: Annotated[Path | None, value("Write a figure: .png, .svg or .pdf.")] = None
    trace: Annotated[Path | None, value("A Mooncake trace (JSONL, .gz too) in place of a cell.")] = None
    trace_block: Annotated[
        int | None, count("Tokens per hash id, where the trace does not say; else 512.")
    ] = None
    rate_scale: Annotated[list[float], positive("Replay the trace so many times faster, repeatable.")] = (
        field(default_factory=lambda: [1.0])
    )
    limit: Annotated[int | None, count("Take only the first rows, or sessions.")] = None
    sessions: Annotated[
        Path | None,
        value("Recorded sessions (.gz, .xz too) as a closed loop.", "FILE"),
    ] = None
    session_rate: Annotated[float, positive("Sessions a second, where the file has no times.")] = 1.0
    trace_file: Annotated[Path | None, value("Mooncake's conversation trace, for w4 and w4-shared.")] = None
    card: Annotated[
        str | None, value("Accelerator, as h100; with --model the arena follows from its memory.")
    ] = None
    cards: Annotated[int, count("So many of them together, tensor parallel.")] = 1
    model: Annotated[str | None, value("Model, as llama-3.1-8b, or its config.json.")] = None
    memory_utilization: Annotated[
        float, value("Part of the memory for weights and KV cache.", "FLOAT", parse_part)
    ] = UTILISATION
    max_running: Annotated[int | None, count("Requests that run at once, not the workload's.")] = None
    per_request: Annotated[
        Path | None, value("Write a CSV line for each request of each run; .gz too.", "FILE")
    ] = None
    slo: Annotated[
        list[Target],
        value(
            "Another target for goodput: seconds to the first token, milliseconds for each after it (100); "
            "repeatable.", "S[,MS]", parse_slo,
        ),
    ] = field(default_factory=list)  # fmt: skip
    replicas: Annotated[
        int | None,
        count("So many engines behind a router; a cell's requests then come so many times as fast."),
    ] = None
    router: Annotated[list[str], value(f"Router, repeatable: {', '.join(ROUTERS)}.", "NAME")] = field(
        default_factory=lambda: list(DEFAULT_ROUTERS)
    )
    stale_s: Annotated[float, value("Seconds until a router hears of anything; --cache blocks.", "FLOAT")] = (
        0.0
    )

    def is_given(self, name: str) -> bool:
        """Whether the option is on the command line, even with its default as value."""
        source = self.ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse options that do not go with the others."""
        for name in names:
            if self.is_given(name):
                value = self.ctx.params[name]
                shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
                raise typer.BadParameter(f"{shown} {why}", param_hint=f"--{name.replace('_', '-')}")


def simulate_command(options: SimulateOptions) -> None:
    """Compare policies on the embedded engine, in virtual time.

    The engine's steps take the time of a roofline model of the paper's hardware and model, so the
    figures depend on the arguments alone, save the planning times, which are measured.
    """
    policies = list(PRESETS) if options.policy == [ALL] else options.policy
    check_policies(policies)
    check_choice("--cache", options.cache, CACHES)
    _check_source(options)
    shapes = _shapes(options)
    if shapes and not options.is_given("policy"):
        policies = FLEET_POLICIES
    _check_files(options)
    cost, arena = None, options.arena_tokens
    if any(map(options.is_given, _MACHINE)):
        cost = machine(options.card or DEFAULT_CARD, options.cards, options.model or DEFAULT_MODEL)
        with as_usage_error("--card", WorkloadError, ": more of them with --cards"):
            arena = arena or arena_tokens(cost.hardware, cost.model, options.memory_utilization)
    workloads = [
        replace(
            each,
            arena_tokens=arena or each.arena_tokens,
            max_running=options.max_running or each.max_running,
        )
        for each in _workloads(options)
    ]
    cost = cost or cost_model_for(options.workload)
    runs = _Runs(options.cache, cost, options.per_request is not None, [*TARGETS, *options.slo])
    batches = runs.all(workloads, policies, shapes)
    if options.plot is not None:  # files first: a table above an error would be read as a success
        save_plot(options.plot, batches)
    if options.per_request is not None:
        with write_whole([options.per_request]) as (stream,):
            stream.write(runs.per_request.getvalue().encode())
    if options.as_json:
        print(as_json_text(batches))
    else:
        print_batches(batches)


# -- wrong usage ----------------------------------------------------------------------------------------


def _check_source(options: SimulateOptions) -> None:
    """Refuse options that belong to another kind of workload."""
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
    """Refuse files that are one, cannot hold several speeds, or could not be written after the runs."""
    asked = {"--plot": options.plot, "--per-request": options.per_request}
    written = [(option, path) for option, path in asked.items() if path is not None]
    if written and len(options.rate_scale) > 1:
        raise typer.BadParameter("takes one --rate-scale", param_hint=written[0][0])
    read = {"trace": options.trace or options.trace_file, "sessions": options.sessions}
    refuse_clashes([(role, path) for role, path in read.items() if path is not None], written)
    if options.per_request is not None:
        check_target(options.per_request)
    if options.plot is not None:
        check_plot(options.plot)


def _shapes(options: SimulateOptions) -> list[FleetShape]:
    """The fleets to run, none for a single engine."""
    if options.replicas is None:
        options.refuse(_FLEET_ONLY, "needs --replicas")
        return []
    if options.is_given("per_request"):
        raise typer.BadParameter("is for a single engine", param_hint="--per-request")
    if options.stale_s > 0.0 and options.cache != "blocks":
        raise typer.BadParameter(f"{options.stale_s} needs --cache blocks", param_hint="--stale-s")
    try:
        return [FleetShape(name, [1.0] * options.replicas, options.stale_s) for name in options.router]
    except InvalidConfig as error:
        raise typer.BadParameter(str(error)) from None


def _check_block(cache: str, block: int | None, option: str = "--trace-block") -> None:
    if block and cache == "blocks" and block < BLOCK_TOKENS and BLOCK_TOKENS % block:
        raise typer.BadParameter(
            f"{block} does not divide the block of {BLOCK_TOKENS} tokens of --cache blocks",
            param_hint=option,
        )


# -- machines -------------------------------------------------------------------------------------------


def machine(card: str, cards: int, model: str) -> CostModel:
    """Step times and memory of what was asked for; wrong usage for names that are unknown."""
    if cards > LARGEST_CARDS:
        raise typer.BadParameter(f"{cards} is not in 1..{LARGEST_CARDS}", param_hint="--cards")
    with as_usage_error("--card", WorkloadError):
        hardware = card_named(card.lower(), cards)
    return CostModel(hardware, _model(model))


def _model(model: str) -> Model:
    """A model by its name, or by the path of its `config.json`."""
    path = Path(model)
    if path.suffix != ".json":
        with as_usage_error("--model", WorkloadError, ", or a config.json"):
            return model_named(model.lower())
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise PeekError(f"{path}: not valid JSON") from None
    if not isinstance(config, dict):
        raise PeekError(f"{path}: not a JSON object")
    return model_of(str(path), config)


# -- workloads and runs ---------------------------------------------------------------------------------


def _workloads(options: SimulateOptions) -> list[Workload]:
    """What the command line names."""
    if options.sessions is not None:
        return _sessions(options.sessions, options)
    return _cells(options) if options.trace is None else _traces(options.trace, options)


def _cells(options: SimulateOptions) -> list[Workload]:
    """One workload per seed."""
    name, trace_file = options.workload, options.trace_file
    check_choice("--workload", name, CELL_NAMES)
    check_choice("--load", options.load, LOADS)
    if trace_file is not None and not name.startswith("w4"):
        raise typer.BadParameter(f"{trace_file} is of no use to {name}", param_hint="--trace-file")
    engine = ENGINE_OF[options.cache]
    try:
        cells = [cell(name, options.load, seed, engine, trace=trace_file) for seed in options.seed]
    except WorkloadError as error:
        if trace_file is not None:  # the file's fault
            raise
        raise typer.BadParameter(str(error), param_hint="--workload") from None
    return [faster(each, options.replicas or 1) for each in cells]


def _traces(trace: Path, options: SimulateOptions) -> list[Workload]:
    """One workload per speed."""
    _check_block(options.cache, options.trace_block)
    recorded = read_mooncake(trace, block_tokens=options.trace_block, limit=options.limit)
    _check_block(options.cache, recorded.unit_tokens)
    return [at_rate(recorded, scale) for scale in options.rate_scale]


def _sessions(path: Path, options: SimulateOptions) -> list[Workload]:
    """One workload per seed; a single one where the file says when sessions begin."""
    rate, seeds = options.session_rate, options.seed
    recorded = read_sessions(path, rate=rate, seed=seeds[0], limit=options.limit)
    _check_block(options.cache, recorded.unit_tokens, "--sessions")
    if recorded.session_rate is None:
        options.refuse(("session_rate", "seed"), f"is of no use: {path} says when its sessions begin")
        return [recorded]
    return [recorded, *(at_session_rate(recorded, rate, seed) for seed in seeds[1:])]


class _Runs:
    """Runs workloads.

    Attributes:
        per_request: CSV text, if asked for: a line for each request of each run, warm-up included.
    """

    def __init__(self, cache: str, cost: CostModel, per_request: bool, targets: Sequence[Target]) -> None:
        self._cache = cache
        self._cost = cost
        self._targets = targets
        self._notes = per_request
        self.per_request = io.StringIO()
        self._csv = csv.writer(self.per_request, lineterminator="\n")
        self._csv.writerow(PER_REQUEST_COLUMNS)

    def all(
        self, workloads: list[Workload], policies: list[str], shapes: Sequence[FleetShape]
    ) -> list[Batch]:
        """Run each workload under each policy and fleet (`shapes`; none for a single engine)."""
        batches = []
        fleets: list[FleetShape | None] = [*shapes] or [None]
        requests = sum(len(workload.requests) for workload in workloads) * len(policies) * len(fleets)
        with ProgressBar(requests) as progress:
            for workload in workloads:
                runs = []
                for label in policies:
                    for shape in fleets:
                        name = label if shape is None else f"{shape.router}, {label}"
                        progress.next_part(f"{name}, seed {workload.seed}" if len(workloads) > 1 else name)
                        runs.append(self._one(workload, label, shape, progress))
                batches.append(Batch(workload, self._cache, self._cost, runs))
        return batches

    def _one(
        self, workload: Workload, label: str, shape: FleetShape | None, progress: ProgressBar
    ) -> dict[str, Any]:
        """The figures of a run, and what they hold for."""

        def watch(jobs: list[Job]) -> None:
            self._note(jobs, label, workload.seed)

        timer, cost = time.perf_counter, self._cost
        if shape is None:
            noting = watch if self._notes else None
            figures = simulate(
                workload, label, self._cache, timer, cost, progress.show, noting, self._targets
            )
        else:
            figures = simulate_fleet(
                workload, label, shape, self._cache, timer, cost, progress.show, targets=self._targets
            )
        found = {
            **figures,
            "warmup": workload.warmup,
            "arena_tokens": workload.arena_tokens,
            "cache": self._cache,
            "hardware": cost.hardware.name,
            "model": cost.model.name,
            "backend": backend(),
        }
        if workload.session_rate is not None:
            return {**found, "session_rate": workload.session_rate}
        return {**found, "rate_scale": workload.rate_scale} if workload.load == "trace" else found

    def _note(self, jobs: list[Job], policy: str, seed: int) -> None:
        """Note the requests of one run, in order of arrival; times in seconds since its start."""
        for job in jobs:
            times = (job.arrival_s, job.admitted_s, job.first_token_s, job.finished_s)
            self._csv.writerow([
                job.request_id, job.request.tenant, *(f"{time_s:.6f}" for time_s in times), job.prompt_tokens,
                job.cached_at_admission, job.output_tokens, policy, seed, job.request.session,
            ])  # fmt: skip
