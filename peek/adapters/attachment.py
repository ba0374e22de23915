"""What stands beside one scheduler of an engine: its adapter, the shield before it, and its metrics.

Both engines are attached to in the same way: find out why to stand aside, make the adapter, say so in the
log; then every call into the adapter goes through `call`, and once one has failed, `working` puts the
engine's own objects back and stays None.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from peek.adapters.activation import Settings
from peek.adapters.metrics import Counted, EngineMetrics
from peek.adapters.shield import Shield

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
        label: tells the schedulers of one process apart in the metrics.

    Attributes:
        adapter: None where the engine runs as it would without us.
        shield: catches what goes wrong in the adapter.
    """

    def __init__(
        self,
        settings: Settings,
        why_stand_aside: Callable[[], str | None],
        make: Callable[[Shield], A],
        label: str,
    ) -> None:
        self.shield = Shield(settings.strict)
        self.adapter: A | None = None
        self._metrics: EngineMetrics | None = None
        if settings.config.is_stock:
            logger.info("peek: not configured (set PEEK_POLICY); stock order")
            return
        reason = self.shield.call(why_stand_aside)
        if reason is not None:
            logger.warning("peek: stands aside, stock order: %s", reason)
            return
        self.adapter = self.shield.call(make, self.shield)
        if self.adapter is not None:
            logger.info("peek: active, %s", settings.config)
            self._metrics = self.shield.call(EngineMetrics, label)

    @property
    def working(self) -> A | None:
        """The adapter if it works; after a failure the engine gets its own objects back, and this is None."""
        if self.adapter is not None and not self.shield.active:
            self.shield.undo(self.adapter.detach)
            return None
        return self.adapter

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """`function(...)`, a method of the adapter; None if it fails or anything has failed before."""
        return self.shield.call(function, *args, **kwargs)

    def count(self) -> None:
        """Pass the counters on; once a step."""
        if self._metrics is not None and self.adapter is not None:
            self.shield.call(self._metrics.update, self.adapter, self.shield)
