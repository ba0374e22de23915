"""The shadow of one attachment: made for as long as it is in shadow, dropped if it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from peek.adapters.shadow import Shadow

logger = logging.getLogger("peek")


class Shadowing(Protocol):
    """An engine's own part of a shadow; its other methods are events that the engine's adapter tells."""

    @property
    def account(self) -> Shadow | None:
        """None before it has seen the engine at work."""
        ...


class Foretold:
    """What shadows foretold, one after the other.

    Args:
        strict: raise what goes wrong in one; otherwise it is logged, and there is none until the next switch.
        make: makes one beside an adapter, or says why it cannot; None makes none.

    Attributes:
        shadow: the one at work, None without.
        why_not: why none is made beside the adapter that is followed, "" if one is or nothing is followed.
    """

    def __init__(self, strict: bool, make: Callable[[Any], Shadowing | str] | None) -> None:
        self.shadow: Any = None
        self.why_not = ""
        self._strict = strict
        self._make = make
        self._before: dict[str, float] = {}
        """Counters of the shadows before this one."""

    def follow(self, adapter: Any) -> None:
        """From now on follow what this adapter stands beside; None: nothing."""
        if self.shadow is not None:
            logger.info("peek: the shadow ends: %s", self.shadow.account or "the engine has not run")
            self._before = self.counters()
            self.shadow = None
        self.why_not = ""
        if adapter is None or self._make is None:
            return
        try:
            made = self._make(adapter)
        except Exception:
            self._give_up()
            return
        if isinstance(made, str):
            self.why_not = made
            logger.warning("peek: the shadow plans, and does not foretell the hits: %s", made)
        else:
            self.shadow = made

    def tell(self, event: str, *args: Any) -> None:
        """Call a method of the shadow."""
        if self.shadow is None:
            return
        try:
            getattr(self.shadow, event)(*args)
        except Exception:
            self._before = self.counters()
            self.shadow = None
            self._give_up()

    def _give_up(self) -> None:
        """Called while an error is handled."""
        if self._strict:
            raise  # noqa: PLE0704
        logger.exception("peek: the shadow failed, and foretells nothing more; nothing else is touched")

    def counters(self) -> dict[str, float]:
        """What to export, all shadows together; nothing before there was one."""
        if self.shadow is None:
            return self._before
        account: Shadow | None = self.shadow.account
        if account is None:
            return self._before
        now = account.counters()
        return {name: value + self._before.get(name, 0) for name, value in now.items()}
