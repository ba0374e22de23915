"""`peek check`: says what a log holds, and whether another order of its requests would be worth it.

All output, as text or as a page, is made from the JSON object.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import typer

from peek import __version__, backend
from peek.cli import options as cli
from peek.cli import simulate, trace
from peek.cli.page import page
from peek.cli.reading import ProgressBar, counted, json_loads, load_tokenizer
from peek.cli.report import Batch, print_batches, rounded, said_of, say, significant
from peek.cli.writing import in_utf8, write_whole
from peek.compressed import bare
from peek.errors import WorkloadError
from peek.offline.formats import Encode
from peek.simulation.answer import DRAWS, ENGINES, FIGURES, OURS, Answer, answer, busiest, is_even
from peek.simulation.cost import CostModel
from peek.simulation.simulate import CACHES, TARGETS, Target
from peek.simulation.trace import WARMUP_SHARE, at_rate, recorded, row_of
from peek.simulation.workload import Workload, ideal_hit
from peek.traffic import Reader, Tracer

LIMIT: Final = 1000  # default number of simulated requests; an answer then takes a minute or less
FEW: Final = 100  # fewer requests than this say little about a queue
OVERLOAD: Final = 0.6  # if the model serves a smaller part of the load than this in time, a doubt is shown
HIT_POINTS: Final = 0.1  # if the cache hits of model and log differ by more than this, a doubt is shown

AUTO: Final = "auto"
_ROOM: Final = "--arena-tokens, or a larger --card, more --cards, a smaller --model"


@dataclass(frozen=True)
class CheckOptions(cli.OfContext):
    logs: list[Path] = cli.read_path("LOG", "Logs of one engine; .gz, .xz, .zst; -: stdin.")
    engine: str = cli.value(f"{', '.join(ENGINES)}; auto: as the log says, else vllm.", AUTO, "NAME")
    card: str = cli.value("Accelerator, such as h100.", simulate.DEFAULT_CARD)
    cards: int = simulate.number_of_cards()
    model: str = cli.value("Model, such as llama-3.1-8b, or its config.json.", simulate.DEFAULT_MODEL)
    memory_utilization: float = simulate.part_of_memory()
    arena_tokens: int | None = cli.count("KV arena in tokens; else the log's, else the card's.")
    max_running: int | None = cli.count("Requests that run at once; else the log's, else 256.")
    as_json: bool = cli.json_switch()
    html: Path | None = cli.value("Write a page with the answer.", None, "FILE", cli.parse_target)
    rate_scale: float = cli.positive("Replay the requests this many times faster.", 1.0)
    limit: int = cli.count("Simulate this many requests, from the busiest stretch.", LIMIT)
    draws: int = cli.value("Resamples of the arrivals for the spread; 0: none.", DRAWS, "INT", cli.parse_seed)
    seed: int = cli.value("Seed of the resamples.", 42, "INT", cli.parse_seed)
    slo: list[Target] = cli.value(
        "A target for goodput in place of 2 s and 10 s, once or twice.", [], "S[,MS]", cli.parse_slo
    )
    time_field: str = trace.field_path()
    prompt_field: str = trace.field_path()
    output_field: str = trace.field_path()
    time_unit: str = trace.unit_of_times()
    tokenizer: Path | None = cli.tokenizer_path()
    rate: float | None = trace.rate_of_requests()
    output_tokens: int = trace.unknown_tokens()


def check_command(options: CheckOptions) -> None:
    """Say whether `peek` or a flag would help a log's traffic.

    All stock policies of the engine run on a model of it, on the recorded arrivals and on resamples.
    """
    cli.check_choice("--engine", options.engine, (AUTO, *ENGINES))
    if not 0 <= options.draws <= 1000:
        raise typer.BadParameter(f"{options.draws} is not in 0..1000", param_hint="--draws")
    if len(options.slo) > len(TARGETS):
        raise typer.BadParameter(f"{len(TARGETS)} targets at most", param_hint="--slo")
    files = [("--tokenizer", options.tokenizer), ("--model", simulate.model_file(options.model))]
    cli.refuse_clashes([*(("LOG", path) for path in options.logs), *files], [("--html", options.html)])
    if options.html == cli.STREAM:
        raise typer.BadParameter("standard output has the answer in text or JSON", param_hint="--html")
    if options.html is not None:
        cli.check_target(options.html)
    cost = simulate.machine(options.card, options.cards, options.model)
    encode = load_tokenizer(options.tokenizer)
    found, told = _checked(options, cost, encode)
    if options.html is not None:  # before the answer, because an answer above an error looks like success
        with write_whole([options.html]) as (stream,):
            stream.write(in_utf8(page(told)))
    if options.as_json:
        print(json.dumps(rounded(told), indent=2))
    else:
        _print(found, cost, told)


def _checked(options: CheckOptions, cost: CostModel, encode: Encode | None) -> tuple[Answer, dict[str, Any]]:
    """Return the answer of the simulation, and the JSON object from which all other output is made."""
    reader = Reader(trace.request_rows(options, "", encode), json_loads())
    tracer = Tracer(secrets.token_bytes(32), None, encode)
    bad = sum(each.count for each in trace.read_logs(options.logs, reader, tracer))
    with cli.naming(*options.logs):
        rows = list(map(row_of, tracer.rows(options.output_tokens, options.rate)))
    name = bare(options.logs[0]).stem if len(options.logs) == 1 else f"{len(options.logs)} logs"
    whole = at_rate(recorded(name, rows), options.rate_scale)
    facts = reader.facts
    engine = ENGINES[options.engine if options.engine != AUTO else facts.engine or "vllm"]
    arena = options.arena_tokens or facts.arena_tokens or simulate.arena_of(cost, options.memory_utilization)
    seats = options.max_running or facts.max_running or whole.max_running
    sized = replace(whole, arena_tokens=arena, max_running=seats)
    fit = [each for each in whole.requests if CACHES[engine.cache].fits(sized, each)]
    if not fit:
        raise WorkloadError(f"no request fits into {arena:,} tokens of KV cache ({_ROOM})")
    workload = busiest(replace(sized, requests=fit, warmup=len(fit) // WARMUP_SHARE), options.limit)
    targets = [*options.slo, *TARGETS[len(options.slo) :]]
    draws = 0 if is_even(workload) else options.draws
    with ProgressBar((draws + 1) * (len(engine.stock) + 1), "simulating") as progress:
        found = answer(workload, engine, cost, Random(options.seed), draws, targets, progress.show)
    seen = _seen(options, reader, tracer, whole, bad)
    too_long = len(whole.requests) - len(fit)
    told = {
        "log": seen,
        "summary": _summary(seen, tracer, workload, too_long),
        "notes": [*_notes(reader, tracer), *_doubts(found, too_long, seen)],
        "engine": engine.title,
        "hardware": cost.hardware.name,
        "model": cost.model.name,
        "assumed": _assumed(options, facts.engine),
        "rate_scale": options.rate_scale,
    }
    return found, _told(found, told)


def _told(found: Answer, told: dict[str, Any]) -> dict[str, Any]:
    """Add the answer to what is `told` about log and settings."""
    settings = {label: flag or "(default)" for label, flag in found.engine.stock.items()}
    changes, runs = [], []
    for each in found.ours:
        says = "gain" if each.is_gain else "loss" if each.is_loss else "same"
        changes.append({**asdict(each), "figure": each.figure.name, "says": says})
    for label, run in found.draws[0].items():
        spread = {figure.name: list(found.spread(label, figure)) for figure in FIGURES}
        runs.append({**run, "setting": settings.get(label, OURS), "spread": spread})
    return {
        "verdict": found.verdict,
        "sentence": said_of(found),
        "advised": found.advised,
        "flag": found.engine.stock[found.advised],
        "changes": changes,
        **told,
        "arena_tokens": found.workload.arena_tokens,
        "max_running": found.workload.max_running,
        "simulated": len(found.workload.requests),
        "draws": len(found.draws) - 1,
        "runs": runs,
        "version": __version__,
        "backend": backend(),
    }


def _assumed(options: CheckOptions, engine: str) -> str:
    cards = "one" if options.cards == 1 else options.cards
    taken = {
        "vLLM (--engine)": options.engine == AUTO and not engine,
        f"{cards} {simulate.DEFAULT_CARD.upper()} (--card)": not options.is_given("card"),
        f"{simulate.DEFAULT_MODEL} (--model)": not options.is_given("model"),
    }
    return ", ".join(what for what, is_taken in taken.items() if is_taken)


def _summary(seen: dict[str, Any], tracer: Tracer, workload: Workload, too_long: int) -> list[str]:
    """Say what the log holds and which part of it was simulated, in a line each."""
    tokens = "of prompts" + trace.ESTIMATE * seen["tokens_are_estimated"]
    said = []
    for name, each in seen["formats"].items():
        bare_ones = f", {each['without_prompt']:,} without a prompt" * bool(each["without_prompt"])
        read = f"{counted(each['lines'], 'line')}, {counted(each['requests'], 'request')}"
        said.append(f"{name}: {read}{bare_ones}")
    said += trace.summary(tracer.counts, tokens, "of unknown length")
    sessions = counted(seen["sessions"], "session")
    turns = f"; {seen['turns']:,} of them are turns of {sessions}" * bool(seen["turns"])
    said.append(f"{100.0 * seen['shared']:.1f} % of the tokens have come before in the same place{turns}")
    if seen["broken"]:
        said.append(f"broken lines, left out: {seen['broken']:,}")
    simulated, scale = workload.requests, workload.rate_scale
    is_part = len(simulated) + too_long < seen["requests"]
    part = f"the busiest {len(simulated):,}" if is_part else "all that fit" if too_long else "all"
    faster = f", {scale:g} times as fast as recorded" * (scale != 1.0)
    pace = trace.pace(simulated[-1].arrival_s - simulated[0].arrival_s, len(simulated))
    return [*said, f"simulated: {part} of them{faster}, {pace}; the cache is empty at first"]


def _doubts(found: Answer, too_long: int, seen: dict[str, Any]) -> list[str]:
    workload, runs = found.workload, found.draws[0]
    said = []
    if too_long:
        arena = f"{workload.arena_tokens:,} tokens of KV cache"
        said.append(f"{counted(too_long, 'request')} longer than the {arena}, left out ({_ROOM})")
    if len(workload.requests) < FEW:
        said.append(f"{counted(len(workload.requests), 'request')}: too few for more than a hint")
    if is_even(workload):
        said.append("the gaps between arrivals are all alike, so no resample differs: there are no ranges")
    guessed = seen["answers"]["allowed"] + seen["answers"]["unknown"]
    if 2 * guessed > seen["requests"]:
        said.append(f"the lengths of {counted(guessed, 'answer')} are limits or guesses (--output-field)")
    span_s = workload.requests[-1].arrival_s - workload.requests[0].arrival_s
    served = max(run["throughput_rps"] for run in runs.values())
    if span_s > 0.0 and served * span_s < OVERLOAD * len(workload.requests):
        rates = f"{significant(served)} of {significant(len(workload.requests) / span_s)} requests a second"
        said.append(f"the model serves {rates}: is it one engine's log (--cards, --model, --rate-scale)?")
    modelled, logged = runs[found.default]["cache_hit"], seen["cached_says_the_log"]
    if logged is not None and abs(modelled - logged) > HIT_POINTS:
        hits = f"{100.0 * modelled:.0f} % of the tokens cached, the log says {100.0 * logged:.0f} %"
        said.append(f"the model of {found.engine.title}'s default finds {hits}")
    return said


def _seen(options: CheckOptions, reader: Reader, tracer: Tracer, whole: Workload, bad: int) -> dict[str, Any]:
    counts = tracer.counts
    return {
        "files": [str(path) for path in options.logs],
        "formats": {
            each.name: {"lines": each.lines, "requests": each.requests, "without_prompt": each.bare}
            for each in reader.formats if each.lines
        },
        "requests": counts.requests,
        "prompt_tokens": counts.prompt_tokens,
        "tokens_are_estimated": counts.texts > 0 and options.tokenizer is None,
        "block_tokens": tracer.block_tokens,
        "span_s": counts.span_s,
        "rate_rps": counts.requests / counts.span_s if counts.span_s > 0.0 else None,
        "shared": ideal_hit(whole, include_warmup=True),
        "sessions": counts.sessions,
        "turns": counts.turns,
        "answers": {"told": counts.answered, "allowed": counts.allowed, "unknown": counts.unknown},
        "cached_says_the_log": counts.cached,
        "lines_of_the_server": reader.own,
        "broken": bad,
        "not_understood": reader.not_understood(),
    }  # fmt: skip


def _notes(reader: Reader, tracer: Tracer) -> list[str]:
    counts = tracer.counts
    said = [*counts.doubts, reader.cut(), *reader.hints()]
    if reader.is_lengths:
        said.append(f"lengths without prompts, taken as sharing nothing: {counted(counts.alone, 'request')}")
    if counts.bare_times and counts.span_s > 0.0 and counts.requests > 1000.0 * counts.span_s:
        rate = "that is more than a thousand requests a second"
        said.append(f"{rate}: is the unit of times right (--time-unit)?")
    if counts.ranked:
        said.append(
            f"priorities, which the model does not heed, on {counted(counts.ranked, 'request')}; "
            "nor do engines without --scheduling-policy priority or --enable-priority-scheduling"
        )
    return list(dict.fromkeys(filter(None, said)))


def _print(found: Answer, cost: CostModel, told: dict[str, Any]) -> None:
    notes = (*trace.unread(told["log"]["not_understood"]), *told["notes"])
    assumed = [f"taken for granted: {told['assumed']}"] if told["assumed"] else []
    for line in (*told["summary"], *(f"! {note}" for note in notes), *assumed):
        say(line, "  ")
    print()
    runs = list(found.draws[0].values())  # on the recorded arrivals
    print_batches([Batch(found.workload, found.engine.cache, cost, runs)], judged=False)
    print()
    say(told["sentence"], "  ")
