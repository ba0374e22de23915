"""Compile the hot modules with mypyc, or install the same source as it is.

Which of the two happens is decided here and printed (pip shows it with `-v`; the wheel's name tells too):

==============  ==================================================================================
`PEEK_PURE`     build
==============  ==================================================================================
unset, empty    compiled where this Python can compile C extensions, pure where it cannot
`1`             pure: a `py3-none-any` wheel
`0`             compiled, or the build fails
==============  ==================================================================================

A compiler that works and a compilation that fails is an error, never a silent fall-back: a package
that is interpreted by accident makes every benchmark lie.  The rest of the metadata is in
`pyproject.toml`.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import tempfile
from glob import glob
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = (
    "peek/native.py",
    "peek/request.py",
    "peek/trie/*.py",
    "peek/policy/[!r]*.py",
    "peek/policy/default/*.py",
    "peek/eviction/*.py",
    "peek/planner/[!p]*.py",
    "peek/planner/planner.py",
    "peek/fleet/[!c]*.py",
    "peek/offline/batch_trie.py",
    "peek/simulation/caches.py",
    "peek/adapters/mirror.py",
    "peek/adapters/sglang/views.py",
)
"""The hot modules, as patterns; package `__init__` files always stay Python.

They are compiled as ONE group, that is into one shared library: calls, attribute reads and
construction across its modules are direct C, and small ones are inlined.  Between groups they would
go through export tables, and between extension modules through the interpreter.
`tests/test_architecture.py` reads this constant, too.
"""

GROUP = "peek"

BUILD_COMMANDS = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
"""Commands that need extension modules; the others (metadata, sdist) need not wait for mypyc."""

MYPY_CONFIG = """\
[mypy]
ignore_missing_imports = True
[mypy-numpy.*]
follow_imports = skip
follow_imports_for_stubs = True
[mypy-vllm.*,sglang.*,torch.*,ray.*]
follow_imports = skip
"""
"""What mypy sees while compiling: the same with and without numpy's types and whatever else is installed.

