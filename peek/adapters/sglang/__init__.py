"""SGLang adapter: installed, and `PEEK_POLICY=peek` in the environment of the server (0.5.11 and later).

Before SGLang had plug-ins (0.5.9): `peek.adapters.sglang.Engine` in the place of `sglang.Engine`.  Importing
this package does not import SGLang.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Engine", "register"]


def register() -> None:
    """What SGLang calls in each process; does nothing unless `peek` is configured."""
    from peek.adapters.sglang.plugin import register as hook

    hook()


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from peek.adapters.sglang.plugin import engine_class

    made = globals()["Engine"] = engine_class()
    return made
