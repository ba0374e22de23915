"""Contains failures, so that no error of `peek` reaches an engine."""

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
    """Log the error that an `except` block handles, with its traceback; re-raise it if `strict`."""
    if strict:
        raise  # noqa: PLE0704
    logger.exception(message, *details)


class Shield:
    """Wraps the calls into one adapter; it logs the first error and makes no call after it.

    Attributes:
        strict: whether errors are raised, for tests.
        active: False after an error.
        fallbacks: errors caught so far, including those of earlier shields.
        then: what follows an error, for the log.
    """

    def __init__(self, strict: bool, fallbacks: int = 0, then: str = "") -> None:
        self.strict = strict
        self.active = True
        self.fallbacks = fallbacks
        self.then = then

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call `function`; return None if it fails, or an earlier call failed."""
        if not self.active:
            return None
        try:
            return function(*args, **kwargs)
        except Exception:
            text = "peek: internal error; this scheduler continues in the engine's own order%s"
            log_or_raise(self.strict, text, self.then)
            self.active = False
            self.fallbacks += 1
            return None


class Quarantine:
    """Waiting requests that cannot be translated; they keep their own places in the queue.

    Engines accept what the planner cannot: image pads wider than a token, the id of a request that waits
    already, a negative token.  `total` counts the requests quarantined so far.
    """

    def __init__(self, strict: bool) -> None:
        self.total = 0
        self._strict = strict
        self._kept: set[object] = set()
        self._told: set[str] = set()

    def __contains__(self, request: object) -> bool:
        """Whether a waiting request is in quarantine."""
        return request in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def accepts(self, request: object, translate: Callable[[], None], request_id: str = "") -> bool:
        """Call `translate`, which gives a request to the planner; quarantine the request if that raises.

        `request` identifies it here, and is its id unless `request_id` is given.  If `translate` raises, it
        must leave planner and adapter unchanged.  Each kind of error is logged once, with only its type and
        the request's id: its message may contain text of a prompt.
        """
        try:
            translate()
            return True
        except Exception as error:
            if self._strict:
                raise
            kind = type(error).__name__
        self.total += 1
        self._kept.add(request)
        if kind not in self._told:
            self._told.add(kind)
            text = "peek: request %r keeps its own place, it cannot be translated (%s); others like it are"
            logger.warning(text + " counted only", request_id or request, kind)
        return False

    def let_go(self, request: object) -> None:
        self._kept.discard(request)


FIRST: Final = 64
"""Number of first admissions that are all compared: a mismatch shows within seconds of a start."""
EVERY: Final = 100
"""One in this many later admissions is compared: an engine may be patched while it runs."""

WINDOW: Final = 16
"""Number of the latest comparisons that count."""
LASTING: Final = 12
"""A mismatch is lasting if this many of them differ.  A few always may: the cache changes after the plan."""


class Agreement:
    """Compares expected cached tokens with what the engine found, for a sample of admissions.  O(1) each.

    An adapter relies on how an engine matches prefixes.  If a version or patch changes that under the same
    names, nothing fails, but plans are made for a cache that does not exist.

    Attributes:
        compared: comparisons with a token expected or found; `differed`: those more than `slack` tokens off.
        lasting: whether `LASTING` of the last `WINDOW` comparisons differed; stays True.
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
        """Count one more admission; return whether it belongs to the sample."""
        self._seen += 1
        return self._seen <= FIRST or self._seen % EVERY == 0

    def note(self, expected: int, found: int) -> None:
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
    """Raise `EngineMismatch` for the first dotted path under `owner` that this version of `engine` lacks."""
    for path in paths:
        target: Any = owner
        for name in path.split("."):
            if not hasattr(target, name):
                kind = type(owner).__name__
                raise EngineMismatch(f"this {engine}'s {kind} has no {path}; see the compatibility table")
            target = getattr(target, name)
