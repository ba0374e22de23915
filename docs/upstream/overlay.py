# ruff: noqa: T201
"""A patched copy of an installed engine, beside it: `python docs/upstream/overlay.py PATCH... FOLDER`.

Run by the Python of the engine's environment.  FOLDER gets the engine's package with the patches applied: the
files that they touch are copies, all others links, so that compiled parts are found.  With FOLDER first on
PYTHONPATH that Python then runs the patched engine.  The installed one stays as it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
PREFIX = {"sglang": "python/", "vllm": ""}
"""Where an engine's repository has its package; a patch is made for the repository."""


def package_of(patch: Path) -> str:
    """The engine that a patch is for, by its file's name."""
    return patch.name.partition("-")[0]


def touched(patch: Path) -> list[str]:
    """The files that a patch changes or adds, as paths from the folder that has the package."""
    names = re.findall(r"(?m)^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"))
    return [name.removeprefix(PREFIX[package_of(patch)]) for name in names]


def apply(patch: Path, folder: Path, *options: str) -> str:
    """`git apply` in the folder that has the package; what it complains of, empty if nothing."""
    strip = 1 + PREFIX[package_of(patch)].count("/")
    command = ["git", "apply", f"-p{strip}", *options, str(patch.resolve())]
    environ = {
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "PATH": "/usr/bin:/bin:/usr/local/bin",
    }
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.stderr + done.stdout if done.returncode else ""


def lay(patches: list[Path], site: Path, folder: Path) -> None:
    """Put the patched package of `site` into `folder`.

    Raises `RuntimeError` with what `git apply` says if a patch does not fit.
    """
    files = {name for patch in patches for name in touched(patch)}
    _mirror(site, folder, files, package_of(patches[0]))
    for patch in patches:
        complaint = apply(patch, folder)
        if complaint:
            raise RuntimeError(f"{patch.name} does not apply to {site}: {complaint}")


def _mirror(site: Path, folder: Path, files: set[str], name: str) -> None:
    """`name` of `site` in `folder`: what is on the way to one of `files` is real, all else a link."""
    source, target = site / name, folder / name
    if name in files:
        if source.exists():
            shutil.copyfile(source, target)
    elif any(file.startswith(f"{name}/") for file in files):
        target.mkdir(parents=True)
        inside = {path.name for path in source.iterdir()} if source.exists() else set()
        rest = {file[len(name) + 1 :].partition("/")[0] for file in files if file.startswith(f"{name}/")}
        for child in sorted((inside | rest) - {"__pycache__"}):
            _mirror(site, folder, files, f"{name}/{child}")
    else:
        target.symlink_to(source, target_is_directory=source.is_dir())


def installed(package: str) -> Path | None:
    """The folder that has the package installed here, None without one."""
    spec = find_spec(package)
    found = None if spec is None or spec.origin is None else Path(spec.origin)
    return None if found is None or found.name != "__init__.py" else found.parent.parent


def main(arguments: list[str]) -> None:
    *names, folder = arguments
    patches = [Path(name) for name in names]
    site = installed(package_of(patches[0]))
    if site is None:
        sys.exit(f"{package_of(patches[0])} is not installed in {sys.prefix}")
    lay(patches, site, Path(folder))
    print(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
