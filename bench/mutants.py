"""Tests the tests: runs those that reach a sample of small changes of `peek/`, to see whether they fail.

    python -m bench.mutants [--count 200] [--seed 42] [--only trie] [--afresh]        (`make mutants`)

First the core suite runs once on a copy of `peek/`.  It records which blocks (bodies of functions, branches
and loops) each test enters, in its own process and in processes that it starts.  Then each mutant is written
into a copy.  The tests that enter its block run up to the first failure; those that enter fewest blocks run
first.  A mutant is `caught` if a test fails or does not end, else it `survived`.  It is `unreached` if no
test enters its block.  `EQUIVALENT` names mutants that behave as the source does, with the reason.

The run is one process, interpreted, restartable: build/mutants.csv has a line for each mutant tried.  After a
change of `peek/` or `tests/`, use `--afresh`.  Adapters of engines are left out, as their tests need engines.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "mutants"
REACHED, RESULTS = BUILD / "reached.json", ROOT / "build" / "mutants.csv"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
PLUGIN = "bench.mutants_plugin"
ENGINES = ("vllm", "sglang", "ray_serve", "verl", "epp")
"""Folders that are left out, in `tests/` and, except for the files in `CORE`, in `peek/`."""

CORE = ("picker.py",)
"""Files in such folders of `peek/` that the core suite tests."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.Pow: ast.Mult,
}  # fmt: skip
BODIES = ("body", "orelse", "finalbody")
Block = tuple[str, int]
"""File, and line of the block's first statement; line 0 stands for code that runs at import."""


class Mutant(NamedTuple):
    """A change of `start:end`, in bytes of the file, to `text`; `name` has scope and change, but no line."""

    name: str
    block: Block
    line: int
    start: int
    end: int
    text: str


# -- what can be changed ------------------------------------------------------------------------------


def sources() -> list[Path]:
    paths = sorted((ROOT / "peek").rglob("*.py"))
    return [
        path for path in paths if path.name in CORE or not set(path.relative_to(ROOT).parts) & set(ENGINES)
    ]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file: of comparisons, arithmetic, logic, constants, `return` and statements."""
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = path.relative_to(ROOT).as_posix()

    def mutant(node: Any, text: str, scope: str, block: Block) -> Mutant:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(data[start:end].decode().split())
        return Mutant(f"{scope}: {before} -> {text}", block, node.lineno, start, end, text)

    def walk(node: ast.AST, scope: str, block: Block) -> Iterator[Mutant]:
        for text in changes(node):
            yield mutant(node, text, scope, block)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            inner, below = scope, block
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and field == "body":
                inner = f"{scope}.{node.name}".lstrip(".")
            if field in BODIES and isinstance(value, list) and value and not isinstance(node, ast.ClassDef):
                below = (name, 0) if isinstance(node, ast.Module) else (name, value[0].lineno)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not left_alone(child):
                    yield from walk(child, inner, below)

    yield from walk(ast.parse(data), "", (name, 0))


def left_alone(node: ast.AST) -> bool:
    """Whether a node has no mutants: assertions, errors, imports, docstrings, types, slots, f-strings."""
    if isinstance(node, ast.Assert | ast.Raise | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign):
        said = ast.unparse(node)
        return said.startswith(("__slots__", "__all__")) or (said[0].isupper() and "|" in said)
    return isinstance(node, ast.JoinedStr)


def changes(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may replace a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield unparsed(ast.Compare(node.left, [swapped(node.ops[0])], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield unparsed(ast.BinOp(node.left, swapped(node.op), node.right))
    elif isinstance(node, ast.BoolOp):
        yield unparsed(ast.BoolOp(swapped(node.op), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield unparsed(node.operand)
    elif isinstance(node, ast.Constant):
        yield from constants(node.value)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None"
    elif (
        isinstance(node, ast.AugAssign | ast.Delete)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and all(isinstance(it, ast.Attribute) for it in node.targets))
    ):
        yield "pass"
    elif isinstance(node, ast.Continue | ast.Break):
        yield "break" if isinstance(node, ast.Continue) else "continue"


def unparsed(node: Any) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def swapped(operator: ast.AST) -> Any:
    return SWAPS[type(operator)]()


def constants(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield from (str(value + 1), f"({value - 1})")
    elif isinstance(value, float):
        yield repr(value * 2 or 1.0)


def drawn(everything: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw the mutants with the least digests of seed, file and name, so that edits keep most of a sample."""
    times: Counter[tuple[str, str]] = Counter()
    digests = list[tuple[bytes, int]]()
    for number, mutant in enumerate(everything):
        place = (mutant.block[0], mutant.name)
        times[place] += 1
        digests.append((sha256(repr((seed, place, times[place])).encode()).digest(), number))
    return [everything[number] for _, number in nsmallest(count, digests)]


