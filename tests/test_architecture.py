"""The shape of the library, checked over the syntax trees of `peek/`.

Three tables say what holds: `MAY_IMPORT` (imports go one way), `OUTSIDE_WORLD` (the core knows no clock,
file, environment or random source) and `ENGINES` (met in adapters only, inside functions).  Each rule is
a function from one module to its violations; `PLANTED` proves of every rule that it can fail.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import peek

ROOT = Path(__file__).resolve().parent.parent

# -- the tables ---------------------------------------------------------------------------------------

LEAVES = {"errors", "native", "request", "protocols"}
BELOW_PLANNER = LEAVES | {"settings", "trie", "policy", "eviction", "config"}

MAY_IMPORT: dict[str, set[str]] = {
    # part: the parts it may import, besides itself.  `peek` is the package's own `__init__`; a folder with a
    # row of its own (`offline.scale`) is no part of the one above it.
    "_version": set(),
    "errors": set(),
    "compressed": {"errors"},
    "settings": {"errors"},
    "native": set(),
    "request": {"errors", "native"},
    "protocols": set(),  # and `request`, for type checkers only
    "trie": LEAVES,
    "policy": LEAVES | {"settings", "trie"},
    "eviction": LEAVES | {"trie"},
    "offline": LEAVES | {"trie"},
    "offline.formats": LEAVES | {"trie", "offline"},
    "offline.scale": LEAVES | {"trie", "offline"},
    "config": LEAVES | {"settings", "trie", "policy", "eviction"},
    "planner": BELOW_PLANNER,
    "fleet": BELOW_PLANNER | {"planner"},
    "peek": BELOW_PLANNER | {"_version", "planner", "fleet", "offline"},
    "simulation": BELOW_PLANNER | {"compressed", "planner", "fleet"},
    "timing": LEAVES | {"config", "planner", "simulation", "trie", "offline"},
    "traffic": {"errors", "offline.formats"},
    "testing": BELOW_PLANNER | {"planner"},  # and nothing imports it
    "adapters": BELOW_PLANNER | {"_version", "planner", "fleet", "peek", "simulation", "traffic"},
    "cli": BELOW_PLANNER
    | {"_version", "compressed", "planner", "peek", "simulation", "adapters"}
    | {"offline", "offline.formats", "offline.scale", "timing", "traffic"},
    "__main__": {"cli"},
}

MAY_IMPORT_FOR_TYPES: dict[str, set[str]] = {"protocols": {"request"}}
"""Further imports, allowed under `if TYPE_CHECKING:` only."""

OUTER_PARTS = {"adapters", "cli", "compressed", "simulation", "timing", "traffic", "__main__"}
"""Where the outside world begins; every other part is core."""

OUTSIDE_WORLD: dict[str, str] = {
    "os": "environment and files",
    "io": "files",
    "pathlib": "files",
    "tempfile": "files",
    "shutil": "files",
    "glob": "files",
    "logging": "output",
    "time": "a clock",
    "datetime": "a clock",
    "random": "randomness",
    "secrets": "randomness",
    "numpy.random": "randomness",
    "subprocess": "processes",
    "socket": "the network",
}

OUTSIDE_CALLS = {"open": "files", "input": "input", "print": "output"}

ENGINES = {"vllm", "sglang", "verl", "ray", "grpc", "envoy"}

CATCH_ALL = {"Exception", "BaseException"}

CALLS_STRANGERS = {
    "peek.planner.calls",
    "peek.policy.registry",
    "peek.testing.policies",
    "peek.testing.views",
}
"""Core modules that may catch everything, because they call what users write."""

FUNCTION_LINES = 45
"""Without the docstring: contracts may be long, code may not."""

# -- one module, read -----------------------------------------------------------------------------------

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    target: str  # dotted name of a module, or of something in it
    line: int
    in_function: bool
    for_types: bool  # under `if TYPE_CHECKING:`


@dataclass(frozen=True)
class Module:
    name: str  # dotted
    source: str
    compiled: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def part(self) -> str:
        """The row of `MAY_IMPORT` it belongs to."""
        return part_of(self.name) if "." in self.name else self.name

    @property
    def is_core(self) -> bool:
        return self.part not in OUTER_PARTS

    @cached_property
    def imports(self) -> list[Import]:
        return list(imports_below(self.tree, in_function=False, for_types=False))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


def imports_below(node: ast.AST, *, in_function: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, in_function, for_types)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            for alias in child.names:
                yield Import(f"{base}.{alias.name}", child.lineno, in_function, for_types)
        else:
            guarded = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from imports_below(
                child,
                in_function=in_function or isinstance(child, Function),
                for_types=for_types or guarded,
            )


def within(target: str, package: str) -> bool:
    return target == package or target.startswith(package + ".")


def part_of(dotted: str) -> str:
    """`peek.offline.scale.ray_data` -> `offline.scale`; `peek.trie.keys` -> `trie`."""
    names = dotted.split(".")[1:3]
    return ".".join(names) if ".".join(names) in MAY_IMPORT else names[0]


def imported_part(target: str) -> str:
    """`peek.trie.keys.pack` -> `trie`; `peek.Planner` -> `peek`."""
    found = part_of(target) if "." in target else "peek"
    return found if found in MAY_IMPORT else "peek"


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


# -- the rules --------------------------------------------------------------------------------------------

Violations = Iterator[tuple[int, str]]


def imports_go_one_way(module: Module) -> Violations:
    if module.part not in MAY_IMPORT:
        yield 1, f"belongs to no part of the library: give {module.part!r} a row in MAY_IMPORT"
        return
    for found in module.imports:
        if found.target.startswith("."):
            yield found.line, f"relative import {found.target}"
        if not within(found.target, "peek"):
            continue
        allowed = MAY_IMPORT[module.part] | {module.part}
        if found.for_types:
            allowed = allowed | MAY_IMPORT_FOR_TYPES.get(module.part, set())
        if imported_part(found.target) not in allowed:
            yield found.line, f"{module.part} must not import {found.target}"


def only_adapters_meet_engines(module: Module) -> Violations:
    for found in module.imports:
        if not any(within(found.target, engine) for engine in ENGINES):
            continue
        if module.part != "adapters":
            yield found.line, f"imports the engine module {found.target} outside adapters"
        elif not (found.in_function or found.for_types):
            yield found.line, f"imports the engine module {found.target} at module level"


def core_knows_no_outside_world(module: Module) -> Violations:
    if not module.is_core:
        return
    for found in module.imports:
        for name, what in OUTSIDE_WORLD.items():
            if within(found.target, name):
                yield found.line, f"imports {found.target} ({what})"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUTSIDE_CALLS:
            yield node.lineno, f"calls {node.func.id}() ({OUTSIDE_CALLS[node.func.id]})"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "os.environ"):
            yield node.lineno, f"reads {ast.unparse(node)}"


def core_catches_what_it_knows(module: Module) -> Violations:
    if not module.is_core or module.name in CALLS_STRANGERS:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for kind in caught:
            if kind is None or ast.unparse(kind).removeprefix("builtins.") in CATCH_ALL:
                yield node.lineno, "catches everything"


def functions_are_short(module: Module) -> Violations:
    for function in module.functions:
        lines = code_lines(function)
        if lines > FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines, more than {FUNCTION_LINES}"


def compiled_code_has_no_nested_functions(module: Module) -> Violations:
    if not module.compiled:
        return
    for outer in module.functions:
        for node in ast.walk(outer):
            if node is not outer and isinstance(node, (*Function, ast.ClassDef)):
                yield node.lineno, f"{node.name} is nested in {outer.name}"


def compiled_code_does_not_recurse(module: Module) -> Violations:
    """Direct recursion only: `f` calls `f`, or a method calls itself on `self`."""
    if not module.compiled:
        return
    methods = {id(f) for c in ast.walk(module.tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for function in module.functions:
        itself = f"self.{function.name}" if id(function) in methods else function.name
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == itself:
                yield node.lineno, f"{function.name} calls itself"


def protocols_stay_interpreted(module: Module) -> Violations:
    """A compiled run-time checkable protocol fails at import."""
    if not module.compiled:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            yield node.lineno, f"{node.name} is a Protocol in a compiled module"


def a_planner_keeps_its_parts(module: Module) -> Violations:
    """Tree and counters of a planner are its own; others have `roots`, `totals`, `cluster` and the like."""
    if module.name.startswith("peek.planner"):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("tree", "stats"):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("planner", "observed"):
                yield node.lineno, f"reads {ast.unparse(node)}"


Rule = Callable[[Module], Violations]

RULES: list[Rule] = [
    imports_go_one_way,
    only_adapters_meet_engines,
    core_knows_no_outside_world,
    core_catches_what_it_knows,
    functions_are_short,
    compiled_code_has_no_nested_functions,
    compiled_code_does_not_recurse,
    protocols_stay_interpreted,
    a_planner_keeps_its_parts,
]

# -- the library obeys ------------------------------------------------------------------------------------


def compiled_patterns() -> tuple[str, ...]:
    """`COMPILED` of setup.py, read without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            patterns: tuple[str, ...] = ast.literal_eval(node.value)
            return patterns
    raise AssertionError("setup.py has no COMPILED")


