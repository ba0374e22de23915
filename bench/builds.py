"""Which `peek` a process gets.

Python takes a package from the first folder on its path that has it, so wherever the checkout is on the
path for the sake of `bench`, its `peek` comes with it.  `expose` makes a folder with one build of `peek` and
nothing else: a process that is started there with `-m` finds that build first.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import peek

ROOT = Path(__file__).resolve().parents[1]


def require_compiled() -> None:
    """End the process, with the reason, if its `peek` is not compiled: figures would be another program's."""
    if peek.backend() != "compiled":
        raise SystemExit(f"{peek.__file__} is {peek.backend()}, not compiled: run `make build`")


def expose(build: Path, folder: Path) -> Path:
    """Link the compiled `peek` of the checkout `build` into a new `folder`; returns the folder."""
    libraries = list(build.glob("peek__mypyc*"))
    if not libraries:
        raise SystemExit(f"{build} holds no compiled build: run `make build` there")
    (folder / "peek").mkdir(parents=True)
    for path in libraries:
        (folder / path.name).symlink_to(path.resolve())
    for path in (build / "peek").iterdir():
        (folder / "peek" / path.name).symlink_to(path.resolve())
    if not (build / "peek" / "timing").exists():  # an older checkout: it is measured, not what measures it
        (folder / "peek" / "timing").symlink_to(ROOT / "peek" / "timing")
    return folder


PYTHON = (sys.executable, "-S")
"""This interpreter, reading no `.pth` files: an editable install would answer for what a build lacks."""


def environment() -> dict[str, str]:
    """For `PYTHON`: `bench` from this checkout, everything else from this interpreter's packages."""
    packages = {sysconfig.get_path("purelib"): None, sysconfig.get_path("platlib"): None}
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}
