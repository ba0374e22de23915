"""Contain what goes wrong, so that no error of `peek` reaches an engine.

log_or_raise what becomes of any error that is caught
Shield       every call into an adapter: the first error takes the adapter away
Quarantine   one request that cannot be translated: it keeps its place, all others are planned
Agreement    an engine that finds something else in its cache than expected: no error, and plans are useless
require      an engine that lacks what an adapter needs: named before anything is touched
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from peek.errors import EngineMismatch

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("peek")


def log_or_raise(strict: bool, message: str, *details: object) -> None:
    """In an `except` block: log the error with its traceback; raise it again if `strict`, for tests."""
    if strict:
        raise  # noqa: PLE0704
    logger.exception(message, *details)


class Shield:
    """Stands between an engine and one adapter: logs the first error with its traceback, and counts it.

    Args:
        strict: raise what goes wrong, for tests.
        fallbacks: errors caught by the shields before this one.
        then: what follows an error, for the log.

    Attributes:
        active: False once something went wrong; nothing is called any more.
        fallbacks: errors caught so far.
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
            log_or_raise(
                self.strict,
                "peek: internal error; this scheduler continues in the engine's own order%s",
                self._then,
            )
            self.active = False
            self.fallbacks += 1
            return None

    def undo(self, restore: Callable[[], None]) -> None:
        """Run what puts the engine's own objects back.  Works when the shield is down; logs what fails."""
        try:
            restore()
        except Exception:
            log_or_raise(self.strict, "peek: could not put back everything of the engine's own")


class Quarantine:
    """Waiting requests that cannot be translated.  They keep their own places in the queue.

    Engines take in requests that an adapter does not understand: image pads wider than a token, an id that
    is waiting already, a negative token.

    Attributes:
        total: requests kept apart so far.
    """

    def __init__(self, strict: bool) -> None:
        self.total = 0
        self._strict = strict
        self._kept: set[str] = set()
        self._told: set[str] = set()

    def __contains__(self, request_id: object) -> bool:
        """Whether a waiting request is kept apart."""
        return request_id in self._kept

    def __len__(self) -> int:
        """Waiting requests that are kept apart."""
        return len(self._kept)

    def accepts(self, request_id: str, translate: Callable[[], None]) -> bool:
        """Run `translate`, which hands a request to the planner; keep it apart if that raises.

        `translate` must leave planner and adapter as they were when it raises.  Each kind of error is logged
        once, by its type and the request's id: messages may carry what a prompt says.
        """
        try:
            translate()
        except Exception as error:
            if self._strict:
                raise
            self.total += 1
            self._kept.add(request_id)
            kind = type(error).__name__
            if kind not in self._told:
                self._told.add(kind)
                logger.warning(
                    "peek: request %r keeps its own place, it cannot be translated (%s); others like it are"
                    " counted only",
                    request_id,
                    kind,
                )
            return False
        return True

    def let_go(self, request_id: str) -> None:
        """A request left the queue."""
        self._kept.discard(request_id)


FIRST: Final = 64
"""Admissions that are all compared: a mismatch shows within seconds of a start."""
EVERY: Final = 100
"""Later one admission in so many is compared: a patch may come at run time, and looking costs."""

WINDOW: Final = 16
"""The last comparisons that count."""
LASTING: Final = 12
"""So many of them must differ: single ones do, as the cache moves between a look and an admission."""


class Agreement:
    """Compare a sample of the cached tokens that were expected with those that the engine found.  O(1) each.

    An adapter knows by heart how an engine matches prefixes.  A version or patch may give that another
    meaning under the same names: nothing fails then, and plans are made for a cache that does not exist.

    Args:
        slack: tokens by which the two may differ and still agree.

    Attributes:
        compared, differed: comparisons in which something was expected or found, and those that differed.
        lasting: most of the last comparisons differed; stays True.
    """

    def __init__(self, slack: int = 0) -> None:
        self.compared = 0
        self.differed = 0
        self.lasting = False
        self._slack = slack
        self._seen = 0
        self._last: deque[bool] = deque(maxlen=WINDOW)
        self._expected = self._found = 0

    def wants(self) -> bool:
        """Count one more admission; say whether it belongs to the sample."""
        self._seen += 1
        return self._seen <= FIRST or self._seen % EVERY == 0

    def note(self, expected: int, found: int) -> None:
        """Compare the cached tokens of one prompt."""
        if expected == 0 == found:
            return
        differs = abs(expected - found) > self._slack
        self.compared += 1
        self.differed += differs
        self._last.append(differs)
        self._expected += expected
        self._found += found
        self.lasting = self.lasting or sum(self._last) >= LASTING

    def __str__(self) -> str:
        return (
            f"in {self.differed} of {self.compared} admissions compared it found another number of cached"
            f" tokens than foretold, {self._found} in place of {self._expected} in all"
        )


def require(owner: object, paths: Iterable[str], engine: str) -> None:
    """`EngineMismatch` naming the first dotted path under `owner` that this version of `engine` lacks."""
    for path in paths:
        target: Any = owner
        for name in path.split("."):
            if not hasattr(target, name):
                kind = type(owner).__name__
                raise EngineMismatch(f"this {engine}'s {kind} has no {path}; see the compatibility table")
            target = getattr(target, name)
