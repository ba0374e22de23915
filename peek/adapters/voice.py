"""Log lines where an operator sees them with an engine's default settings.

SGLang gives the root logger a handler, where our logger's lines arrive by themselves.  vLLM gives one to its
own logger only.  `speak_through` hands our lines to that one, and touches no logger but ours.
"""

from __future__ import annotations

import logging
from typing import Final

OURS: Final = logging.getLogger("peek")


class Forward(logging.Handler):
    """Hands records to a logger of the engine's; silent where the root logger has handlers of its own."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = logging.getLogger(target)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers and self.target.isEnabledFor(record.levelno):
            self.target.handle(record)


def speak_through(engine_logger: str) -> None:
    """From now on our lines go where those of `engine_logger` go, from its level on.  Once a process."""
    if any(isinstance(handler, Forward) for handler in OURS.handlers):
        return
    forward = Forward(f"{engine_logger}.peek")
    OURS.addHandler(forward)
    if OURS.level == logging.NOTSET:
        OURS.setLevel(forward.target.getEffectiveLevel())
