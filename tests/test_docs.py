"""The code of the readme and of the documentation runs as it stands there (`support.pages` says how)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.pages import (
    CORE,
    ENGINES,
    ROOT,
    RUN,
    SHOWN,
    Step,
    commands_of,
    pages,
    run_console,
    run_steps,
    steps_of,
)

from peek import AdmissionPolicy, Cycle, PendingRequest
from peek.testing import check_policy

STEPS = {str(page.relative_to(ROOT)): steps_of(page) for page in pages()}
MINE = {name: [step for step in steps if step.suite == CORE] for name, steps in STEPS.items()}
RUN_HERE = [name for name, steps in MINE.items() if any(step.kind in RUN for step in steps)]
TESTING = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_steps(MINE[name], run_console) > 0


def test_every_block_is_run_by_somebody_or_says_why_not() -> None:
    every = [step for steps in STEPS.values() for step in steps]
    assert {step.kind for step in every} <= {*RUN, *SHOWN, "before", "after"}, "a language that nobody runs"
    assert {step.suite for step in every} <= {CORE, *ENGINES, ""}
    idle = [step for step in every if step.kind in RUN and not step.suite]
    assert all(step.why_not for step in idle)
    for step in idle:
        tests = re.findall(r"tests/\S+\.py", step.why_not)
        assert tests or step.where.startswith("docs/gpu.md:"), f"{step.where}: nobody runs it"
        assert all((ROOT / test).is_file() for test in tests), step.where
    fences = sum(
        len(re.findall(r"^```+[^\s`]", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in pages()
    )
    assert sum(step.kind not in ("before", "after") for step in every) == fences, "a block that is not seen"


def test_a_block_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, words in [
        ("$ python -c 'raise SystemExit(3)'\n", "page:3: python"),
        ("$ rm -r /\n", "rm is not run here"),
        ("$ echo one\ntwo\n", "shown:\ntwo"),
        ("$ make no-such-target\n", "no-such-target"),
        ("$ pip install 'peek-kv[plto]'\n", "plto"),
    ]:
        with pytest.raises(AssertionError, match=re.escape(words)):
            run_console(Step("page:3", CORE, "console", text))
    run_console(
        Step(
            "page:3", CORE, "console", "$ echo one \\\n    two > file\n$ cat file\n...two\n$ pip install .\n"
        )
    )
    with pytest.raises(ZeroDivisionError):
        run_steps([Step("page:3", CORE, "python", "def test_it():\n    1 / 0\n")], run_console)
    assert list(commands_of("$ a \\\n  b\nshown\n$ c\n")) == [("a \\\n  b\n", "shown\n"), ("c\n", "")]


def test_a_property_test_of_ones_own_policy_is_under_ten_lines() -> None:
    first = next(step.text for step in MINE["docs/testing.md"] if step.kind == "python")
    code = [line for line in first.splitlines() if line.strip()]
    assert len(code) < 10
    assert any("check_policy" in line for line in code)


class ByName(AdmissionPolicy):
    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return sorted(queue, key=lambda request: (-request.cached_len, request.request_id))


def test_the_message_is_the_one_the_page_shows() -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(ByName, examples=300)
    assert f"```text\nAssertionError: {caught.value}\n```" in TESTING