def library() -> list[Module]:
    compiled = {path for pattern in compiled_patterns() for path in ROOT.glob(pattern)}
    modules = []
    for path in sorted((ROOT / "peek").rglob("*.py")):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        is_compiled = path in compiled and path.name != "__init__.py"
        modules.append(Module(dotted, path.read_text(encoding="utf-8"), is_compiled))
    return modules


LIBRARY = library()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_library_obeys(rule: Rule) -> None:
    broken = [f"{m.name}:{line}: {text}" for m in LIBRARY for line, text in rule(m)]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize("pattern", compiled_patterns())
def test_compile_list_names_real_modules(pattern: str) -> None:
    assert list(ROOT.glob(pattern)), f"setup.py compiles {pattern}, which does not exist"


def circles(modules: list[Module], types_too: bool = False) -> list[list[str]]:
    """Modules that import each other, in functions too; a package's `__init__` only if it is named itself."""
    names = {module.name for module in modules}
    graph = {
        module.name: {
            target if target in names else target.rpartition(".")[0]
            for target in (found.target for found in module.imports if types_too or not found.for_types)
        }
        & names
        for module in modules
    }
    found = []
    for name in graph:
        reached: dict[str, str] = {}
        waiting = [(name, other) for other in graph[name]]
        while waiting:
            before, at = waiting.pop()
            if at not in reached:
                reached[at] = before
                waiting += [(at, other) for other in graph[at]]
        if name in reached:
            path = [name, reached[name]]
            while path[-1] != name:
                path.append(reached[path[-1]])
            found.append(path[::-1])
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = circles(LIBRARY)
    assert found == []
    adapters = [module for module in LIBRARY if module.name.startswith("peek.adapters")]
    assert circles(adapters, types_too=True) == []


