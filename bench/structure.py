"""Shows the structure of this or other checkouts in figures: `python -m bench.structure [CHECKOUT ...]`.

Figures from the syntax trees: modules and lines by folder, modules with one importer, circles of imports,
the central classes' fields and the modules that assign them, readers of the planner's parts.  Figures from a
plan of six requests on uncompiled sources: its calls, the modules that it enters, and how often a call is in
another module than the call before.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

TRAVEL = """
import sys
sys.path.insert(0, {root!r})
from peek import PeekConfig, PendingRequest, PendingTree, Planner
from peek.trie.tree_view import TreeView
cached = PendingTree()
cached.insert("warm", [1, 2, 3, 4])
planner, view = Planner(PeekConfig.from_label({label!r})), TreeView(cached)
for i, key in enumerate([[1, 2, 3, 4, 5], [1, 2, 3, 9], [7, 7, 1], [7, 7, 2], [7, 7, 3], [8]]):
    planner.add(PendingRequest(f"r{{i}}", key, float(i)))
travel = []
def note(frame, event, _):
    if event == "call" and frame.f_globals.get("__name__", "").startswith("peek"):
        travel.append(frame.f_globals["__name__"])
sys.setprofile(note)
planner.plan(view, 10.0)
sys.setprofile(None)
print(len(travel), len(set(travel)), sum(a != b for a, b in zip(travel, travel[1:])))
"""

CENTRAL = ("Planner", "Node", "PendingRequest")


class Checkout:
    """The parsed modules of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, ast.Module] = {}
        self.lines: dict[str, int] = {}
        for path in sorted((root / "peek").rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text()
            self.modules[name] = ast.parse(text)
            self.lines[name] = text.count("\n")
        self.imports = {name: self._imports(name) for name in self.modules}

    def _imports(self, name: str) -> set[str]:
        """Return the modules that a module imports, also in functions, but not for type checks only."""
        found: set[str] = set()
        todo: list[ast.AST] = [self.modules[name]]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in self.modules else node.module)
            todo.extend(ast.iter_child_nodes(node))
        return {target for target in found if target in self.modules and target != name}

    def by_folder(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of modules and lines of each part of the package."""
        found: dict[str, tuple[int, int]] = {}
        for name, lines in self.lines.items():
            part = name.split(".")[1] if "." in name else "peek"
            part = part if (self.root / "peek" / part).is_dir() else "peek"
            modules, total = found.get(part, (0, 0))
            found[part] = (modules + 1, total + lines)
        return found

    def single_importers(self) -> list[str]:
        """Return the modules that exactly one other module imports, except packages' `__init__`."""
        count: dict[str, int] = defaultdict(int)
        for targets in self.imports.values():
            for target in targets:
                count[target] += 1
        packages = {name.rpartition(".")[0] for name in self.modules}
        return [name for name in self.modules if count[name] == 1 and name not in packages]

    def circles(self) -> list[list[str]]:
        """Return the groups of modules that import each other in a circle."""
        reach: dict[str, set[str]] = {}
        for name in self.modules:
            seen: set[str] = set()
            todo = [name]
            while todo:
                for target in self.imports[todo.pop()] - seen:
                    seen.add(target)
                    todo.append(target)
            reach[name] = seen
        groups = {
            tuple(sorted(other for other in reach[name] if name in reach[other]))
            for name in self.modules
            if name in reach[name]
        }
        return [list(group) for group in sorted(groups)]

    def fields(self, kind: str) -> tuple[int, int]:
        """Return the number of a class's fields, and of those whose name several modules assign."""
        for name, tree in self.modules.items():
            for node in tree.body:
                if (
                    isinstance(node, ast.ClassDef)
                    and node.name == kind
                    and not name.startswith("peek.testing")
                ):
                    fields = set(_assigned(node, "self"))
                    writers = {
                        field: sum(field in _assigned(other) for other in self.modules.values())
                        for field in fields
                    }
                    return len(fields), sum(count > 1 for count in writers.values())
        return 0, 0

    def outside_readers(self) -> list[str]:
        """Return the places outside `peek.planner` that read `tree` or `stats` of a planner."""
        found = []
        for name, tree in self.modules.items():
            if name.startswith("peek.planner"):
                continue
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr in ("tree", "stats")
                    and ast.unparse(node.value).endswith("planner")
                ):
                    found += [f"{name}:{node.lineno}"]
        return found

    def travel(self, label: str) -> str:
        """Return calls, modules and changes of module of a plan; "-" and the error if the run fails."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.root / "peek", Path(folder, "peek"), ignore=shutil.ignore_patterns("*.so"))
            script = TRAVEL.format(root=folder, label=label)
            done = subprocess.run(
                [sys.executable, "-S", "-c", _site() + script], capture_output=True, text=True
            )
        return done.stdout.strip() or f"- ({done.stderr.strip().splitlines()[-1]})"


def _site() -> str:
    """Return code that adds the packages of this environment to the path, without an installed `peek`."""
    folders = [path for path in sys.path if path.endswith("site-packages")]
    return f"import sys; sys.path += {folders!r}\n"


def _assigned(tree: ast.AST, owner: str = "") -> set[str]:
    """Return the attributes that are assigned in a syntax tree; only those of `owner` if it is given."""
    found = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
            continue
        if not owner or (isinstance(node.value, ast.Name) and node.value.id == owner):
            found.add(node.attr)
    return found


def report(root: Path) -> None:
    """Print the figures of one checkout."""
    checkout = Checkout(root)
    print(f"peek: {len(checkout.modules)} modules, {sum(checkout.lines.values()):,} lines")
    for part, (modules, lines) in sorted(checkout.by_folder().items()):
        print(f"  {part:<12}{modules:>4}{lines:>8,}")
    tests = sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py"))
    print(f"tests: {tests:,} lines")
    alone = checkout.single_importers()
    small = [name for name in alone if checkout.lines[name] < 90]
    print(f"modules with one importer: {len(alone)}, of these under 90 lines: {len(small)}")
    for name in small:
        print(f"  {name} ({checkout.lines[name]})")
    circles = checkout.circles()
    print(f"circles of imports: {len(circles)}")
    for group in circles:
        print(f"  {', '.join(group)}")
    for kind in CENTRAL:
        fields, shared = checkout.fields(kind)
        print(f"{kind}: {fields} fields, {shared} of a name that several modules assign")
    outside = checkout.outside_readers()
    print(f"readers of a planner's tree or stats outside peek.planner: {len(outside)} {' '.join(outside)}")
    for label in ("peek", "fcfs+lru"):
        print(f"a plan of six under {label}: calls, modules, changes of module: {checkout.travel(label)}")


def main() -> None:
    """Print the figures of each checkout on the command line, or of this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("checkouts", metavar="CHECKOUT", type=Path, nargs="*", default=[here])
    for root in [path.resolve() for path in parser.parse_args().checkouts]:
        print(f"\n{root.name}")
        report(root)


if __name__ == "__main__":
    main()
