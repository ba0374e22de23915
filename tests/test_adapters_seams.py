"""What the adapters put into engines: the table of seams is what the code does, and the other way round.

An attribute is an engine's unless a class of `peek` assigns it to itself.  So it is found where an adapter
sets one on anything else, writes into a list that it was given, derives from a class that it does not know
before an engine is there, or names a method of SGLang's for a hook.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ADAPTERS = ROOT / "peek" / "adapters"
ENGINES = ("vllm", "sglang")
BESIDE = {"vllm": ["mirror.py", "priorities.py"], "sglang": ["line.py", "symbols.py"]}
"""Modules of one engine's adapter that need nothing of the engine."""
TABLE = ROOT / "docs" / "data" / "seams.csv"
NAMING = {"__module__", "__name__", "__qualname__"}
TARGET = re.compile(r"sglang(\.[a-z_]+)+\.[A-Z]\w*\.\w+")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def classes(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, bool]]:
    """Each class, and whether it derives from one that is an argument, a variable or imported late."""
    known = {name for node in tree.body for name in names_of(node)} | {"Exception", "Protocol"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            yield node, bool(set(bases) - known)


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return set()


def written(tree: ast.AST) -> Iterator[ast.Attribute | ast.Subscript]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield node


def own_attributes(engine: str) -> set[str]:
    """What classes of an adapter have or assign to `self`, those that derive from an engine's aside."""
    paths = [*ADAPTERS.glob("*.py"), *(ADAPTERS / engine).glob("*.py"), ROOT / "peek" / "request.py"]
    found = set()
    for path in paths:
        found |= {
            name for node, foreign in classes(parsed(path)) if not foreign for name in set_on_self(node)
        }
        found |= {name for node, _ in classes(parsed(path)) for name in fields_of(node)}
    return found


def fields_of(node: ast.ClassDef) -> set[str]:
    """Fields of a dataclass."""
    return {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}


def set_on_self(node: ast.ClassDef) -> set[str]:
    return {each.attr for each in written(node) if isinstance(each, ast.Attribute) and is_self(each.value)}


def is_self(node: ast.expr) -> bool:
    return ast.unparse(node) == "self"


def of_unknown_kind(function: ast.FunctionDef) -> set[str]:
    """Parameters that may be anything."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {each.arg for each in every if each.annotation and "Any" in ast.unparse(each.annotation)}


def seams(tree: ast.Module, own: set[str]) -> set[str]:
    """What one module of an adapter puts into an engine."""
    found = set()
    for each in written(tree):
        if isinstance(each, ast.Attribute) and each.attr not in own | NAMING and not is_self(each.value):
            base = ast.unparse(each.value).removeprefix("self.").removeprefix("_")
            found.add(f"{base}.{each.attr}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            lists = {each.value.id for each in written(node) if is_item(each)} & of_unknown_kind(node)
            found |= {f"{name}[:]" for name in lists}
        elif isinstance(node, ast.Constant) and TARGET.fullmatch(str(node.value)):
            found.add(str(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 3:
            found.add(str(ast.literal_eval(node.args[0])))
    for made, foreign in classes(tree):
        if foreign:
            names = {name for part in made.body for name in defined(part)} | set_on_self(made)
            found |= {f"{made.name}.{name}" for name in names}
    return found


def is_item(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)


def defined(node: ast.stmt) -> set[str]:
    """What a class of ours overrides."""
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {node.name} if isinstance(node, ast.FunctionDef) else set()


def in_the_code(engine: str) -> set[str]:
    own = own_attributes(engine)
    paths = [*(ADAPTERS / engine).glob("*.py"), *(ADAPTERS / name for name in BESIDE[engine])]
    return {seam for path in paths for seam in seams(parsed(path), own)}


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_of_seams_is_the_code(engine: str) -> None:
    told = [seam for row in rows() if row["engine"] == engine for seam in row["seam"].split("; ")]
    assert len(told) == len(set(told))
    assert sorted(told) == sorted(in_the_code(engine))


def test_every_seam_is_explained() -> None:
    for row in rows():
        assert row["engine"] in ENGINES
        assert all(row[name].strip() for name in ("what", "why", "what breaks it", "what tells us")), row


def test_tests_that_tell_are_there() -> None:
    named = {name for row in rows() for name in re.findall(r"test_\w+\.py", row["what tells us"])}
    assert len(named) >= 5
    for name in named:
        assert list((ROOT / "tests").rglob(name)), name


STRANGE = """
def attach(cache: Any, queue: list[Any], table: dict[str, int]) -> None:
    cache.insert = 1
    queue[0] = 2
    table["x"] = 3
    cache.policy.own = 4
    class Ours(type(cache)):
        pass
    class Mine(base):
        limit = 1
        def evict(self):
            self.place = 5
    type("Both", (Ours, base), {})
    del cache.nodes[0].key
HOOK = "sglang.srt.a_b.Cache.insert"
"""


def test_what_counts_as_a_seam() -> None:
    expected = {
        "cache.insert",
        "queue[:]",
        "Mine.limit",
        "Mine.evict",
        "Mine.place",
        "Both",
        "cache.nodes[0].key",
    }
    assert seams(ast.parse(STRANGE), {"own"}) == expected | {"sglang.srt.a_b.Cache.insert"}
