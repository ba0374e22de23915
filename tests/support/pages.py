"""The code blocks of the readme and of the documentation, run as a reader would run them.

The Python blocks of a page run one after the other in one namespace; then the functions `test_...` that a
block defines are called.  In a console block the lines that begin with `$ ` are commands.  A shell runs them
in an empty folder.  The lines below a command are its output, in which `...` stands for anything.  Comments,
which readers of the site do not see, say what else a block needs:

    <!-- before ... -->     Python that runs first and makes what a reader would already have
    <!-- after ... -->      Python that runs next and checks the result; `block` is the text of the last block
    <!-- not run: why -->   the next block is not run
    <!-- vllm -->           the next block is run by that engine's test suite; likewise
    <!-- vllm before ... -->
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = "core"
ENGINES = ("vllm", "sglang")
RUN = ("python", "console")
SHOWN = ("text", "json", "yaml", "toml", "{toctree}", "{eval-rst}", "{include}")
"""What is no code, or is Sphinx's to run."""

PROGRAMS = ("cat", "echo", "make", "peek", "pip", "python")
"""What a command may begin with: nothing else is let loose on a machine."""

_PIECE = re.compile(
    r"^(?P<fence>```+)(?P<language>[^\s`]*)[^\n]*\n(?P<text>.*?)^(?P=fence)$|^<!-- (?P<note>.*?) ?-->$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """One thing to run.

    Attributes:
        where: page and line, for messages.
        suite: who runs it: `CORE`, an engine, or "" for nobody.
        kind: the language of a block; "before" and "after" for a comment.
        text: the code.
        why_not: why nobody runs it.
    """

    where: str
    suite: str
    kind: str
    text: str
    why_not: str = ""


def pages() -> list[Path]:
    """The readme, the contributing guide and all pages of the site."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def steps_of(page: Path) -> list[Step]:
    """What of a page is to be run, by somebody, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    steps: list[Step] = []
    suite, why_not = CORE, ""
    for match in _PIECE.finditer(text):
        where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        if match["language"] is None:
            words, _, code = match["note"].partition("\n")
            who, _, kind = words.rpartition(" ")
            if kind in ("before", "after"):
                steps.append(Step(where, who or CORE, kind, code))
            elif words in ENGINES:
                suite = words
            elif words.startswith("not run: "):
                suite, why_not = "", words.removeprefix("not run: ")
        else:
            steps.append(Step(where, suite, match["language"], match["text"], why_not))
            suite, why_not = CORE, ""
    return steps


def run_steps(steps: list[Step], run_console: Callable[[Step], None]) -> int:
    """Run what is Python here and the console blocks by `run_console`; how many blocks that were.

    The working directory is the reader's.
    """
    names: dict[str, Any] = {"__name__": "a_readers_module"}
    blocks = 0
    for step in steps:
        if step.kind == "console":
            run_console(step)
        elif step.kind in ("python", "before", "after"):
            _run_python(step, names)
        if step.kind in RUN:
            names["block"] = step.text
            blocks += 1
    return blocks


def _run_python(step: Step, names: dict[str, Any]) -> None:
    tree = ast.parse(step.text, step.where)
    exec(compile(tree, step.where, "exec", dont_inherit=True), names)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            names[node.name]()


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, lines that are continued joined, and the output shown below it."""
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = piece.splitlines(keepends=True)
        length = 1
        while lines[length - 1].endswith("\\\n"):
            length += 1
        yield "".join(lines[:length]), "".join(lines[length:])


@dataclass(frozen=True)
class Launch:
    """An engine's server as a page starts it.

    Attributes:
        where: page and line of the first that does.
        environ: what is set before the command.
        program: `vllm serve`, or `python -m` and a module.
        flags: the others, without the model.
        files: modules of the page's that it names, by file name.
    """

    where: str
    environ: dict[str, str]
    program: str
    flags: list[str]
    files: dict[str, str]


def launches(engine: str) -> list[Launch]:
    """How the pages start this engine's server, each way once."""
    found: dict[str, Launch] = {}
    for page in pages():
        steps = steps_of(page)
        module_text = next((step.text for step in steps if step.kind == "python"), "")
        for step in steps:
            for command, _ in commands_of(step.text) if step.suite == engine else ():
                words = shlex.split(command.replace("\\\n", " "))
                count = next(i for i, word in enumerate(words) if "=" not in word)
                environ = dict(word.split("=", 1) for word in words[:count])
                dots = words.index("...")  # the model
                program = [word for word in words[count:dots] if word not in ("--model", "--model-path")]
                flags = words[dots + 1 :]
                own, colon, _ = environ["PEEK_POLICY"].partition(":")
                files = {f"{own}.py": module_text} if colon else {}
                found.setdefault(
                    " ".join(words), Launch(step.where, environ, " ".join(program), flags, files)
                )
    return list(found.values())


def engine_pages(engine: str) -> list[str]:
    """The pages that have Python of this engine's, as `page_run` takes them."""
    ours = {str(page.relative_to(ROOT)): steps_of(page) for page in pages()}
    return [
        name
        for name, steps in ours.items()
        if any((step.suite, step.kind) == (engine, "python") for step in steps)
    ]


def run_engine_page(engine: str, page: str, **environ: str) -> None:
    """The Python of a page that belongs to an engine, in a process of its own, in the working directory."""
    path = [ROOT / "tests", ROOT / "tests" / engine, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "support.page_run", engine, page],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1", **environ},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


def run_console(step: Step) -> None:
    """Each command in a shell, in the working directory.

    Of `make` and `pip` it is only checked that there is what they are asked for.
    """
    beside_python = str(Path(sys.executable).parent)
    environ = {**os.environ, "PATH": os.pathsep.join([beside_python, os.environ["PATH"]]), "COLUMNS": "100"}
    for command, shown in commands_of(step.text):
        program = next(word for word in shlex.split(command, comments=True) if not re.match(r"\w+=", word))
        assert program in PROGRAMS, f"{step.where}: {program} is not run here"
        if program == "pip":
            _check_pip(command)
            continue
        if program == "make":
            command = f"make -n -C {shlex.quote(str(ROOT))} {command.removeprefix('make ')}"
        done = subprocess.run(
            ["bash", "-c", command],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step.where}: {command}\n{done.stdout}"
        rules = ELLIPSIS | NORMALIZE_WHITESPACE
        assert not shown or OutputChecker().check_output(shown, done.stdout, rules), (
            f"{step.where}: {command}\nshown:\n{shown}\nis:\n{done.stdout}"
        )


def _check_pip(command: str) -> None:
    """The extras that are asked for are there."""
    for word in shlex.split(command, comments=True)[2:]:
        asked = re.match(r"(peek-kv|\.)\[(.*?)\]", word)
        if asked:
            text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
            assert set(asked[2].split(",")) <= set(re.findall(r"^(\w+) = ", section, re.MULTILINE)), command
