"""What was generated: for whom, as it comes, for the tenants' accounts; and how long answers are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final
from weakref import ref

LOOKS: Final = 16
"""Running requests that are looked at in a step, in turns, while no account needs all of them."""


class Generated:
    """Charges the tokens of running requests to their tenants, and tells the lengths of answers.

    Until a second tenant has been seen there are no turns, and each request is looked at now and then.  Keeps
    no request alive, only what it has generated until it has been looked at once more.

    Args:
        charge: `charge(tenant, tokens)`.
        answered: `answered(tokens, request_id)`, of an answer that is complete.
        outputs: what a request has generated so far; grows in place.
    """

    def __init__(
        self,
        charge: Callable[[str, int], Any],
        answered: Callable[[int, str], Any],
        outputs: Callable[[Any], Sized],
    ) -> None:
        self._charge = charge
        self._answered = answered
        self._outputs = outputs
        self._first: str | None = None
        self.several = False
        """Whether more than one tenant has been seen."""
        self._running: OrderedDict[str, tuple[ref[Any], Sized, str, int]] = OrderedDict()

    def seen(self, tenant: str) -> None:
        """Somebody of this tenant has arrived.  O(1)."""
        if self._first is None:
            self._first = tenant
        self.several |= tenant != self._first

    def runs(self, request: Any, request_id: str, tenant: str) -> None:
        """A request was admitted.  O(1)."""
        answer = self._outputs(request)
        self._running[request_id] = (ref(request), answer, tenant, len(answer))

    def count(self) -> None:
        """Charge what has come since the last call; once a step.  O(running), O(1) with one tenant."""
        for _ in range(len(self._running) if self.several else min(LOOKS, len(self._running))):
            request_id, (where, answer, tenant, before) = self._running.popitem(last=False)
            request, now = where(), len(answer)
            if self.several and now > before:
                self._charge(tenant, now - before)
            if request is None or _has_ended(request):
                self._answered(now, request_id)
            else:
                self._running[request_id] = (where, answer, tenant, now)


def _has_ended(request: Any) -> bool:
    """Both engines' requests tell by a method, of two names."""
    ended = getattr(request, "is_finished", None) or request.finished
    return bool(ended())


def first_text(candidates: Iterable[object]) -> str:
    """The first that is a text with something in it; "" without."""
    return next((text for text in candidates if isinstance(text, str) and text), "")
