"""Settings of an adapter: the engine's own options come first, then the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from peek.config import VARIABLES, PeekConfig, text_of
from peek.errors import InvalidConfig
from peek.settings import require_flag, require_one_of, require_whole

KNOWN_VARIABLES: Final = ("PEEK_POLICY", "PEEK_CONFIG", *VARIABLES)
"""Environment variables that an adapter reads for its settings."""

OTHER_VARIABLES: Final = (
    "PEEK_PURE",
    "PEEK_EXPECT_BACKEND",
    "PEEK_REPLACE_SCHEDULE_POLICY",
    "PEEK_METRICS_DIR",
)
"""Variables of the build, of the tests, for SGLang only, and from process to process, in this order."""

MODES: Final = ("on", "off", "shadow")
"""on      the queue is in the planner's order
shadow  everything is planned and counted; the queue stays in the engine's own order
off     the engine has its own objects back; nothing is planned"""

TENANTS: Final = ("none", "namespace", "named")

_MOST: Final = 1_000_000
"""Upper bound of a whole-number option: a larger value is most likely a mistake, and could fill memory."""

OFF: Final = "off"
"""Name of the policy that switches `peek` off."""
_STOCK: Final = "fcfs+lru"

_OF_TRACES: Final = ("trace_file", "trace_mib", "control_file", "control_every")
"""Options that count without a policy, too."""


@dataclass(frozen=True)
class Settings:
    """Settings of one adapter.

    Attributes:
        config: the policy and what goes with it.
        strict: re-raise internal errors, for tests; otherwise they leave the engine in its own order.
        mode: "on", "shadow" (plan and count, never reorder) or "off".
        control_file: a file that sets the mode while the engine runs, "" for none.
        control_every: calls of the scheduler between two looks at that file.
        explain: number of admissions kept with the reason for their place (a sample is logged); 0 for none.
        tenants: the tenant of a request (option `tenant_lead`).  "none": one for all.  "namespace": its LoRA
            adapter, extra key or cache salt.  "named": the one that it names; only behind a gateway that
            writes the name itself.
        trace_file: where to write a trace of what is served, as salted hashes; "" for nowhere.
        trace_mib: most MiB that the trace may take.
    """

    config: PeekConfig
    strict: bool = False
    mode: str = "on"
    control_file: str = ""
    control_every: int = 50
    explain: int = 0
    tenants: str = "none"
    trace_file: str = ""
    trace_mib: int = 256

    def __post_init__(self) -> None:
        self.config.build_policy()  # fails now if another author's module names something that is no policy
        require_flag("strict", self.strict)
        require_one_of("mode", self.mode, MODES)
        _require_file_name("control_file", self.control_file)
        require_whole("control_every", self.control_every, 1, _MOST)
        require_whole("explain", self.explain, 0, _MOST)
        require_one_of("tenants", self.tenants, TENANTS)
        _require_file_name("trace_file", self.trace_file)
        require_whole("trace_mib", self.trace_mib, 1, _MOST)

    def in_force(self) -> dict[str, Any]:
        """Return every option in force with its value."""
        own = {name: value for name, value in vars(self).items() if name != "config"}
        return {**self.config.as_dict(), **own}

    def __str__(self) -> str:
        """Return every option in force on one line."""
        return " ".join(f"{name}={text_of(value)}" for name, value in self.in_force().items())

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Settings:
        """Make settings from JSON-like options: those of `PeekConfig.from_dict`, and the attributes above.

        With the policy "off", only the options of the trace and the control file count.  Raises
        `InvalidConfig` for an unknown name or value, and for an option that the policy does not have.
        """
        names = [field.name for field in fields(cls) if field.name != "config"]
        if options.get("policy") == OFF:
            kept = {name: options[name] for name in _OF_TRACES if name in options}
            return cls(PeekConfig.from_label(_STOCK), mode="off", **kept)
        own = {name: value for name, value in options.items() if name in names}
        policy = {name: value for name, value in options.items() if name not in names}
        return cls(PeekConfig.from_dict(policy, beside=names), **own)


def _require_file_name(name: str, value: object) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidConfig(f"{name} is {value!r}; need the name of a file")


def requested_settings(options: Any) -> Settings:
    """Return the settings in force; their `config.is_stock` is true if nothing was asked for.

    `options` is the value of "peek" in the engine's own configuration.  Without it, and with
    `PEEK_POLICY=off`, the environment is read.
    `InvalidConfig` for an unknown name or value, so that no mistake passes for stock.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidConfig(
            f"the options of peek are {options!r}; need an object such as {{'policy': 'peek'}}"
        )
    if options and os.environ.get("PEEK_POLICY") != OFF:
        return Settings.from_dict(options)
    return settings_from(os.environ)


def settings_from(environ: Mapping[str, str]) -> Settings:
    """Return the settings that an environment asks for.

    `PEEK_CONFIG` holds the options as JSON, or `@` and the name of a JSON file; the policy may be in
    `PEEK_POLICY` instead.  Without `PEEK_CONFIG`, `PEEK_POLICY` or the paper's `PEEK_ONLINE_*` variables
    count.  `PEEK_POLICY=off` overrides everything.  `InvalidConfig` names the variable.
    """
    text = environ.get("PEEK_CONFIG", "").strip()
    if environ.get("PEEK_POLICY", "") == OFF:
        return Settings.from_dict({"policy": OFF})
    if not text:
        return Settings(PeekConfig.from_env(environ))
    options = _parsed(text)
    clash = [name for name in VARIABLES if name in environ]
    if clash:
        raise InvalidConfig(f"PEEK_CONFIG and {clash[0]} are both set; set one of them")
    label = environ.get("PEEK_POLICY", "")
    if label and "policy" in options:
        raise InvalidConfig("PEEK_POLICY is set and PEEK_CONFIG names a policy, too; set one of them")
    try:
        return Settings.from_dict({"policy": label, **options} if label else options)
    except InvalidConfig as error:
        raise InvalidConfig(f"PEEK_CONFIG: {error}") from None


def check_environment() -> None:
    """Raise `InvalidConfig` for a mistake in the environment's settings or in `--additional-config`.

    vLLM calls this in each process before it loads a model (`vllm.general_plugins`), without a configuration.
    So this reads the command line; `LLM(additional_config=...)` is checked when the scheduler is made.
    """
    settings_from(os.environ)
    requested_settings(_on_command_line(sys.argv))


def _on_command_line(arguments: Sequence[str]) -> Any:
    """Return "peek" of the last `--additional-config`; None without it, or if vLLM will refuse the JSON."""
    text = ""
    for name, following in pairwise([*arguments, ""]):
        flag, has_value, value = name.partition("=")
        if flag in ("--additional-config", "--additional_config"):
            text = value if has_value else following
    try:
        additional = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return additional.get("peek") if isinstance(additional, dict) else None


def _parsed(text: str) -> dict[str, Any]:
    source = ""
    if text.startswith("@"):
        source = f" ({text[1:]})"
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"PEEK_CONFIG names a file that cannot be read: {error}") from None
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"PEEK_CONFIG{source} is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidConfig(
            f'PEEK_CONFIG{source} is {text.strip()[:60]!r}; need an object: {{"policy": ...}}'
        )
    return options


def misspelled(environ: Mapping[str, str]) -> dict[str, str]:
    """Return unknown variables that begin with `PEEK_`, each with the most similar known name."""
    known = (*KNOWN_VARIABLES, *OTHER_VARIABLES)
    found = sorted(name for name in environ if name.upper().startswith("PEEK_") and name not in known)
    return {name: (get_close_matches(name.upper(), known, 1, 0.0) or [""])[0] for name in found}
