"""The public types are of use to a user who checks own code strictly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import typed_user

import peek
from peek.testing import check_policy

ROOT = Path(peek.__file__).resolve().parent.parent


def test_typed_code_of_a_user_passes_mypy(tmp_path: Path) -> None:
    """Of `peek` it sees what is installed, source and stub."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", typed_user.__file__],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_as_well() -> None:
    assert typed_user.play() == (0.0, 0.0)
    check_policy(typed_user.Weighed, examples=20)
