"""`peek simulate`: the embedded engine on one of the paper's cells or on a recorded trace.

Plan: first everything that the command line alone tells (wrong usage), then what the outside world must
offer (trace file, folder of the figure, matplotlib), and only then the runs, so that no mistake costs
a run.  Every combination of seed and policy is a run; the runs of one seed share one workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from peek import PRESETS, InvalidConfig, WorkloadError
from peek.cli.machines import arena_of, machine
from peek.cli.options import policy_of
from peek.cli.per_request import PerRequest
from peek.cli.places import check_target, refuse_clashes
from peek.cli.plot import check_plot, save_plot
from peek.cli.report import Batch, as_json_text, print_batches
from peek.cli.simulate_options import (
    ALL,
    ArenaOption,
    BlockOption,
    CacheOption,
    CardOption,
    CardsOption,
    JsonOption,
    LimitOption,
    LoadOption,
    MemoryOption,
    ModelOption,
    PerRequestOption,
    PlotOption,
    PolicyOption,
    RateOption,
    ReplicasOption,
    RouterOption,
    RunningOption,
    SeedOption,
    StaleOption,
    TraceFileOption,
    TraceOption,
    WorkloadOption,
)
from peek.cli.simulate_runs import run_all
from peek.simulation.cells import CELL_NAMES, LOADS, cell
from peek.simulation.cost import UTILISATION, cost_model_for
from peek.simulation.engines import BLOCK_TOKENS
from peek.simulation.fleet import FleetShape
from peek.simulation.simulate import CACHES
from peek.simulation.trace import at_rate, read_mooncake
from peek.simulation.workload import Workload, faster

DEFAULT_POLICIES: Final = [
    "fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm+gm+dl+pe", "peek",
]  # fmt: skip
"""What `make demo` compares."""

DEFAULT_SEEDS: Final = [42]
DEFAULT_ROUTERS: Final = ["round-robin", "prefix-hash", "peek"]
FLEET_POLICIES: Final = ["peek"]
"""What the engines of a fleet run where no policy is named."""

DEFAULT_RATES: Final = [1.0]

ENGINE_OF: Final = {"radix": "sglang", "blocks": "vllm"}
"""Whose column of a cell's rates and caps goes with an engine kind."""

_CELL_ONLY: Final = ("workload", "load", "seed", "trace_file")
_TRACE_ONLY: Final = ("trace_block", "rate_scale", "limit")
_MACHINE: Final = ("card", "cards", "model", "memory_utilization")
_FLEET_ONLY: Final = ("router", "stale_s")


def simulate_command(
    ctx: typer.Context,
    workload: WorkloadOption = "w1c",
    load: LoadOption = "heavy",
    policy: PolicyOption = DEFAULT_POLICIES,
    seed: SeedOption = DEFAULT_SEEDS,
    arena_tokens: ArenaOption = None,
    cache: CacheOption = "radix",
    as_json: JsonOption = False,
    plot: PlotOption = None,
    trace: TraceOption = None,
    trace_block: BlockOption = None,
    rate_scale: RateOption = DEFAULT_RATES,
    limit: LimitOption = None,
    trace_file: TraceFileOption = None,
    card: CardOption = None,
    cards: CardsOption = 1,
    model: ModelOption = None,
    memory_utilization: MemoryOption = UTILISATION,
    max_running: RunningOption = None,
    per_request: PerRequestOption = None,
    replicas: ReplicasOption = None,
    router: RouterOption = DEFAULT_ROUTERS,
    stale_s: StaleOption = 0.0,
) -> None:
    """Compare policies on the embedded engine, in virtual time.

    The engine's steps take the time of a roofline model of the paper's hardware and model, so the
    figures depend on the arguments alone, save the planning times, which are measured.
    """
    policy = list(PRESETS) if policy == [ALL] else policy
    _check_options(ctx, policy, cache, trace is not None)
    shapes = _shapes(ctx, replicas, router, stale_s, cache)
    policy = FLEET_POLICIES if shapes and not _is_given(ctx, "policy") else policy
    _check_files([path for path in (trace, trace_file) if path], plot, per_request, len(rate_scale))
    cost = None
    if any(_is_given(ctx, name) for name in _MACHINE):
        cost = machine(card, cards, model)
        arena_tokens = arena_tokens or arena_of(cost, memory_utilization)
    if trace is None:
        cells = _cells(workload, load, seed, ENGINE_OF[cache], trace_file)
        workloads = [faster(each, replicas or 1) for each in cells]
    else:
        workloads = _traces(trace, trace_block, limit, rate_scale, cache)
    workloads = [_limited(each, arena_tokens, max_running) for each in workloads]
    requests = None if per_request is None else PerRequest()
    batches = run_all(workloads, policy, shapes, cache, cost or cost_model_for(workload), requests)
    _give(batches, as_json, plot, requests, per_request)


