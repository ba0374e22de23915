"""What was generated: for whom, as it comes, for the tenants' accounts; and how long answers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import ref

SAMPLE: Final = 4
"""Running requests at a time whose answers are measured while no account needs all of them: looking costs."""


class Generated:
    """Charges the tokens of running requests to their tenants, and tells the lengths of answers.

    Until a second tenant has been seen there are no turns, and a sample of the answers is looked at.  Keeps
    no request alive.

    Args:
        charge: `charge(tenant, tokens)`.
        answered: `answered(tokens)`, of an answer that is complete.
        outputs: how many tokens a request has generated so far.
    """

    def __init__(
        self,
        charge: Callable[[str, int], Any],
        answered: Callable[[int], Any],
        outputs: Callable[[Any], int],
    ) -> None:
        self._charge = charge
        self._answered = answered
        self._outputs = outputs
        self._first: str | None = None
        self.several = False
        """Whether more than one tenant has been seen."""
        self._running: dict[int, tuple[ref[Any], str, int]] = {}

    def seen(self, tenant: str) -> None:
        """Somebody of this tenant has arrived.  O(1)."""
        if self._first is None:
            self._first = tenant
        self.several |= tenant != self._first

    def runs(self, request: Any, tenant: str) -> None:
        """A request was admitted.  O(1)."""
        if self.several or len(self._running) < SAMPLE:
            self._running[id(request)] = (ref(request), tenant, self._outputs(request))

    def count(self) -> None:
        """Charge what has come since the last call; once a step.  O(running), O(1) with one tenant."""
        for key, (where, tenant, before) in list(self._running.items()):
            request = where()
            now = before if request is None else self._outputs(request)
            if self.several and now > before:
                self._charge(tenant, now - before)
            if request is None or _has_ended(request):
                del self._running[key]
                self._answered(now)
            else:
                self._running[key] = (where, tenant, now)


def _has_ended(request: Any) -> bool:
    """Both engines' requests tell by a method, of two names."""
    ended = getattr(request, "is_finished", None) or request.finished
    return bool(ended())


def first_text(candidates: Iterable[object]) -> str:
    """The first that is a text with something in it; "" without."""
    return next((text for text in candidates if isinstance(text, str) and text), "")
