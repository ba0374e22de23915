"""The public types are of use to a user who checks own code strictly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import typed_user

import peek
from peek import testing
from peek.testing import check_policy

ROOT = Path(peek.__file__).resolve().parent.parent
NOT_THEIRS = r".*(?:mypy_extensions|peek\.offline\.shape).*"
MYPY = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent")
PUBLIC = (peek, peek.fleet, peek.offline, peek.planner, testing)


def questions() -> str:
    """A program that asks the checker for the type of each member of each public class."""
    lines = [f"import {module.__name__}" for module in PUBLIC]
    public = [(f"{each.__name__}.{name}", getattr(each, name)) for each in PUBLIC for name in each.__all__]
    lines += [f"reveal_type({path})" for path, _ in public]
    for path, kind in public:
        if isinstance(kind, type):
            lines += [f"def _(it: {path}) -> None:", "    it"]
            lines += [f"    reveal_type(it.{member})" for member in dir(kind) if member[0] != "_"]
    return "\n".join(lines)


def test_typed_code_of_a_user_passes_mypy(tmp_path: Path) -> None:
    """Of `peek` it sees what is installed, source and stub; nothing is of a type that users cannot make."""
    asked = tmp_path / "asked.py"
    asked.write_text(questions())
    done = subprocess.run(
        [*MYPY, typed_user.__file__, str(asked)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(NOT_THEIRS, done.stdout) == []


def test_it_runs_as_well() -> None:
    assert typed_user.play() == (0.0, 0.0)
    check_policy(typed_user.Weighed, examples=20)