def test_a_circle_is_found() -> None:
    here = Module("peek.cli.reorder", "def f():\n    from peek.cli.large import work")
    there = Module("peek.cli.large", "from peek.cli import reorder")
    other = Module("peek.cli.main", "import peek.cli.reorder")
    assert circles([here, there, other]) == [
        ["peek.cli.reorder", "peek.cli.large", "peek.cli.reorder"],
        ["peek.cli.large", "peek.cli.reorder", "peek.cli.large"],
    ]
    assert not circles([here, other])


def test_every_folder_is_a_package() -> None:
    """A folder without `__init__.py` works in the checkout and is missing from the wheel."""
    folders = {path.parent for path in (ROOT / "peek").rglob("*.py")}
    assert not [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]


def test_hot_modules_are_all_of_one_build() -> None:
    hot = [m.name for m in LIBRARY if m.compiled]
    interpreted = [name for name in hot if (importlib.import_module(name).__file__ or "").endswith(".py")]
    assert interpreted == ([] if peek.backend() == "compiled" else hot)


# -- and every rule can fail --------------------------------------------------------------------------------

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * FUNCTION_LINES

PLANTED: list[tuple[Rule, str, str]] = [
    # rule, module, source that breaks it
    (imports_go_one_way, "peek.policy.clpm", "from peek.eviction.demand import DemandEviction"),
    (imports_go_one_way, "peek.eviction.index", "import peek.policy.clpm"),
    (imports_go_one_way, "peek.trie.keys", "def f():\n    from peek.planner import Planner"),
    (imports_go_one_way, "peek.trie.keys", "from peek import Planner"),
    (imports_go_one_way, "peek.trie.keys", "from . import pending_tree"),
    (imports_go_one_way, "peek.request", "from peek import trie"),
    (imports_go_one_way, "peek.protocols", "from peek.request import PendingRequest"),
    (imports_go_one_way, "peek.planner", "from peek.simulation import engine"),
    (imports_go_one_way, "peek.planner.planner", "from peek.fleet.views import History"),
    (imports_go_one_way, "peek.fleet.replicas", "from peek.simulation import engine"),
    (imports_go_one_way, "peek", "from peek.simulation.engines import SimEngine"),
    (imports_go_one_way, "peek.cli.main", "def f():\n    from peek.testing import check_policy"),
    (imports_go_one_way, "peek.testing.twins", "from peek.simulation.engines import SimEngine"),
    (imports_go_one_way, "peek.offline.reorder", "from peek.policy.base import AdmissionPolicy"),
    (imports_go_one_way, "peek.offline.reordering", "from peek.offline.formats import key_of"),
    (imports_go_one_way, "peek.offline.waves", "def f():\n    from peek.offline import scale"),
    (imports_go_one_way, "peek.offline", "import peek.offline.scale.ray_data"),
    (imports_go_one_way, "peek.offline.formats", "from peek.offline.scale.duckdb_order import Row"),
    (imports_go_one_way, "peek.offline.scale.ray_data", "from peek.offline import formats"),
    (imports_go_one_way, "peek.helpers", ""),
    (only_adapters_meet_engines, "peek.planner", "def f():\n    import vllm"),
    (only_adapters_meet_engines, "peek.adapters.vllm.scheduler", "from vllm.v1.core.sched import scheduler"),
    (only_adapters_meet_engines, "peek.cli.doctor", "def f():\n    import sglang.srt"),
    (core_knows_no_outside_world, "peek.config", "import os"),
    (core_knows_no_outside_world, "peek.fleet.fleet_planner", "import time"),
    (core_knows_no_outside_world, "peek.planner", "def f():\n    from time import monotonic"),
    (core_knows_no_outside_world, "peek.policy.base", "import numpy as np\nx = np.random.default_rng()"),
    (core_knows_no_outside_world, "peek.policy.base", "from numpy import random"),
    (core_knows_no_outside_world, "peek.offline.formats", "def f(path):\n    return open(path)"),
    (core_catches_what_it_knows, "peek.planner", "try:\n    f()\nexcept Exception:\n    pass"),
    (core_catches_what_it_knows, "peek.planner", "try:\n    f()\nexcept (OSError, BaseException): ..."),
    (core_catches_what_it_knows, "peek.planner", "try:\n    f()\nexcept:\n    pass"),
    (functions_are_short, "peek.planner", LONG_FUNCTION),
    (functions_are_short, "peek.cli.main", f"class C:\n{LONG_FUNCTION}".replace("\n", "\n    ").rstrip()),
    (compiled_code_has_no_nested_functions, "peek.planner", "def f():\n    def g():\n        pass"),
    (compiled_code_does_not_recurse, "peek.trie.keys", "def f(n):\n    return f(n - 1)"),
    (compiled_code_does_not_recurse, "peek.trie.keys", "class T:\n    def f(self):\n        self.f()"),
    (protocols_stay_interpreted, "peek.policy.base", "class P(Protocol):\n    pass"),
    (a_planner_keeps_its_parts, "peek.adapters.observed", "x = self.observed.tree.cluster(name)"),
    (a_planner_keeps_its_parts, "peek.fleet.stealing", "x = self._victim.planner.stats"),
]