# -- which test enters which block --------------------------------------------------------------------

SEEN = """
import atexit, os
seen = set()
_by = os.environ.get("PYTEST_CURRENT_TEST", "")
def _leave():
    if _by and seen:
        with open(os.path.join(os.path.dirname(__file__), f"child-{os.getpid()}"), "w") as file:
            file.write("\\n".join([_by.rpartition(" ")[0], *map(str, seen)]))
atexit.register(_leave)
"""


def copied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "peek", folder / "peek", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def telling(path: Path, blocks: list[Block]) -> str:
    """Return a file's source with a call in each block that records its entry; add the blocks to `blocks`."""
    tree = ast.parse(path.read_text())
    name = path.relative_to(ROOT).as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            continue
        for field in BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                blocks.append((name, body[0].lineno))
                told = ast.parse(f"_entered({len(blocks) - 1})").body
                docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
                body[int(docstring) : int(docstring)] = told
    head = [isinstance(it, ast.ImportFrom) and it.module == "__future__" for it in tree.body]
    place = head.index(True) + 1 if any(head) else int(ast.get_docstring(tree) is not None)
    tree.body[place:place] = ast.parse("from peek_mutants_seen import seen as _s\n_entered = _s.add").body
    return ast.unparse(ast.fix_missing_locations(tree))


def record() -> None:
    """Run the core suite once; store seconds and blocks of each test that passes in `REACHED`."""
    folder, blocks = copied(BUILD / "telling"), list[Block]()
    for path in sources():
        (folder / path.relative_to(ROOT)).write_text(telling(path, blocks))
    (folder / "peek_mutants_seen.py").write_text(SEEN)
    pytest(folder, ["--maxfail=1000"], {"MUTANTS_SEEN": str(folder)}, None)
    found: dict[str, Any] = json.loads((folder / "tests.json").read_text())
    for child in folder.glob("child-*"):
        test, *numbers = child.read_text().splitlines()
        if test in found:
            found[test][1] = sorted({*found[test][1], *map(int, numbers)})
    REACHED.write_text(json.dumps({"blocks": blocks, "tests": found}))


def pytest(folder: Path, words: list[str], also: dict[str, str], limit_s: float | None) -> tuple[int, str]:
    """Run pytest; return its exit status, or -9 if the limit has ended it, and its output."""
    home = [f"--ignore={ROOT / 'tests' / engine}" for engine in ENGINES]
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", PLUGIN,
        "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *home, *words,
    ]  # fmt: skip
    if not any(word.endswith(".py") for word in words):
        command.append(str(ROOT / "tests"))
    build = {"PYTHONPATH": f"{folder}:{ROOT}", "PEEK_EXPECT_BACKEND": "interpreted"}
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **build, **also}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return -9, process.communicate()[0]
    return process.returncode, said


# -- the run ------------------------------------------------------------------------------------------


@cache
def importers(file: str) -> frozenset[str]:
    """Return the test modules that name a module of the library or, if none does, its package."""
    *package, module = Path(file).with_suffix("").parts
    home = "[.]".join(package)
    tests = [(path, path.read_text()) for path in (ROOT / "tests").glob("*.py")]
    for said in (rf"{home}([.]{module}\b| import .*\b{module}\b)", rf"{home}\b"):
        found = [path.relative_to(ROOT).as_posix() for path, text in tests if re.search(said, text)]
        if found:
            return frozenset(found)
    return frozenset()


