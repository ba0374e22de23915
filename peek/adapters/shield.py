"""The rule every engine adapter lives by: an internal error never reaches the engine.

Calls into `peek` go through a `Shield`.  The first exception is logged with its traceback, counted,
and switches the adapter off for its scheduler; from then on the engine runs in stock order.  In strict
mode, for tests, the exception is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("peek")


class Shield:
    """Stands between an engine and one planner.

    Attributes:
        active: False once something went wrong.
        fallbacks: how many errors were caught (1 at most, since the first one ends it).
    """

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.active = True
        self.fallbacks = 0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """`function(...)`, or None if the shield is down or goes down now."""
        if not self.active:
            return None
        try:
            return function(*args, **kwargs)
        except Exception:
            if self.strict:
                raise
            self.active = False
            self.fallbacks += 1
            logger.exception("peek: internal error; this scheduler continues in the engine's own order")
            return None

    def undo(self, restore: Callable[[], None]) -> None:
        """Run what puts the engine's own objects back; works when the shield is down, logs what fails."""
        try:
            restore()
        except Exception:
            if self.strict:
                raise
            logger.exception("peek: could not put back everything of the engine's own")