HARMLESS: list[tuple[Rule, str, str]] = [
    (imports_go_one_way, "peek.policy.clpm", "import math\nfrom peek.trie.keys import pack"),
    (imports_go_one_way, "peek.protocols", "if TYPE_CHECKING:\n    from peek.request import PendingRequest"),
    (imports_go_one_way, "peek.cli.main", "from peek import Planner\nimport peek.simulation"),
    (imports_go_one_way, "peek.offline.scale.ray_data", "from peek.offline.shape import Ints"),
    (imports_go_one_way, "peek.traffic", "from peek.offline.formats import key_of"),
    (only_adapters_meet_engines, "peek.adapters.vllm.scheduler", "def f():\n    import vllm"),
    (only_adapters_meet_engines, "peek.adapters.sglang.hook", "if TYPE_CHECKING:\n    import sglang"),
    (core_knows_no_outside_world, "peek.adapters.vllm.scheduler", "import os\nimport time"),
    (core_knows_no_outside_world, "peek.planner", "class C:\n    def f(self):\n        self.open(1)"),
    (core_catches_what_it_knows, "peek.planner", "try:\n    f()\nexcept KeyError:\n    pass"),
    (core_catches_what_it_knows, "peek.adapters.vllm.guard", "try:\n    f()\nexcept Exception:\n    pass"),
    (functions_are_short, "peek.planner", 'def f():\n    """' + "Long.\n" * 60 + '    """'),
    (compiled_code_has_no_nested_functions, "peek.planner", "class C:\n    def f(self):\n        pass"),
    (compiled_code_does_not_recurse, "peek.trie.keys", "class T:\n    def f(self): self.inner.f(), f()"),
    (protocols_stay_interpreted, "peek.policy.base", "class P(AdmissionPolicy):\n    pass"),
    (a_planner_keeps_its_parts, "peek.adapters.metrics", "x = adapter.planner.totals()"),
    (a_planner_keeps_its_parts, "peek.planner.planner", "x = self.planner.tree"),
]


@pytest.mark.parametrize(("rule", "name", "source"), PLANTED)
def test_rule_finds_planted_violation(rule: Rule, name: str, source: str) -> None:
    assert list(rule(Module(name, source, compiled=True)))


@pytest.mark.parametrize(("rule", "name", "source"), HARMLESS)
def test_rule_accepts_harmless_code(rule: Rule, name: str, source: str) -> None:
    assert not list(rule(Module(name, source, compiled=True)))


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)