def _give(
    batches: list[Batch],
    as_json: bool,
    plot: Path | None,
    requests: PerRequest | None,
    per_request: Path | None,
) -> None:
    """Files first: a table that scrolls by with an error behind it is read as a success."""
    if plot is not None:
        save_plot(plot, batches)
    if requests is not None and per_request is not None:
        requests.write(per_request)
    if as_json:
        print(as_json_text(batches))
    else:
        print_batches(batches)


# -- wrong usage ----------------------------------------------------------------------------------------


def _check_options(ctx: typer.Context, policies: list[str], cache: str, is_trace: bool) -> None:
    """What can be wrong with any run, and options that belong to the other kind of workload."""
    for label in policies:
        try:
            policy_of(label)
        except InvalidConfig as error:
            raise typer.BadParameter(str(error), param_hint="--policy") from None
    _check_choice("--cache", cache, CACHES)
    for name in _CELL_ONLY if is_trace else _TRACE_ONLY:
        if _is_given(ctx, name):
            why = "is given together with --trace, which replaces the cell" if is_trace else "needs --trace"
            raise typer.BadParameter(f"{_shown(ctx, name)} {why}", param_hint=_option(name))


def _check_files(read: list[Path], plot: Path | None, per_request: Path | None, rates: int) -> None:
    """Files that are one or cannot hold several speeds, and what could not be written after the runs."""
    asked = {"--plot": plot, "--per-request": per_request}
    written = [(option, path) for option, path in asked.items() if path is not None]
    if written and rates > 1:
        raise typer.BadParameter("takes one --rate-scale", param_hint=written[0][0])
    refuse_clashes([("trace", path) for path in read], written)
    if per_request is not None:
        check_target(per_request)
    if plot is not None:
        check_plot(plot)


def _shapes(
    ctx: typer.Context, replicas: int | None, routers: list[str], stale_s: float, cache: str
) -> list[FleetShape]:
    """The fleets to run, none for a single engine."""
    if replicas is None:
        for name in _FLEET_ONLY:
            if _is_given(ctx, name):
                raise typer.BadParameter(f"{_shown(ctx, name)} needs --replicas", param_hint=_option(name))
        return []
    if _is_given(ctx, "per_request"):
        raise typer.BadParameter("is for a single engine", param_hint="--per-request")
    if stale_s > 0.0 and cache != "blocks":
        raise typer.BadParameter(f"{stale_s} needs --cache blocks", param_hint="--stale-s")
    try:
        return [FleetShape(name, [1.0] * replicas, stale_s) for name in routers]
    except InvalidConfig as error:
        raise typer.BadParameter(str(error)) from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(ctx: typer.Context, name: str) -> str:
    """An option's value or values, as they were written."""
    value = ctx.params[name]
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _is_given(ctx: typer.Context, name: str) -> bool:
    """True if the option is on the command line, even with its default as value."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_choice(option: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        raise typer.BadParameter(f"{value!r} is unknown; valid: {', '.join(valid)}", param_hint=option)


def _check_block(cache: str, trace_block: int | None) -> None:
    if trace_block and cache == "blocks" and trace_block < BLOCK_TOKENS and BLOCK_TOKENS % trace_block:
        raise typer.BadParameter(
            f"{trace_block} does not divide the block of {BLOCK_TOKENS} tokens of --cache blocks",
            param_hint="--trace-block",
        )


# -- workloads and runs ---------------------------------------------------------------------------------


def _cells(name: str, load: str, seeds: list[int], engine: str, trace_file: Path | None) -> list[Workload]:
    """One workload per seed."""
    _check_choice("--workload", name, CELL_NAMES)
    _check_choice("--load", load, LOADS)
    if trace_file is not None and not name.startswith("w4"):
        raise typer.BadParameter(f"{trace_file} is of no use to {name}", param_hint="--trace-file")
    try:
        return [cell(name, load, seed, engine, trace=trace_file) for seed in seeds]
    except WorkloadError as error:
        if trace_file is not None:  # the file's fault
            raise
        raise typer.BadParameter(str(error), param_hint="--workload") from None


def _traces(
    trace: Path, trace_block: int | None, limit: int | None, rate_scales: list[float], cache: str
) -> list[Workload]:
    """One workload per speed."""
    _check_block(cache, trace_block)
    recorded = read_mooncake(trace, block_tokens=trace_block, limit=limit)
    _check_block(cache, recorded.unit_tokens)
    return [at_rate(recorded, scale) for scale in rate_scales]


def _limited(workload: Workload, arena_tokens: int | None, max_running: int | None) -> Workload:
    """With limits of the command line in place of its own."""
    return replace(
        workload,
        arena_tokens=arena_tokens or workload.arena_tokens,
        max_running=max_running or workload.max_running,
    )
