"""Writes the tables of docs/options.md and docs/reference/output.md: `python docs/tables.py`.

Tables and lists stand between comments, `<!-- NAME -->` and `<!-- /NAME -->`.  tests/test_options_page.py
compares the tables with the code, and the lists of fields with what the commands print.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from typer.main import get_command

from peek import PRESETS, LaneOptions, PeekConfig
from peek.adapters.activation import KNOWN_VARIABLES, OTHER_VARIABLES, Settings
from peek.cli.main import app
from peek.cli.simulate import PER_REQUEST_COLUMNS
from peek.policy.default import PeekOptions

_DOCS = Path(__file__).resolve().parent
PAGES = (_DOCS / "options.md", _DOCS / "reference" / "output.md")

VARIABLES = {
    "PEEK_POLICY": "the policy, by its label",
    "PEEK_CONFIG": "all options, as JSON, or `@` and a file's name",
    "PEEK_ONLINE_SCHEDULER": "the paper's: order the queue (cLPM)",
    "PEEK_ONLINE_EVICTION": "the paper's: evict by demand",
    "PEEK_ONLINE_CLPM": "the paper's: cLPM with its lanes",
    "PEEK_ONLINE_CLPM_GROUP_MAJOR": "the paper's: whole clusters",
    "PEEK_ONLINE_CLPM_DYNAMIC_LANE": "the paper's: let the lanes' share follow the queue",
    "PEEK_ONLINE_CLPM_BIGLANE_SHARE": "the paper's alpha, the cache lane's share; 0.7",
    "PEEK_ONLINE_EVICTION_MODE": "the paper's: a mode of demand eviction; `cluster`",
    "PEEK_REPLACE_SCHEDULE_POLICY": "SGLang: 1 lets `peek` take the place of any `--schedule-policy`",
    "PEEK_METRICS_DIR": "set by the adapter for the processes it starts: where their metrics go",
    "PEEK_PURE": "when building: 1 does not compile, 0 compiles or fails",
    "PEEK_EXPECT_BACKEND": "when testing: `compiled` or `interpreted`, else the run ends",
}
"""What each variable is for; the names themselves are those of the code."""

_STATISTICS = "{mean,p50,p99}"

RUN = {
    "workload": "name of the cell, trace or sessions",
    "load": "moderate or heavy for a cell; else trace or sessions",
    "policy": "label",
    "seed": "seed of the cell or sessions",
    "{requests,finished}": "numbers of requests and of answers",
    "warmup": "first requests, which the figures below leave out",
    "cache_hit": "share of the prompt tokens that was cached at first admission",
    "ideal_hit": "the same for a cache that forgets nothing",
    "throughput_rps": "requests answered per second",
    f"{{ttft_s,e2e_s}}.{_STATISTICS}": "seconds from arrival to the first token, and to the last",
    "tpot_ms.mean": "milliseconds for each token after the first",
    "queue_wait_s.{p99,max}": "seconds from arrival to admission",
    "goodput[].{ttft_s,tpot_ms,share}": "a target; share of requests that met both of its parts",
    f"slowdown.{_STATISTICS}": "`e2e_s` of a request, divided by the same without the wait",
    f"job_s.{_STATISTICS}": "with sessions, seconds from the first arrival to the last token",
    "prefill_tokens": "prompt tokens that were computed, including recomputed ones",
    "preemptions": "number of preemptions",
    "plan_us.{mean,p99}": "microseconds for a plan, in real time",
    "{arena_tokens,cache}": "KV cache in tokens; its kind, radix or blocks",
    "{hardware,model,backend}": "cards and model by name; build of `peek`",
    "rate_scale": "with a trace, how many times faster than recorded",
    "session_rate": "with sessions, sessions per second",
    "{replicas,router}": "with `--replicas`, like the next ones: number of engines; router",
    "stale_s": "seconds until the router learns of a change",
    "imbalance": "prefill tokens of the busiest engine over the mean",
    "decision_us.{mean,p99}": "microseconds for a router's decision, in real time",
}
"""Fields of `runs[]` of `peek simulate --json`; times are those of the model."""

CHECKED = {
    "verdict": "gain, mixed, nothing or loss",
    "sentence": "the answer in words, as printed",
    "{advised,flag}": "label of the engine's setting to use, and its flag; empty for the default",
    "changes[].{figure,against}": "path of a figure in a run; label of the setting that is best in it",
    "changes[].{before,after}": "the figure under that setting, and under `peek`",
    "changes[].{gain,low,high}": "gain as a part of `before`, for shares as a difference; its range",
    "changes[].says": "gain, loss or same",
    "log.files[]": "files that were read",
    "log.formats.*.{lines,requests,without_prompt}": "counts for each format, by its name",
    "log.{requests,prompt_tokens}": "requests that were understood, and tokens of their prompts",
    "log.tokens_are_estimated": "whether four bytes count as a token",
    "log.block_tokens": "tokens of the blocks by which prompts are compared",
    "log.{span_s,rate_rps}": "seconds from the first to the last request; requests per second",
    "log.shared": "share of the prompt tokens that had come before",
    "log.{sessions,turns}": "sessions of two turns or more, and their turns",
    "log.answers.{told,allowed,unknown}": "requests with an answer of known, limited or unknown length",
    "log.cached_says_the_log": "share of the prompt tokens that was cached, or null",
    "log.{lines_of_the_server,broken}": "lines of a known format without a request; broken lines",
    "log.not_understood.{lines,line,first}": "lines of no known format; number and text of the first",
    "summary[]": "the log, and the part of it that was simulated, in words",
    "notes[]": "doubts about the log or the answer, and what to do",
    "engine": "vLLM or SGLang",
    "{hardware,model}": "cards and model, by name",
    "assumed": "defaults used for engine, card and model",
    "rate_scale": "how many times faster than recorded",
    "{arena_tokens,max_running}": "KV cache in tokens, and seats, as simulated",
    "{simulated,draws}": "numbers of simulated requests and of resamples",
    "runs[]": "runs on the recorded arrivals, as above, without fields that describe the setting",
    "runs[].setting": "the flag that turns the policy on",
    "runs[].spread.*": "least and greatest value of a figure over all arrivals, by its path",
    "{version,backend}": "version and build of `peek`",
}
"""Fields of `peek check --json`."""

BENCHED = {
    "{peek,backend}": "version and build",
    "{prompts,policy}": "where the prompts come from; label",
    "{waiting,waiting_symbols}": "number of waiting requests; symbols of their prompts",
    "cached_prompts": "number of earlier prompts that are cached",
    "rounds": "rounds of each measurement",
    "rows[].what": "what was measured",
    "rows[].{best_s,median_s}": "processor seconds of the fastest and the median round",
    "rows[].ratio": "`best_s` over the time of one cache match per request, or null",
}
"""Fields of `peek bench --json`."""

FOUND = {
    "{peek,backend,location}": "version, build and folder",
    "{python,executable}": "version and path of the interpreter",
    "clashes[]": "installed distributions that clash with this one",
    "packages.*": "version, or null if not installed",
    "policies.*": "where a policy of another distribution is",
    "adapters.*": "whether the engine finds the plug-in of `peek`",
    "active": "the policy asked for, or stock; null if the environment is invalid",
    "here_only": "whether the policy's module is only in the working directory, which engines do not search",
    "mode": "on, shadow or off",
    "options.*": "every option in force",
    "misspelled.*": "a variable that nothing reads: the name that may be meant",
    "error": "what is wrong with the environment, or null",
}
"""Fields of `peek doctor --json`."""

COLUMNS = {
    "request_id": "place in the workload, or the request's name in the trace",
    "tenant": "tenant that the trace names",
    "arrival_s": "arrival, in seconds from the start, like the next three",
    "admitted_s": "first admission",
    "first_token_s": "first token",
    "finished_s": "last token",
    "prompt_tokens": "tokens of the prompt",
    "cached_tokens": "of these, tokens cached at first admission",
    "output_tokens": "tokens of the answer",
    "policy": "label of the run",
    "seed": "seed of the run",
    "session": "session, if the workload has any",
}
"""What each column of `--per-request` is; the names themselves are those of the code."""

FIELDS = {"run-fields": RUN, "check-fields": CHECKED, "bench-fields": BENCHED, "doctor-fields": FOUND}
"""Name of a list -> what it says of each field."""

_SHOWN = ("policy", "lanes", "dynamic_share", "eviction")
"""Settings that the table of labels shows."""


def tables() -> dict[str, str]:
    """Name of the table or list -> its lines."""
    return {
        "policy-options": _table(("option", "default", ""), _options(PeekOptions)),
        "lane-options": _table(("option", "default", ""), _lane_options()),
        "adapter-options": _table(("option", "default", ""), _options(Settings)),
        "variables": _table(("variable", ""), ((f"`{name}`", VARIABLES[name]) for name in _variables())),
        "labels": _table(("label", *_SHOWN), _labels()),
        "commands": "\n\n".join(_commands()),
        **{name: _list(told.items()) for name, told in FIELDS.items()},
        "columns": _list((name, COLUMNS[name]) for name in PER_REQUEST_COLUMNS),
    }


def written(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in tables().items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",  # type: ignore[misc]
            page,
            flags=re.DOTALL,
        )
    return page


def _variables() -> tuple[str, ...]:
    return (*KNOWN_VARIABLES, *OTHER_VARIABLES)


def _lane_options() -> Iterator[tuple[str, ...]]:
    """Rows for the options of lanes, and of the eviction."""
    yield from _options(LaneOptions)
    yield from (row for row in _options(PeekConfig) if row[0] == "`eviction`")


def _options(kind: Any) -> Iterator[tuple[str, ...]]:
    """Rows for the fields of a dataclass that its docstring describes."""
    listed = inspect.cleandoc(kind.__doc__).partition("Attributes:\n")[2]
    told = dict(re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE))
    for field in fields(kind):
        if field.name in told and field.name != "config":
            yield (
                f"`{field.name}`",
                "" if field.default is MISSING else f"`{_json(field.default)}`",
                " ".join(told[field.name].split()).rstrip("."),
            )


def _labels() -> Iterator[tuple[str, ...]]:
    for label, config in PRESETS.items():
        options = config.as_dict()
        lanes = () if config.lanes is None else vars(config.lanes)
        shown = [name if name in ("policy", "eviction") or name in lanes else "" for name in _SHOWN]
        yield f"`{label}`", *(f"`{_json(options[name])}`" if name else "" for name in shown)


def _commands() -> Iterator[str]:
    """A section for each command; options that an earlier command has as well are only named."""
    told: dict[tuple[str, ...], str] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        arguments = [_metavar(each) for each in command.params if each.param_type_name == "argument"]
        rows = [_option(each) for each in command.params if each.param_type_name == "option"]
        parts = [f"### peek {' '.join([name, *arguments])}", command.help.splitlines()[0]]
        new = [row for row in rows if row not in told]
        if new:
            parts.append("\n".join(_joined(new)))
        for other in dict.fromkeys(told[row] for row in rows if row in told):
            names = ", ".join(row[0] for row in rows if told.get(row) == other)
            parts.append(f"As for `peek {other}`: {names}.")
        told.update(dict.fromkeys(new, name))
        yield "\n\n".join(parts)


def _joined(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Lines of a list, the default in brackets; options with the same description share a line."""
    for default, text in dict.fromkeys((row[1], row[2]) for row in rows):
        names = ", ".join(row[0] for row in rows if row[1:] == (default, text))
        yield f"- {names}{default and f' ({default})'}: {text}"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name).strip("{}").upper()


def _option(option: Any) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    default = option.default
    if isinstance(default, (list, tuple)):
        default = ", ".join(map(str, default))
    return (
        names,
        "" if default in (None, False, "") else f"`{default}`",
        " ".join(option.help.partition(" Valid: ")[0].split()).rstrip("."),  # the labels have a table
    )


def _json(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _list(told: Iterable[tuple[str, str]]) -> str:
    """A line for each; `a.{b,c}` stands for two fields."""
    return "\n".join(f"- `{name}`: {text}" for name, text in told)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
