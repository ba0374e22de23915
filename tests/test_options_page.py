"""docs/options.md has every option, variable, label and command of the code, and nothing else.

docs/reference/output.md has every field that the commands print with `--json`, and every column.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.programs import loaded

from peek import PRESETS, LaneOptions
from peek.adapters.activation import KNOWN_VARIABLES, OTHER_VARIABLES, Settings
from peek.cli.main import main
from peek.policy.default import PeekOptions

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
OUTPUT = (ROOT / "docs" / "reference" / "output.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return loaded(ROOT / "docs" / "tables.py")


def test_the_pages_are_what_the_code_says(tables: ModuleType) -> None:
    assert tables.written(PAGE) == PAGE, "run `make tables`"
    assert tables.written(OUTPUT) == OUTPUT, "run `make tables`"
    assert tables.written(PAGE.replace("| `PEEK_PURE` |", "| `PEEK_PUER` |")) == PAGE


def test_nothing_is_missing(tables: ModuleType) -> None:
    for kind in (PeekOptions, LaneOptions, Settings):
        for field in fields(kind):
            assert field.name == "config" or f"\n| `{field.name}` |" in PAGE
    for name in (*KNOWN_VARIABLES, *OTHER_VARIABLES, *PRESETS):
        assert f"\n| `{name}` |" in PAGE
    assert set(tables.VARIABLES) == {*KNOWN_VARIABLES, *OTHER_VARIABLES}


def test_every_variable_that_is_read_is_known() -> None:
    sources = [*ROOT.glob("peek/**/*.py"), ROOT / "setup.py", ROOT / "tests" / "conftest.py"]
    quoted = {
        name for path in sources for name in re.findall(r'"(PEEK_[A-Z_]*[A-Z])"', path.read_text("utf-8"))
    }
    assert quoted == {*KNOWN_VARIABLES, *OTHER_VARIABLES}


# -- output -----------------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The path of each field, as the page writes it; an empty object has a field of any name."""
    if isinstance(value, dict):
        for name, each in value.items() or [("*", None)]:
            yield from leaves(each, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from leaves(each, f"{path}[]")
    else:
        yield f"{path}[]" if isinstance(value, list) else path


def patterns(name: str) -> list[re.Pattern[str]]:
    """What a name of the page stands for: `a.{b,c}` for two fields, `*` for any names."""
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return [re.compile(re.escape("".join(each)).replace(r"\*", ".+")) for each in product(*choices)]


def check_fields(told: dict[str, str], printed: set[str]) -> None:
    """Each field is told, and each that is told is printed."""
    wanted = [(name, pattern) for name in told for pattern in patterns(name)]
    assert sorted(path for path in printed if not any(each.fullmatch(path) for _, each in wanted)) == []
    missing = [name for name, each in wanted if not any(map(each.fullmatch, printed))]
    assert missing == [], "told, but not printed"


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in an empty folder with a trace and sessions; the fields of its JSON."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": 40 * i, "input_length": 1024, "output_length": 8, "hash_ids": [i % 3, 9 + i]}
        for i in range(30)
    ]
    Path("trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turn = {"session": "a", "turn": 0, "tokens": [7] * 64, "output_length": 4, "gap_s": 0}
    Path("talks.jsonl").write_text(json.dumps(turn) + "\n")

    def run(*arguments: str) -> set[str]:
        assert main([*arguments, "--json"]) == 0
        return set(leaves(json.loads(capsys.readouterr().out)))

    return run


def test_every_field_of_a_run_is_told(tables: ModuleType, printed: Any) -> None:
    found: set[str] = set()
    for arguments in (
        ["--trace", "trace.jsonl"],
        ["--sessions", "talks.jsonl"],
        ["--trace", "trace.jsonl", "--replicas", "2", "--router", "peek", "--cache", "blocks"],
    ):
        found |= printed("simulate", "--policy", "peek", *arguments)
    check_fields({f"runs[].{name}": text for name, text in tables.RUN.items()}, found)


def test_every_field_of_a_check_is_told(tables: ModuleType, printed: Any) -> None:
    fields_of_it = printed("check", str(ROOT / "tests" / "logs" / "vllm-0.32.0-debug.log"), "--draws", "1")
    own = {path for path in fields_of_it if re.match(r"runs\[\]\.(?!setting|spread)", path) is None}
    told = {name: text for name, text in tables.CHECKED.items() if name != "runs[]"}
    check_fields(told, own)
    of_a_run = {path.removeprefix("runs[].") for path in fields_of_it - own}
    known = [each for name in tables.RUN for each in patterns(name)]
    assert all(any(each.fullmatch(path) for each in known) for path in of_a_run)


def test_every_field_of_the_other_commands_is_told(
    tables: ModuleType, printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_fields(tables.BENCHED, printed("bench", "--waiting", "20", "--rounds", "2"))
    monkeypatch.setenv("PEEK_POLICY", "peek")
    monkeypatch.setenv("PEEK_POLCY", "peek")
    check_fields(tables.FOUND, printed("doctor"))


def test_every_column_is_told(tables: ModuleType, printed: Any) -> None:
    printed("simulate", "--trace", "trace.jsonl", "--policy", "peek", "--per-request", "each.csv")
    with Path("each.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == list(tables.COLUMNS)


def test_a_field_that_is_not_told_is_named(tables: ModuleType) -> None:
    with pytest.raises(AssertionError, match="job_ms"):
        check_fields({"a.{b,c}": ""}, {"a.b", "a.c", "job_ms"})
    with pytest.raises(AssertionError, match="told, but not printed"):
        check_fields({"a.{b,c}": ""}, {"a.b"})
