"""What docs/options.md and docs/reference/output.md list; `python docs/tables.py` writes it there.

Tables and lists stand between comments, `<!-- NAME -->` and `<!-- /NAME -->`.  tests/test_options_page.py
compares them with the code, and what is told of output with what the commands print.
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
    "load": "moderate or heavy; trace; sessions",
    "policy": "label",
    "seed": "of cell or sessions",
    "{requests,finished}": "that came; of them, answered",
    "warmup": "the first so many are in no figure below",
    "cache_hit": "part of the prompt tokens that was cached at first admission",
    "ideal_hit": "the same for a cache that forgets nothing",
    "throughput_rps": "answers a second",
    f"{{ttft_s,e2e_s}}.{_STATISTICS}": "seconds from arrival to the first, to the last token",
    "tpot_ms.mean": "milliseconds for each token after the first",
    "queue_wait_s.{p99,max}": "seconds from arrival to admission",
    "goodput[].{ttft_s,tpot_ms,share}": "a target in s and ms; part of the requests that met it",
    f"slowdown.{_STATISTICS}": "time to the last token over the same without the wait",
    f"job_s.{_STATISTICS}": "seconds from a session's first arrival to its last token; with sessions",
    "prefill_tokens": "prompt tokens that were computed, recomputed ones too",
    "preemptions": "requests that were put back",
    "plan_us.{mean,p99}": "microseconds of a plan, by the wall clock",
    "{arena_tokens,cache}": "KV cache in tokens; radix or blocks",
    "{hardware,model,backend}": "cards, model and build, by name",
    "{rate_scale,session_rate}": "times faster than recorded, with a trace; sessions a second, with sessions",
    "{replicas,router}": "engines, and router by name; with `--replicas`, as are the next ones",
    "{stale_s,imbalance}": "seconds until a router hears; tokens of the busiest engine over the mean",
    "decision_us.{mean,p99}": "microseconds of a router's decision",
}
"""Fields of `runs[]` of `peek simulate --json`; times are those of the model."""

CHECKED = {
    "verdict": "gain, mixed, nothing, loss",
    "sentence": "the answer in words, as it is printed",
    "{advised,flag}": "label of the engine's setting to turn on, and what does it; empty for the default",
    "changes[].{figure,against}": "a figure of a run, by its path; label of the setting that is best in it",
    "changes[].{before,after}": "the setting's value, and `peek`'s",
    "changes[].{gain,low,high}": "how much better: part of before, or points of shares; range over resamples",
    "changes[].says": "gain, loss, same",
    "log.files[]": "what was read",
    "log.formats.*.{lines,requests,without_prompt}": "of each format, by its name",
    "log.{requests,prompt_tokens}": "what was understood",
    "log.tokens_are_estimated": "whether four bytes were taken for a token",
    "log.block_tokens": "tokens of a block by which prompts are compared",
    "log.{span_s,rate_rps}": "seconds from first to last request; requests a second",
    "log.shared": "part of the prompt tokens that had come before",
    "log.{sessions,turns}": "conversations, and requests that belong to them",
    "log.answers.{told,allowed,unknown}": "requests by what is known of the answer's length",
    "log.cached_says_the_log": "part of the prompt tokens that was cached, where the log tells",
    "log.{lines_of_the_server,broken}": "lines that are no requests; lines left out",
    "log.not_understood.{lines,line,first}": "lines no format knows; number and text of the first",
    "summary[]": "the log and the simulated part of it in words, a line each",
    "notes[]": "what to know of the log, and what to do",
    "engine": "vLLM or SGLang",
    "{hardware,model}": "cards and model, by name",
    "assumed": "what of the machine nobody told",
    "rate_scale": "how many times as fast as recorded",
    "{arena_tokens,max_running}": "KV cache in tokens, and seats, as simulated",
    "{simulated,draws}": "requests, and resamples",
    "runs[]": "as above, without those of traces, sessions, machines; on the recorded arrivals",
    "runs[].setting": "what turns the policy on",
    "runs[].spread.*": "least and greatest value over recorded and resampled arrivals, by the figure's path",
    "{version,backend}": "of `peek`",
}
"""Fields of `peek check --json`."""

BENCHED = {
    "{peek,backend}": "version and build",
    "{prompts,policy}": "file or generated ones; label",
    "{waiting,waiting_symbols}": "requests that wait; tokens of their prompts",
    "cached_prompts": "prompts that were cached before",
    "rounds": "of each measurement",
    "rows[].what": "what was measured",
    "rows[].{best_s,median_s}": "seconds of processor time",
    "rows[].ratio": "best over the time of matching each request once, or null",
}
"""Fields of `peek bench --json`."""

FOUND = {
    "{peek,backend,location}": "version, build and folder",
    "{python,executable}": "which interpreter",
    "clashes[]": "distributions that exclude this one",
    "packages.*": "version, or null",
    "policies.*": "those of other distributions: name and place",
    "adapters.*": "whether the engine finds a plug-in of `peek`",
    "active": "the policy asked for, stock, or null for a mistake",
    "here_only": "whether the policy's module is in the working directory only, where engines do not look",
    "mode": "on, shadow, off",
    "options.*": "every option in force",
    "misspelled.*": "a variable that nothing reads: what may be meant",
    "error": "the mistake, or null",
}
"""Fields of `peek doctor --json`."""

COLUMNS = {
    "request_id": "place in the workload, or the trace's name for it",
    "tenant": "as the trace names it",
    "arrival_s": "seconds from the beginning, as the next three",
    "admitted_s": "first admission",
    "first_token_s": "first token",
    "finished_s": "last token",
    "prompt_tokens": "tokens of the prompt",
    "cached_tokens": "of them, cached at first admission",
    "output_tokens": "tokens of the answer",
    "policy": "label of the run",
    "seed": "of the run",
    "session": "conversation, where the workload has any",
}
"""What each column of `--per-request` is; the names themselves are those of the code."""

FIELDS = {"run-fields": RUN, "check-fields": CHECKED, "bench-fields": BENCHED, "doctor-fields": FOUND}
"""Of each list what is told of the fields of an object."""

_SHOWN = ("policy", "lanes", "dynamic_share", "eviction")
"""What is told of each label."""


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
    """Rows for the fields of a dataclass that have defaults, as its docstring tells them."""
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
    """A section for each command; an option that an earlier command has, too, is only named."""
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
    """Lines of a list, the default in brackets; options of which the same is said share one."""
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
