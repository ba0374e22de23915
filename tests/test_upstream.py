"""The patches of docs/upstream fit the released sources, and what they make of them is Python.

The sources are those of an engine's environment beside the checkout (`make test-vllm`, `make test-sglang`),
or an archive in the folder that UPSTREAM_SOURCES names.  With UPSTREAM_FETCH=1 pip downloads what is missing:
40 MB for SGLang, 340 MB for vLLM.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UPSTREAM = ROOT / "docs" / "upstream"
PATCHES = sorted(UPSTREAM.glob("*.patch"))
FETCHES = bool(os.environ.get("UPSTREAM_FETCH"))
MOST_WORDS = 700

sys.path.insert(0, str(UPSTREAM))
try:
    import overlay
finally:
    sys.path.remove(str(UPSTREAM))


def release_of(patch: Path) -> tuple[str, str]:
    """Engine and version, by a patch's name."""
    engine, version, _ = patch.name.split("-", 2)
    return engine, version


def environments(engine: str, version: str) -> list[Path]:
    """Where packages are installed in an engine's environment beside the checkout."""
    return sorted(ROOT.glob(f".venv-{engine}-{version}/lib/python3.*/site-packages"))


def archive(engine: str, version: str, folder: Path) -> Path | None:
    """A wheel or source distribution of a release in `folder`."""
    found = [*folder.glob(f"{engine}-{version}-*.whl"), *folder.glob(f"{engine}-{version}.tar.gz")]
    return found[0] if found else None


def command(engine: str, version: str, folder: str) -> list[str]:
    pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    # SGLang has a wheel for each Python, and only its Python files are looked at.
    return [*pip, "--python-version", "3.11", "--dest", folder, f"{engine}=={version}"]


def unpack(source: Path, names: list[str], folder: Path) -> None:
    """These files of an archive that has them, at the same paths in `folder`."""
    contents: dict[str, bytes] = {}
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            there = set(wheel.namelist())
            contents = {name: wheel.read(name) for name in names if name in there}
    else:
        with tarfile.open(source) as tar:
            for member in tar:
                name = next((name for name in names if member.name.endswith(f"/{name}")), None)
                file = tar.extractfile(member) if name else None
                if name is not None and file is not None:
                    contents[name] = file.read()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(params=PATCHES, ids=lambda patch: patch.stem)
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A patch, and a folder of its own with the released files that it touches."""
    patch: Path = request.param
    engine, version = release_of(patch)
    names = overlay.touched(patch)
    where = Path(os.environ.get("UPSTREAM_SOURCES") or tmp_path / "fetched")
    folder = tmp_path / "sources"
    source = archive(engine, version, where)
    installed = environments(engine, version)
    if source is None and not installed and FETCHES:
        subprocess.run([sys.executable, *command(engine, version, str(where))], check=True, timeout=900)
        source = archive(engine, version, where)
    if installed:
        for name in names:
            if (installed[0] / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((installed[0] / name).read_bytes())
    elif source is not None:
        unpack(source, names, folder)
    else:
        shown = " ".join(["python", *command(engine, version, "FOLDER")])
        pytest.skip(f"no sources of {engine} {version}: `{shown}`, then UPSTREAM_SOURCES=FOLDER")
    return patch, folder


def test_a_patch_fits_the_release_and_leaves_python(sources: tuple[Path, Path]) -> None:
    patch, folder = sources
    assert overlay.apply(patch, folder, "--check") == ""
    assert overlay.apply(patch, folder) == ""
    for name in overlay.touched(patch):
        compile((folder / name).read_text(encoding="utf-8"), name, "exec")
    assert overlay.apply(patch, folder, "--check") != "", "a patch that fits twice changes nothing"


def test_a_patch_changes_what_its_page_says() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in UPSTREAM.glob("*.md")}
    for patch in PATCHES:
        lines = patch.read_text(encoding="utf-8").splitlines()
        added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        files = len(overlay.touched(patch))
        page = pages[re.sub(r"-[\d.]+-", "-", patch.stem)]
        assert f"`{patch.name}`: {files} files, +{added} -{removed}" in page
        assert f"({re.sub(r'-[0-9.]+-', '-', patch.stem)}.md)" in pages["README"]


def test_pages_are_short() -> None:
    for page in UPSTREAM.glob("*.md"):
        words = len(page.read_text(encoding="utf-8").split())
        assert words <= MOST_WORDS, f"{page.name} has {words} words"


def test_a_patch_that_does_not_fit_says_why(tmp_path: Path) -> None:
    patch = PATCHES[0]
    for name in overlay.touched(patch):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text("another = 1\n")
    with pytest.raises(RuntimeError, match=f"{re.escape(patch.name)} does not apply to .*patch failed"):
        overlay.lay([patch], tmp_path / "site", tmp_path / "patched")
    for name in overlay.touched(patch):
        assert (tmp_path / "site" / name).read_text() == "another = 1\n"
