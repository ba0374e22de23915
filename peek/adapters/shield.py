"""The rule every engine adapter lives by: an internal error never reaches the engine.

Calls into `peek` go through a `Shield`.  The first exception is logged with its traceback, counted,
and switches the adapter off for its scheduler; from then on the engine runs in stock order, until the
adapter is made anew behind another shield (`BackOff` says when).  In strict mode, for tests, the exception
is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("peek")

FIRST_WAIT: Final = 1000
"""Calls of the engine until the first new attempt."""

LONGEST_WAIT: Final = 64_000
"""Calls of the engine between two attempts, at most."""


class Shield:
    """Stands between an engine and one planner.

    Args:
        strict: raise what goes wrong.
        fallbacks: errors caught by the shields before this one.
        then: what follows an error, for the log.

    Attributes:
        active: False once something went wrong.
        fallbacks: how many errors were caught (one here at most, since the first one ends it).
    """

    def __init__(self, strict: bool, fallbacks: int = 0, then: str = "") -> None:
        self.strict = strict
        self.active = True
        self.fallbacks = fallbacks
        self._then = then

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
            logger.exception(
                "peek: internal error; this scheduler continues in the engine's own order%s", self._then
            )
            return None

    def undo(self, restore: Callable[[], None]) -> None:
        """Run what puts the engine's own objects back; works when the shield is down, logs what fails."""
        try:
            restore()
        except Exception:
            if self.strict:
                raise
            logger.exception("peek: could not put back everything of the engine's own")


class BackOff:
    """When to try again after an error: counted in calls of the engine, so that all ranks agree.

    The wait doubles with each error up to `LONGEST_WAIT`; an attempt that has worked for `FIRST_WAIT` calls
    is a recovery, after which it is `FIRST_WAIT` again.

    Attributes:
        wait: calls from the next error to the attempt after it.
        retries, recoveries: attempts made, and those that worked.
    """

    def __init__(self) -> None:
        self.wait = FIRST_WAIT
        self.retries = 0
        self.recoveries = 0
        self._left = 0
        self._to_prove = 0

    @property
    def then(self) -> str:
        """What follows the next error, in words."""
        return f" and tries again after {self.wait} calls"

    def counters(self) -> dict[str, float]:
        """What to export."""
        return {"peek_retries": self.retries, "peek_recoveries": self.recoveries}

    def failed(self) -> None:
        """Something went wrong: the wait begins."""
        self._left, self._to_prove = self.wait, 0
        self.wait = min(2 * self.wait, LONGEST_WAIT)

    def due(self) -> bool:
        """One more call of an engine that runs in its own order; True when it is time to try again."""
        self._left -= 1
        if self._left > 0:
            return False
        self.retries += 1
        self._to_prove = FIRST_WAIT
        return True

    def worked(self) -> bool:
        """One more call that found everything well; True when that ends what an error began."""
        if self._to_prove == 0:
            return False
        self._to_prove -= 1
        if self._to_prove > 0:
            return False
        self.recoveries += 1
        self.wait = FIRST_WAIT
        return True