The types of `sortedcontainers` it must see (they come with the build requirements): what it knows to be
a native object is read directly, what it does not know by name.
"""

C_TEXT = r'(?:[^"\\\n]|\\.)*'
SIGNED = rf'(?P<doc>PyDoc_STR\("(?P<signature>{C_TEXT}?\\n--\\n\\n){C_TEXT}"\))'
UNSIGNED = rf'(?P<doc>NULL|PyDoc_STR\("{C_TEXT}"\))(?P<signature>)'
DOC_PLACES = (
    rf"\(PyCFunction\)CPyPy_(?P<name>\w+),\s*[A-Z_ |]+, {SIGNED}",
    rf"CPyType_(?P<name>\w+?)_template_ = \{{[^}}]*?\.tp_doc = {SIGNED}",
    rf"\(getter\)(?P<name>\w+_get_\w+),\s*(?:NULL|\(setter\)\w+),\s*{UNSIGNED}, NULL\}}",
)
"""Where the C code of mypyc has room for a docstring: behind the signature of a function or method, behind
that of a class, and in a property."""

RELATIVE_LINK = r'\[([^\]]+)\]\((?!https?:)[^)]+\)|<img src="(?!https?:)[^>]*>'
"""A link of the readme to a file beside it, or a picture there, which a package index has not."""

PROBE = "#include <Python.h>\nPyMODINIT_FUNC PyInit_peek_probe(void) { return NULL; }\n"


def compiled_sources() -> list[str]:
    """The source files that `COMPILED` names, relative to the project, sorted."""
    here = Path(__file__).resolve().parent
    found = {path for pattern in COMPILED for path in glob(pattern, root_dir=here)}
    return sorted(path.replace(os.sep, "/") for path in found if not path.endswith("__init__.py"))


def why_not_compile() -> str | None:
    """Why this Python cannot build C extensions; None if it can.

    Having a `cc` on the path is not enough (no headers, no linker, another architecture), so a
    three-line extension module is built with the very command that would build the real one.
    """
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython only, this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "mypyc code is not built for a free-threaded Python here"
    with tempfile.TemporaryDirectory(prefix="peek-probe-") as folder:
        source = Path(folder, "peek_probe.c")
        source.write_text(PROBE, encoding="ascii")
        probe = build_ext(Distribution({"ext_modules": [Extension("peek_probe", [str(source)])]}))
        probe.build_lib = probe.build_temp = folder
        try:
            probe.ensure_finalized()
            probe.run()
        except Exception as error:  # every compiler class has errors of its own
            return f"no working C compiler ({error})"
    return None


def mypyc_extensions() -> list[Extension]:
    """Translate the hot modules to C; any error of mypy or mypyc ends the build."""
    from mypyc.build import mypycify

    config = Path("build", "mypyc.ini")
    config.parent.mkdir(exist_ok=True)
    config.write_text(MYPY_CONFIG, encoding="ascii")
    modules = mypycify(
        [f"--config-file={config}", *compiled_sources()], opt_level="3", debug_level="0", group_name=GROUP
    )
    add_docstrings(Path("build", f"__native_{GROUP}.c"))
    if os.name != "nt":  # mypyc sets -Werror; a warning that only a newer compiler knows is no failure
        for module in modules:
            module.extra_compile_args = [*module.extra_compile_args, "-Wno-error"]
            if sys.platform == "linux":  # let functions of one library be inlined into each other
                module.extra_compile_args.append("-fno-semantic-interposition")
    return modules


Documented = ast.FunctionDef | ast.ClassDef


def documented() -> dict[tuple[str, str], Documented]:
    """`(module, qualified name)` -> what has a docstring of all functions, classes, methods, properties."""
    here = Path(__file__).resolve().parent
    found: dict[tuple[str, str], Documented] = {}
    for source in compiled_sources():
        module = source.removesuffix(".py").replace("/", ".")
        ahead: list[tuple[str, ast.AST]] = [("", ast.parse((here / source).read_text(encoding="utf-8")))]
        while ahead:
            outer, tree = ahead.pop()
            for node in ast.iter_child_nodes(tree):
                if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or _stays_python(node):
                    continue
                name = f"{outer}{node.name}"
                if ast.get_docstring(node) is not None:
                    found[module, name] = node
                if isinstance(node, ast.ClassDef):
                    ahead.append((f"{name}.", node))
    return found


def _stays_python(node: Documented) -> bool:
    """Whether mypyc makes an ordinary Python class of it, without a docstring: a named tuple."""
    return isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)


def corrected(signature: str, node: Documented) -> str:
    """Return the signature that mypyc wrote for a function or class with the right `/` and `*`.

    mypyc takes all parameters for positional if one is a number with a default, and forgets the `*`.
    """
    inits = [each for each in ast.walk(node) if getattr(each, "name", "") == "__init__"]
    function = inits[0] if inits else node
    if not isinstance(function, ast.FunctionDef):
        return signature
    if not function.args.posonlyargs:
        signature = signature.replace(", /)", ")", 1)
    if function.args.kwonlyargs and not function.args.vararg and "*" not in signature:
        first = re.escape(function.args.kwonlyargs[0].arg)
        signature = re.sub(rf"([(,]\s*)({first}\b)", r"\1*, \2", signature, count=1)
    return signature


def add_docstrings(translated: Path) -> None:
    """Put the docstrings into C code that mypyc wrote, which has the signatures only, and these not right.

    mypyc names a thing by the shortest end of its module's name that is unique, its class and its own
    name, and leaves room for a docstring in three forms (`DOC_PLACES`).  A docstring that finds no place
    ends the build: then mypyc has changed, and this function must.
    """
    code = translated.read_text(encoding="utf-8")
    places: dict[str, list[re.Match[str]]] = {}
    for pattern in DOC_PLACES:
        for match in re.finditer(pattern, code):
            places.setdefault(match["name"], []).append(match)
    edits: list[tuple[int, int, str]] = []
    for (module, name), node in documented().items():
        parts = module.split(".")
        ends = ["___".join(parts[i:]) for i in reversed(range(len(parts)))]
        symbols = [f"{end}___{name.replace('.', sep)}" for end in ends for sep in ("___", "_get_")]
        matches = next((places[symbol] for symbol in symbols if symbol in places), [])
        if not matches:
            raise SystemExit(f"peek: mypyc left no place for the docstring of {module}.{name}")
        for match in matches:
            signature = corrected(match["signature"] or "", node)
            text = c_literal(ast.get_docstring(node) or "")
            edits.append((*match.span("doc"), f'PyDoc_STR("{signature}{text}")'))
    for start, end, replacement in sorted(edits, reverse=True):
        code = code[:start] + replacement + code[end:]
    translated.write_text(code, encoding="utf-8")


def c_literal(text: str) -> str:
    """The inside of a C string: printable ASCII as it is, all other bytes in octal."""
    plain = {byte: chr(byte) for byte in range(32, 127) if chr(byte) not in '"\\?'}
    return "".join(plain.get(byte, f"\\{byte:03o}") for byte in text.encode())


def readme() -> str:
    """The readme as a package index shows it: links to files of the project are plain words, pictures go."""
    text = (Path(__file__).resolve().parent / "README.md").read_text(encoding="utf-8")
    return re.sub(RELATIVE_LINK, r"\1", text)


def extensions() -> list[Extension]:
    """The extension modules of this build, none for a pure one; prints which build it is and why."""
    wish = os.environ.get("PEEK_PURE", "")
    if wish not in ("", "0", "1"):
        raise SystemExit(f"peek: PEEK_PURE is {wish!r}; valid values are 0, 1 and nothing")
    if BUILD_COMMANDS.isdisjoint(sys.argv):
        return []
    obstacle = "PEEK_PURE=1" if wish == "1" else why_not_compile()
    if obstacle is None:
        print(f"peek: COMPILED build, {len(compiled_sources())} modules with mypyc", flush=True)
        return mypyc_extensions()
    if wish == "0":
        raise SystemExit(f"peek: PEEK_PURE=0 asks for a compiled build: {obstacle}")
    print(f"peek: PURE PYTHON build, same source, slower: {obstacle}", flush=True)
    return []


if __name__ == "__main__":
    setup(
        ext_modules=extensions(),
        long_description=readme(),
        long_description_content_type="text/markdown",
    )
