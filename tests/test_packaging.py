"""What is handed to users: the source distribution, its metadata, and the command where names clash."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import tarfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
from support.pages import CORE, pages, steps_of

import peek
from peek.__main__ import NEEDED
from peek.cli.conflicts import advice, others, why_broken
from peek.cli.main import main

ROOT = Path(__file__).resolve().parent.parent


def files_of_the_repository() -> list[str]:
    """Of a checkout; also what is new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs git")
    if found.returncode != 0:
        pytest.skip("not a checkout")
    return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def copy_repository(target: Path) -> None:
    for name in files_of_the_repository():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target / name)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The source distribution made of a copy of the repository: path -> content."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    copy_repository(source)
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(made)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (archive,) = made.iterdir()
    with tarfile.open(archive) as tar:
        return {
            member.name.partition("/")[2]: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }


def test_the_sdist_holds_the_repository(sdist: dict[str, bytes]) -> None:
    made_by_setuptools = {name for name in sdist if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert set(sdist) - made_by_setuptools == set(files_of_the_repository())


def test_an_editable_install_is_found_from_the_folder_above_the_checkout(tmp_path: Path) -> None:
    """Where the checkout is called as the package is: Python finds that folder there, too."""
    checkout, site = tmp_path / "peek", tmp_path / "site"
    copy_repository(checkout)
    command = [sys.executable, "setup.py", "-q", "editable_wheel", "--dist-dir", str(tmp_path)]
    environment = {**os.environ, "PEEK_PURE": "1"}
    environment.pop("PYTHONPATH", None)  # it would be found first
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    look = f"import site; site.addsitedir({str(site)!r});"
    look += "from importlib.util import find_spec; print(find_spec('peek').origin)"
    for folder in (tmp_path, checkout, site):
        found = subprocess.run(
            [sys.executable, "-S", "-c", look],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == str(checkout / "peek" / "__init__.py")


def test_the_readme_of_an_index_links_to_no_file(sdist: dict[str, bytes]) -> None:
    shown = Parser().parsestr(sdist["PKG-INFO"].decode()).get_payload()
    assert isinstance(shown, str)
    assert re.findall(r"\]\((?!https?:)|src=.(?!https?:)", shown) == []
    source = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.sub(r"\]\([^)]*\)|\[|<img[^>]*>", "", source)
    assert words.split() == re.sub(r"\]\([^)]*\)|\[", "", shown).split(), "more than links has changed"


def test_only_what_compiled_tables_need_is_bounded_above(sdist: dict[str, bytes]) -> None:
    metadata = Parser().parsestr(sdist["PKG-INFO"].decode())
    needed = [text for text in metadata.get_all("Requires-Dist") or [] if 'extra == "dev"' not in text]
    assert len(needed) > 10
    assert [re.split(r"[<>=;\[]", text)[0] for text in needed if "<" in text] == ["librt"]
    assert metadata["Requires-Python"] == ">=3.10"


OTHER = "peek-python"


def install_another(folder: Path) -> None:
    """What pip leaves of a distribution with a package `peek`, as far as it can be asked about."""
    info = folder / "peek_python-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {OTHER}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("peek\n")


def test_doctor_names_a_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert others() == []
    install_another(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert others() == [OTHER]
    assert main(["doctor"]) == 0
    assert f"{OTHER}  " in (shown := capsys.readouterr().out)
    assert advice([OTHER]) in shown


def test_a_package_without_its_own_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip uninstall peek-python` leaves it, whose `__init__.py` was ours."""
    assert why_broken() == ""
    monkeypatch.setitem(sys.modules, "peek", ModuleType("peek"))
    assert why_broken() == "files of peek-kv are missing: `pip install --force-reinstall peek-kv`"


@pytest.mark.parametrize("is_known", [True, False])
def test_the_command_survives_an_overwritten_package(tmp_path: Path, is_known: bool) -> None:
    package = Path(peek.__file__).parent
    shutil.copytree(package, tmp_path / "peek", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "peek" / "__init__.py").write_text("from .peek import *\n")
    (tmp_path / "peek" / "peek.py").write_text("__version__ = '1.0'\n")
    if is_known:
        install_another(tmp_path)
    told = subprocess.run(
        [sys.executable, "-m", "peek", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    if is_known:
        assert told.stderr == f"peek: {OTHER} {advice([OTHER])}\n"
    else:
        assert "ImportError" in told.stderr


def test_bytecode_without_sources_is_no_compiled_build(tmp_path: Path) -> None:
    """As images are slimmed and programs are frozen."""
    package = tmp_path / "peek"
    shutil.copytree(Path(peek.__file__).parent, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    assert compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    code = "import peek; tree = peek.PendingTree(); tree.insert('a', [7, 8]); "
    code += "print(peek.backend(), tree.pending_count([7]), peek.trie.keys.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    assert shown.stdout.decode().split() == ["interpreted", "1", str(package / "trie" / "keys.pyc")]


WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich'])); "


def test_the_library_needs_nothing_of_the_command() -> None:
    """The extra `cli` brings typer and rich; without them all but the command can be imported."""
    modules = (
        "peek, peek.offline, peek.planner, peek.fleet, peek.adapters, peek.traffic, peek.simulation.answer"
    )
    subprocess.run([sys.executable, "-c", f"{WITHOUT}import {modules}"], cwd=ROOT, check=True)


def test_the_library_reads_metadata_only_when_asked_for_a_policy_by_name() -> None:
    code = "import numpy, sys; before = set(sys.modules); import peek; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "peek.policy.registry" in done.stdout.split()
    assert {"importlib.metadata", "email", "zipfile", "multiprocessing"}.isdisjoint(done.stdout.split())


def test_the_command_without_its_extra_says_so_in_one_line() -> None:
    code = f"{WITHOUT}from peek.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "peek: the command needs typer and rich: pip install 'peek-kv[cli]'\n"


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    """As a signal comes: raised between two steps of an import."""
    interrupted = (
        "import sys; from peek.__main__ import main; sys.modules['typer'] = Late(); sys.exit(main())"
    )
    code = f"class Late:\n def __getattr__(self, name): raise KeyboardInterrupt\n{interrupted}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "peek: interrupted\n")


def test_the_extra_brings_what_the_command_imports(sdist: dict[str, bytes]) -> None:
    metadata = Parser().parsestr(sdist["PKG-INFO"].decode())
    needed = metadata.get_all("Requires-Dist") or []
    assert {re.split(r"[<>=;]", text)[0] for text in needed if 'extra == "cli"' in text} == set(NEEDED)
    bare = {re.split(r"[<>=;]", text)[0] for text in needed if "extra ==" not in text}
    assert bare == {"numpy", "sortedcontainers", "librt", "mypy-extensions"}


def test_a_wheel_is_tried_with_what_the_pages_import(sdist: dict[str, bytes]) -> None:
    """By cibuildwheel as by `make wheels`: their code is run on it."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r"^test-(?:extras|requires) = (.*)$", settings, re.MULTILINE)
    extras, requires = (re.findall(r'"(.+?)"', text) for text in found)
    by_hand = (ROOT / "tests" / "wheels" / "make_wheels.sh").read_text(encoding="utf-8")
    assert f'[{",".join(extras)}]" {" ".join(requires)}\n' in by_hand
    needed = Parser().parsestr(sdist["PKG-INFO"].decode()).get_all("Requires-Dist") or []
    of_extras = [text for text in needed if text.endswith(tuple(f'"{extra}"' for extra in extras))]
    there = {"numpy", *requires, *(re.split(r"[<>=;]", text)[0] for text in of_extras)}
    code = "\n".join(step.text for page in pages() for step in steps_of(page) if step.suite == CORE)
    known = packages_distributions()
    for name in re.findall(r"(?:^|[\"'])(?:from|import) (\w+)", code, re.MULTILINE):
        assert name == "peek" or name not in known or known[name][0].replace("_", "-") in there, name
