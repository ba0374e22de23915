"""Requests that cannot be translated: they keep their own place in the queue, and everybody else is planned.

An engine takes in requests that an adapter does not understand: image pads wider than a token, an id that is
waiting already, a negative token.  One of them must not cost the others their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("peek")


class Quarantine:
    """Who is kept apart, and how many there have been.

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
        """Run `translate`, which hands a request to the planner; False, and kept apart, if it raises.

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
