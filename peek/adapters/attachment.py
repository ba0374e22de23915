"""What stands beside one scheduler of an engine: its adapter, the shield before it, and its metrics.

Both engines are attached to in the same way: find out why to stand aside, make the adapter, say so in the
log; then every call into the adapter goes through `call`.  Once one has failed, `working` puts the engine's
own objects back and is None, until the back-off is over and the adapter is made anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from peek.adapters.activation import KNOWN_VARIABLES, Settings, misspelled
from peek.adapters.engine_info import EngineInfo
from peek.adapters.metrics import Counted, EngineMetrics
from peek.adapters.shield import BackOff, Shield
from peek.adapters.voice import speak_through
from peek.errors import EngineMismatch

logger = logging.getLogger("peek")

A = TypeVar("A", bound=Counted)
P = ParamSpec("P")
T = TypeVar("T")


class Attachment(Generic[A]):
    """One adapter, if there is a reason to have one.

    Args:
        settings: what was asked for.
        why_stand_aside: why this engine cannot be served, None if it can.
        make: makes the adapter, given the shield for whatever the engine calls back.
        about: which engine it is; for the log and the metrics.

    Attributes:
        adapter: None where the engine runs as it would without us.
        shield: catches what goes wrong in the adapter.
        back_off: when an adapter that failed is made anew.
        aside: why this engine is not served, "" if it is.
        about: which engine it is.
    """

    def __init__(
        self,
        settings: Settings,
        why_stand_aside: Callable[[], str | None],
        make: Callable[[Shield], A],
        about: Callable[[], EngineInfo],
    ) -> None:
        self.settings = settings
        self.back_off = BackOff()
        self.shield = Shield(settings.strict, then=self.back_off.then)
        self.adapter: A | None = None
        self.aside = ""
        self._why_stand_aside = why_stand_aside
        self._make = make
        self._metrics: EngineMetrics | None = None
        self.about = self.shield.call(about) or EngineInfo("engine")
        self.shield = Shield(settings.strict, then=self.back_off.then)  # who it is matters to nobody's order
        if self.about.logger:
            speak_through(self.about.logger)
        warn_of_misspelled()
        if settings.config.is_stock:
            self.aside = "not configured"
            logger.info("peek: not active, not configured (set PEEK_POLICY or PEEK_CONFIG); %s", self.about)
            return
        self._attach()
        if self.adapter is not None:
            self._metrics = self.shield.call(EngineMetrics, str(self.about.dp_rank))

    @property
    def working(self) -> A | None:
        """The adapter if it works; to be read once a call of the engine.

        After a failure the engine gets its own objects back and this is None, until it is time to try again.
        """
        if self.adapter is None:
            if self.aside or not self.back_off.due():
                return None
            logger.warning("peek: tries again after an internal error")
            self._attach()
        elif not self.shield.active:
            self._fall_back()
        elif self.back_off.worked():
            logger.warning("peek: has recovered from an internal error")
        return self.adapter

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """`function(...)`, a method of the adapter; None if it fails or has failed before."""
        return self.shield.call(function, *args, **kwargs)

    def count(self) -> None:
        """Pass the counters on; once a step."""
        if self._metrics is not None and self.adapter is not None:
            self.shield.call(self._metrics.update, self.adapter, self.shield)

    def _attach(self) -> None:
        """A new adapter behind a new shield, so that nothing of one that failed is called again."""
        self.shield = Shield(self.settings.strict, self.shield.fallbacks, self.back_off.then)
        self.adapter = self.shield.call(self._made)
        if self.adapter is not None:
            logger.info("peek: active; %s; %s", self.about, self.settings)
        elif self.aside:
            logger.warning(
                "peek: not active, stands aside: %s; %s; %s", self.aside, self.about, self.settings
            )
        else:
            self.back_off.failed()

    def _made(self) -> A | None:
        try:
            self.aside = self._why_stand_aside() or ""
            return None if self.aside else self._make(self.shield)
        except EngineMismatch as mismatch:  # the same at every attempt
            if self.settings.strict:
                raise
            self.aside = str(mismatch)
            return None

    def _fall_back(self) -> None:
        if self.adapter is not None:
            self.shield.undo(self.adapter.detach)
        self.adapter = None
        self.back_off.failed()


def warn_of_misspelled() -> None:
    """A line for each environment variable that looks like one of ours and is read by nobody."""
    for name, meant in misspelled(os.environ).items():
        logger.warning(
            "peek: nothing reads %s; is %s meant? (known: %s)", name, meant, ", ".join(KNOWN_VARIABLES)
        )
