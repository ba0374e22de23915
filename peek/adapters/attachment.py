"""What stands beside one scheduler of an engine: its adapter, the shield before it, and its metrics.

Both engines are attached to in the same way: find out why to stand aside, make the adapter, say so in the
log; then every call into the adapter goes through `call`.  Once one has failed, `working` puts the engine's
own objects back and is None, until the back-off is over and the adapter is made anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from peek.adapters.activation import KNOWN_VARIABLES, Settings, misspelled
from peek.adapters.agreement import Agreement
from peek.adapters.engine_info import TESTED, EngineInfo
from peek.adapters.foretold import Foretold, Shadowing
from peek.adapters.metrics import Counted, EngineMetrics
from peek.adapters.observed import Observations, ObservedPlanner
from peek.adapters.shield import BackOff, Shield
from peek.adapters.switch import Switch
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
        make_shadow: makes what foretells the gain while in shadow, or says why it cannot; None without one.

    Attributes:
        adapter: None where the engine runs as it would without us.
        shield: catches what goes wrong in the adapter.
        back_off: when an adapter that failed is made anew.
        aside: why this engine is not served, "" if it is.
        about: which engine it is.
        seen: what was observed of its planners.
        mode: "on", "shadow" or "off"; see `peek.adapters.switch`.
    """

    def __init__(
        self,
        settings: Settings,
        why_stand_aside: Callable[[], str | None],
        make: Callable[[Shield], A],
        about: Callable[[], EngineInfo],
        make_shadow: Callable[[A], Shadowing | str] | None = None,
    ) -> None:
        self.settings = settings
        self.back_off = BackOff()
        self.shield = Shield(settings.strict, then=self.back_off.then)
        self.adapter: A | None = None
        self.aside = ""
        self._why_stand_aside = why_stand_aside
        self._make = make
        self.seen = Observations(settings.explain)
        self.mode = settings.mode
        self._switch: Switch | None = None
        self._metrics: EngineMetrics | None = None
        self.about = self.shield.call(about) or EngineInfo("engine", ranks=0)
        self.foretold = Foretold(settings.strict, make_shadow if self.about.speaks else None)
        self.shield = Shield(settings.strict, then=self.back_off.then)  # who it is matters to nobody's order
        if self.about.logger:
            speak_through(self.about.logger)
        warn_of_misspelled()
        if settings.config.is_stock:
            off = settings.mode == "off"
            self.aside = "off" if off else "not configured"
            why = "switched off" if off else "not configured (set PEEK_POLICY or PEEK_CONFIG)"
            logger.info("peek: not active, %s; %s", why, self.about)
            return
        try:
            self._metrics = EngineMetrics(self.about, settings, self.seen)
        except Exception:
            self._without_metrics()
        self._switch = self._control()
        self.mode = self._asked()
        if self.mode == "off":
            logger.warning("peek: not active, switched off; %s; %s", self.about, settings)
            self.count()
        else:
            self._attach()

    @property
    def working(self) -> A | None:
        """The adapter if it works; to be read once a call of the engine.

        After a failure the engine gets its own objects back and this is None, until it is time to try again.
        """
        mode = self._asked()
        if mode != self.mode:
            self._turn(mode)
        if self.adapter is None:
            if self.aside or self.mode == "off" or not self.back_off.due():
                return None
            logger.warning("peek: tries again after an internal error")
            self._attach()
        elif not self.shield.active:
            self._fall_back()
        elif self._disagrees():
            self._give_up()
        elif self.back_off.worked():
            logger.warning("peek: has recovered from an internal error")
        return self.adapter

    def _disagrees(self) -> bool:
        agreement: Agreement | None = getattr(self.adapter, "agreement", None)
        return agreement is not None and agreement.lasting

    def _give_up(self) -> None:
        """The engine's cache is not what the adapter takes it for: stock order, for good."""
        adapter, about = self.adapter, self.about
        assert adapter is not None
        tested = ", ".join(TESTED.get(about.engine, ())) or "no version"
        self.aside = (
            f"{about.engine} does not match prefixes as peek expects ({cast(Any, adapter).agreement})"
        )
        logger.warning("peek: stands aside, stock order: %s; tested on %s; %s", self.aside, tested, about)
        self.shield.undo(adapter.detach)
        self.adapter = None
        self.foretold.follow(None)
        self.count()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """`function(...)`, a method of the adapter; None if it fails or has failed before."""
        return self.shield.call(function, *args, **kwargs)

    def observe(self, event: str, *args: Any) -> None:
        """Tell the shadow, if there is one, of something the engine does: the name of a method of it."""
        self.foretold.tell(event, *args)

    def count(self) -> None:
        """Pass the counters on; once a step."""
        if self._metrics is None:
            return
        attempts = {
            "peek_fallbacks": self.shield.fallbacks,
            "peek_shadow_reordered_cycles": self.seen.shadow_reordered,
            **self.back_off.counters(),
            **self.foretold.counters(),
        }
        try:
            self._metrics.update(self.adapter, self.shield, self.state, self.active, attempts)
        except Exception:
            self._without_metrics()

    def _without_metrics(self) -> None:
        """Metrics that fail are no reason to stop planning.  Called while an error is handled."""
        if self.settings.strict:
            raise  # noqa: PLE0704
        logger.exception("peek: metrics are no longer passed on")
        self._metrics = None

    @property
    def active(self) -> bool:
        """Whether the queue is in the planner's order."""
        return self.adapter is not None and self.shield.active and self.mode == "on"

    @property
    def state(self) -> str:
        """Why it is active or not, in a few words."""
        if self.aside or self.mode == "off":
            return self.aside or "off"
        if self.adapter is None or not self.shield.active:
            return "internal error"
        blind = self.foretold.why_not
        return f"{self.mode}, foretells no hits: {blind}" if blind else self.mode

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Why a request stands where it stands, or stood when it was admitted (option `explain`).

        Its place in the plan and by arrival (first is 1), what is cached of it, its cluster, its lane, how
        long it waited, and the reason in words; no prompt.  None if nothing is known of it.  For debugging:
        O(waiting).
        """
        if self.adapter is None:
            return self.seen.decisions.of(request_id)
        return cast(ObservedPlanner, self.adapter.planner).explain(request_id)

    def _control(self) -> Switch | None:
        path, about = self.settings.control_file, self.about
        if path and about.ranks != 1 and about.agree is None:
            logger.warning(
                "peek: control_file is not looked at: %s ranks might not see it at once",
                about.ranks or "several",
            )
            return None
        return Switch(self.settings.mode, path, self.settings.control_every, about.agree) if path else None

    def _asked(self) -> str:
        """The mode that the control file asks for; one more call."""
        if self._switch is None:
            return self.mode
        try:
            return self._switch.look()
        except Exception:
            if self.settings.strict:
                raise
            logger.exception("peek: control_file is no longer looked at")
            self._switch = None
            return self.mode

    def _turn(self, mode: str) -> None:
        """Another mode from this call on."""
        logger.warning("peek: switched from %s to %s", self.mode, mode)
        self.mode = mode
        if self.adapter is None:
            if mode != "off" and not self.aside:
                self._attach()
            return
        if mode == "off":
            self.shield.undo(self.adapter.detach)
            self.adapter = None
        else:
            cast(Any, self.adapter.planner).shadow = mode == "shadow"
        self.foretold.follow(self.adapter if mode == "shadow" else None)
        self.count()

    def _attach(self) -> None:
        """A new adapter behind a new shield, so that nothing of one that failed is called again."""
        self.shield = Shield(self.settings.strict, self.shield.fallbacks, self.back_off.then)
        self.adapter = self.shield.call(self._made)
        if self.adapter is not None:
            observed: Any = ObservedPlanner(self.adapter.planner, self.seen)
            observed.shadow = self.mode == "shadow"
            self.adapter.planner = observed
            self.foretold.follow(self.adapter if self.mode == "shadow" else None)
            how = "in shadow: plans, and leaves the order alone" if self.mode == "shadow" else "active"
            logger.info("peek: %s; %s; %s", how, self.about, self.settings)
        elif self.aside:
            logger.warning(
                "peek: stands aside, stock order: %s; %s; %s", self.aside, self.about, self.settings
            )
        else:
            self.back_off.failed()
        self.count()

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
        self.foretold.follow(None)
        self.back_off.failed()
        self.count()


def warn_of_misspelled() -> None:
    """A line for each environment variable that looks like one of ours and is read by nobody."""
    for name, meant in misspelled(os.environ).items():
        logger.warning(
            "peek: nothing reads %s; is %s meant? (known: %s)", name, meant, ", ".join(KNOWN_VARIABLES)
        )
