"""The tables of docs/options.md, made from the code: `python docs/tables.py` writes them into the page.

They stand between comments, `<!-- NAME -->` and `<!-- /NAME -->`; tests/test_options_page.py compares.
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
from peek.policy.default import PeekOptions

PAGE = Path(__file__).resolve().parent / "options.md"

VARIABLES = {
    "PEEK_POLICY": "the policy, by its label",
    "PEEK_CONFIG": "all options, as JSON, or `@` and the name of a file that holds them",
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
    "PEEK_EXPECT_BACKEND": "when testing: `compiled` or `interpreted`, the run ends if it is the other",
}
"""What each variable is for; the names themselves are those of the code."""

_SHOWN = ("policy", "lanes", "dynamic_share", "eviction")
"""What is told of each label."""


def tables() -> dict[str, str]:
    """Name of the table -> its lines."""
    return {
        "policy-options": _table(("option", "default", ""), _options(PeekOptions)),
        "lane-options": _table(("option", "default", ""), _lane_options()),
        "adapter-options": _table(("option", "default", ""), _options(Settings)),
        "variables": _table(("variable", ""), ((f"`{name}`", VARIABLES[name]) for name in _variables())),
        "labels": _table(("label", *_SHOWN), _labels()),
        "commands": "\n\n".join(_commands()),
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
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        arguments = [_metavar(each) for each in command.params if each.param_type_name == "argument"]
        rows = [_option(each) for each in command.params if each.param_type_name == "option"]
        heading = f"### peek {' '.join([name, *arguments])}\n\n{command.help.splitlines()[0]}\n\n"
        yield heading + _table(("option", "default", ""), rows)


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
        " ".join(option.help.split()).rstrip("."),
    )


def _json(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