def tests_for(mutant: Mutant, reached: dict[str, Any], most_s: float) -> list[str]:
    """Choose tests that enter a mutant's block, those with fewest blocks first, within `most_s` in all.

    For code that runs at import: tests that enter any block of the file or whose module imports it.
    """
    whole = mutant.block[1] == 0
    numbers = {
        number
        for number, (file, line) in enumerate(reached["blocks"])
        if file == mutant.block[0] and (whole or line == mutant.block[1])
    }
    also = importers(mutant.block[0]) if whole else frozenset()
    found = [
        (len(entered), s, test)
        for test, (s, entered) in reached["tests"].items()
        if numbers & set(entered) or test.partition("::")[0] in also
    ]
    chosen, total = list[str](), 0.0
    for _, seconds, test in sorted(found):
        if chosen and total + seconds > most_s:
            continue
        total += seconds
        chosen.append(test)
    return chosen


def tried(mutant: Mutant, tests: list[str], folder: Path, limit_s: float) -> tuple[str, str]:
    """Try a mutant; return the outcome, and the test that caught it."""
    if not tests:
        return "unreached", ""
    path = folder / mutant.block[0]
    source, times = path.read_bytes(), path.stat()
    changed = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
    chosen = BUILD / "chosen.txt"
    chosen.write_text("\n".join(tests))
    files = sorted({str(ROOT / test.partition("::")[0]) for test in tests})
    try:
        path.write_bytes(changed)
        status, said = pytest(folder, ["-x", *files], {"MUTANTS_CHOSEN": str(chosen)}, limit_s)
    finally:
        path.write_bytes(source)
        os.utime(path, (times.st_atime, times.st_mtime))
    if status == -9:
        return "caught", "endless"
    if status in (0, 5):
        return "survived", f"{len(tests)} tests"
    by = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "caught", (by or said.splitlines()[-1:])[0][:200]


def place_of(mutant: Mutant) -> str:
    return f"{mutant.block[0]}:{mutant.line}:{mutant.start} {mutant.name}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", default="", help="a part of the path")
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests for one mutant")
    parser.add_argument("--afresh", action="store_true", help="forget what was recorded and tried")
    chosen = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if chosen.afresh or not REACHED.exists():
        RESULTS.unlink(missing_ok=True)
        record()
    reached = json.loads(REACHED.read_text())
    everything = [mutant for path in sources() if chosen.only in str(path) for mutant in mutants_of(path)]
    sample = drawn(everything, chosen.count, chosen.seed)
    known = dict(line.split("  # ") for line in EQUIVALENT.read_text().splitlines() if "  # " in line)
    done = {row[1]: row for row in csv.reader(RESULTS.open())} if RESULTS.exists() else {}
    folder = copied(BUILD / "mutated")
    for number, mutant in enumerate(sample, 1):
        where = place_of(mutant)
        if where in done:
            continue
        began, tests = time.monotonic(), tests_for(mutant, reached, chosen.seconds)
        expected = sum(reached["tests"][test][0] for test in tests)
        outcome, by = tried(mutant, tests, folder, 40 + 2 * expected)
        row = [outcome, where, by, f"{time.monotonic() - began:.1f}"]
        done[where] = row
        with RESULTS.open("a") as file:
            csv.writer(file).writerow(row)
        print(number, *row, sep="  ", flush=True)
    report(sample, done, known)


def report(sample: list[Mutant], done: dict[str, list[str]], known: dict[str, str]) -> None:
    """Print the mutants that were not caught, with those known as equivalent, and the share caught."""
    outcomes = [(done[place_of(mutant)], f"{mutant.block[0]} {mutant.name}") for mutant in sample]
    missed = [(row, name) for row, name in outcomes if row[0] != "caught"]
    for row, name in missed:
        print(f"{'equivalent' if name in known else row[0]:10}  {row[1]}  {known.get(name, '')}")
    caught = len(sample) - len(missed)
    counted = len(sample) - sum(name in known for _, name in missed)
    print(
        f"{len(sample)} mutants, {counted} change behaviour: {caught} caught, {100 * caught / counted:.1f} %"
    )


if __name__ == "__main__":
    main()
