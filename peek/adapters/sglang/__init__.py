"""SGLang adapter.  Install `peek`, and set `PEEK_POLICY=peek` in the server's environment (0.5.11 and later).

For 0.5.9, which has no plug-ins, use `peek.adapters.sglang.Engine` in place of `sglang.Engine`.  Importing
this package does not import SGLang.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Engine", "register"]


def register() -> None:
    """SGLang's plug-in entry point, called in each process; does nothing unless `peek` is configured."""
    from peek.adapters.sglang.plugin import register as hook

    hook()


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from peek.adapters.sglang.plugin import engine_class

    made = globals()["Engine"] = engine_class()
    return made
