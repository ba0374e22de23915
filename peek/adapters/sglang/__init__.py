"""SGLang adapter: install `peek`, and set `PEEK_POLICY=peek` in the server's environment.

SGLang before 0.5.11 has no plug-ins; there `Engine` takes the place of `sglang.Engine`.  Importing this
package does not import SGLang.
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
    from sglang.srt.entrypoints.engine import Engine

    from peek.adapters.sglang.plugin import configured_or_exit, run_scheduler_process

    class PeekEngine(Engine):  # type: ignore[misc]
        """SGLang's engine, with `peek` in its schedulers if the environment asks for it."""

        run_scheduler_process_func = staticmethod(run_scheduler_process)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            configured_or_exit()  # here, before a process is started and a model loaded
            super().__init__(*args, **kwargs)

    globals()["Engine"] = PeekEngine
    return PeekEngine
