"""Chooses the build of `peek` that a process imports.

Python takes a package from the first folder on its path that has it.  So if the checkout is on the path for
`bench`, its `peek` is on the path, too.  `expose` makes a folder with one build of `peek` and nothing else; a
process that is started there with `-m` finds that build first.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import peek

ROOT = Path(__file__).resolve().parents[1]


def require_compiled() -> None:
    """Raise `SystemExit` if this process's `peek` is not compiled, as its times would tell nothing."""
    if peek.backend() != "compiled":
        raise SystemExit(f"{peek.__file__} is {peek.backend()}, not compiled: run `make build`")


def expose(build: Path, folder: Path) -> Path:
    """Link the compiled `peek` of the checkout `build` into a new `folder`; return the folder."""
    libraries = list(build.glob("peek__mypyc*"))
    if not libraries:
        raise SystemExit(f"{build} holds no compiled build: run `make build` there")
    (folder / "peek").mkdir(parents=True)
    for path in libraries:
        (folder / path.name).symlink_to(path.resolve())
    for path in (build / "peek").iterdir():
        (folder / "peek" / path.name).symlink_to(path.resolve())
    if not any((build / "peek").glob("timing*")):  # an older checkout is measured by this one's timing
        (folder / "peek" / "timing.py").symlink_to(ROOT / "peek" / "timing.py")
    return folder


PYTHON = (sys.executable, "-S")
"""This interpreter without `.pth` files, so that no editable install supplies what a build lacks."""


def environment() -> dict[str, str]:
    """Return variables with which `PYTHON` finds this checkout's `bench` and this interpreter's packages."""
    packages = {sysconfig.get_path("purelib"): None, sysconfig.get_path("platlib"): None}
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}
