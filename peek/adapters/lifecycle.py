"""The life of an engine's adapter: it is made, observed, switched, removed after an error, and made anew.

An `Attachment` holds the adapter of one scheduler.  An engine reads `working` once in each of its calls, and
wraps every call into the adapter in `call`.  After an error the engine gets its own objects back, and a new
adapter is made when the back-off is over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Generic, ParamSpec, TypeVar

from peek.adapters.activation import KNOWN_VARIABLES, MODES, Settings, misspelled
from peek.adapters.containment import Shield, log_or_raise
from peek.adapters.engine_adapter import TESTED, EngineAdapter, EngineInfo
from peek.adapters.metrics import EngineMetrics
from peek.adapters.observed import Announcer, Observations, ObservedPlanner
from peek.adapters.recording import Recording
from peek.adapters.shadow import ShadowLifecycle
from peek.errors import EngineMismatch
from peek.planner.plan import Upcoming

logger = logging.getLogger("peek")

A = TypeVar("A", bound=EngineAdapter)
P = ParamSpec("P")
T = TypeVar("T")

FIRST_WAIT: Final = 1000
"""Calls of the engine before the first new attempt: seconds to minutes, in which a fault may pass."""

LONGEST_WAIT: Final = 64_000
"""Most calls of the engine between two attempts; each failure costs a traceback in the log."""

TRACING: Final = {"": None, "trace": True, "no-trace": False}
"""What may follow the mode in a control file."""


class BackOff:
    """When to try again after an error, counted in calls of the engine so that all ranks agree.

    `wait` is the number of calls from the next error to the attempt after it.  It doubles with each error, up
    to `LONGEST_WAIT`, and halves each time that an attempt has worked for `LONGEST_WAIT` calls.  So in the
    long run any error comes about once in `LONGEST_WAIT` calls.  An attempt that has worked for `FIRST_WAIT`
    calls is a recovery.
    """

    def __init__(self) -> None:
        self.wait = FIRST_WAIT
        self.retries = 0
        self.recoveries = 0
        self._left = 0
        self._worked = 0
        self._recovers = False

    @property
    def then(self) -> str:
        """What follows the next error, in words, for the log."""
        return f" and tries again after {self.wait} calls"

    def failed(self) -> None:
        """Note an error and begin the wait."""
        self._left, self._worked, self._recovers = self.wait, 0, False
        self.wait = min(2 * self.wait, LONGEST_WAIT)

    def due(self) -> bool:
        """Count one more call of an engine in its own order; return True when it is time to try again."""
        self._left -= 1
        if self._left > 0:
            return False
        self.retries += 1
        self._recovers = True
        return True

    def worked(self) -> bool:
        """Count one more call without an error; return True when that makes the attempt a recovery."""
        self._worked += 1
        if self._worked % LONGEST_WAIT == 0:
            self.wait = max(self.wait // 2, FIRST_WAIT)
        recovers = self._recovers and self._worked == FIRST_WAIT
        self.recoveries += recovers
        return recovers


class Switch:
    """The mode in force, as a control file says; without one, `start`.

    The file is looked at every `every` calls, at the cost of one `stat`; it may appear and disappear.
    `agree` returns one mode for what several ranks have read; all ranks call it at each look.

    Attributes:
        mode: as of the last look; see `peek.adapters.activation.MODES`.
        traces: whether the file asks for a trace, None if it does not say.
    """

    def __init__(self, start: str, path: str, every: int, agree: Callable[[str], str] | None = None) -> None:
        self.mode = start
        self._start = start
        self._path = Path(path)
        self.traces: bool | None = None
        self._every = every
        self._agree = agree
        self._word = start
        self._left = 0
        self._seen: object = None

    def look(self) -> str:
        """Count one more call; return the mode in force.  A file without a valid mode is only logged."""
        self._left -= 1
        if self._left > 0:
            return self.mode
        self._left = self._every
        self._look_at_file()
        self.mode = self._word if self._agree is None else self._agree(self._word)
        return self.mode

    def _look_at_file(self) -> None:
        mark: object = None
        try:
            now = self._path.stat()
            mark = (now.st_mtime_ns, now.st_ctime_ns, now.st_mode, now.st_size, now.st_ino)
            if mark == self._seen:
                return
            if not S_ISREG(now.st_mode):  # reading a pipe would block the scheduler
                self._refuse(mark, "is no ordinary file")
                return
            with self._path.open("rb") as file:
                word = file.read(64).decode("utf-8", "replace").strip().lower()
        except OSError as error:
            if mark is None and isinstance(error, FileNotFoundError):
                self._seen, self._word, self.traces = None, self._start, None
            else:
                self._refuse(mark or type(error).__name__, "cannot be read (%s)", error)
            return
        mode, _, trace = word.partition(" ")
        if mode in MODES and trace.strip() in TRACING:
            self._seen, self._word, self.traces = mark, mode, TRACING[trace.strip()]
        else:
            self._refuse(mark, "says %r; valid: on, off, shadow; behind it trace, no-trace", word)

    def _refuse(self, mark: object, what: str, *details: object) -> None:
        """Log once what is wrong with the file in its present state."""
        if self._seen != mark:
            self._seen = mark
            logger.warning(f"peek: control file %s {what}; still %s", self._path, *details, self._word)


class LogForwarder(logging.Handler):
    """Passes records to a logger of the engine, unless the root logger has handlers that show them."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = logging.getLogger(target)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers and self.target.isEnabledFor(record.levelno):
            self.target.handle(record)


def forward_log(engine_logger: str) -> None:
    """Show `peek`'s log lines where those of `engine_logger` go, from its level up.  Works once.

    SGLang gives the root logger a handler, which also shows these; vLLM gives one to its own logger only.
    """
    if any(isinstance(handler, LogForwarder) for handler in logger.handlers):
        return
    forwarder = LogForwarder(f"{engine_logger}.peek")
    logger.addHandler(forwarder)
    if logger.level == logging.NOTSET:
        logger.setLevel(forwarder.target.getEffectiveLevel())


def warn_of_misspelled() -> None:
    """Log each environment variable that begins with `PEEK_` and that nothing reads."""
    known = ", ".join(KNOWN_VARIABLES)
    for name, meant in misspelled(os.environ).items():
        logger.warning("peek: nothing reads %s; is %s meant? (known: %s)", name, meant, known)


class Attachment(Generic[A]):
    """One adapter, if there is a reason to have one.

    Args:
        settings: settings of the adapter.
        why_stand_aside: returns why this engine cannot be served, None if it can.
        make: makes the adapter, given the shield for whatever the engine calls back.
        about: returns which engine it is.
        make_shadow: makes the engine's part of a shadow, or returns why it cannot; None for no shadow.

    Attributes:
        adapter: None while the engine runs as it would without `peek`.
        shield: catches errors of the adapter.
        aside: why this engine is not served, "" if it is.
        seen: what was observed of its planners.
        foretold: the shadows; one runs while the mode is "shadow".
        recording: the trace; each queue has its own.  Falsy while none is written.
    """

    def __init__(
        self,
        settings: Settings,
        why_stand_aside: Callable[[], str | None],
        make: Callable[[Shield], A],
        about: Callable[[], EngineInfo],
        make_shadow: Callable[[A], Any] | None = None,
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
        self._metrics: EngineMetrics | None = None
        # An engine that cannot be described is served all the same, so this shield is not the adapter's.
        described = Shield(settings.strict, then=self.back_off.then).call(about)
        self.about = described or EngineInfo("engine", ranks=0)
        self.foretold = ShadowLifecycle(settings.strict, make_shadow if self.about.speaks else None)
        if self.about.logger:
            forward_log(self.about.logger)
        warn_of_misspelled()
        self.recording = self._recording()
        # Without a policy it switches only the trace, which one rank writes; but all ranks look.
        self._switch = self._control() if settings.trace_file or not settings.config.is_stock else None
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
        self.mode = self._asked()
        if self.mode == "off":
            logger.warning("peek: not active, switched off; %s; %s", self.about, settings)
            self.count(True)
        else:
            self._attach()

    def _recording(self) -> Recording:
        name, rank = self.settings.trace_file if self.about.speaks else "", self.about.dp_rank
        trace_file = f"{name}.rank{rank}" if name and rank else name
        return Recording(trace_file, self.settings.trace_mib, self.settings.strict)

    @property
    def working(self) -> A | None:
        """The adapter if it works, else None; read it once in each call of the engine."""
        mode = self._asked()
        if mode != self.mode:
            self._turn(mode)
        if self.adapter is None:
            if self.aside or self.mode == "off" or not self.back_off.due():
                return None
            logger.warning("peek: tries again after an internal error")
            self._attach()
        elif not self.shield.active:
            self.back_off.failed()
            self._take_away()
        elif self.adapter.agreement.lasting:  # for good: the engine's cache does not behave as expected
            about = self.about
            tested = ", ".join(TESTED.get(about.engine, ())) or "no version"
            self.aside = f"{about.engine} does not match prefixes as peek expects ({self.adapter.agreement})"
            logger.warning("peek: stands aside, stock order: %s; tested on %s; %s", self.aside, tested, about)
            self._take_away()
        else:
            if self.back_off.worked():
                logger.warning("peek: has recovered from an internal error")
            self.shield.then = self.back_off.then
        return self.adapter

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call `function`, a method of the adapter; return None if it fails or an earlier call failed."""
        return self.shield.call(function, *args, **kwargs)

    def count(self, at_once: bool = False) -> None:
        """Pass the counters on to the metrics if that is due; called once per step."""
        metrics = self._metrics
        if metrics is None or metrics.files is None:
            return
        try:
            if self.shield.active and not at_once and not metrics.due(self.adapter):
                return
            own = {
                "peek_fallbacks": self.shield.fallbacks,
                "peek_shadow_reordered_cycles": self.seen.shadow_reordered,
                "peek_retries": self.back_off.retries,
                "peek_recoveries": self.back_off.recoveries,
                **self.foretold.counters(),
            }
            metrics.update(self.adapter, self.state, self.active, own)
        except Exception:
            self._without_metrics()

    def _without_metrics(self) -> None:
        """Go on planning without metrics.  Call it in an `except` block."""
        log_or_raise(self.settings.strict, "peek: metrics are no longer passed on")
        self._metrics = None

    @property
    def active(self) -> bool:
        """Whether the queue is in the planner's order."""
        return self.adapter is not None and self.shield.active and self.mode == "on"

    @property
    def state(self) -> str:
        """The mode, or why `peek` is not active, in a few words."""
        if self.aside or self.mode == "off":
            return self.aside or "off"
        if self.adapter is None or not self.shield.active:
            return "internal error"
        why_not = self.foretold.why_not
        return f"{self.mode}, foretells no hits: {why_not}" if why_not else self.mode

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Return why a request has its place, or had it when it was admitted (option `explain`); see `facts`.

        None if nothing is known of it.  The answer shows nothing of the prompt.  For debugging: O(waiting).
        """
        explain = self.seen.decisions.of if self.adapter is None else self.adapter.planner.explain
        explained: dict[str, Any] | None = explain(request_id)
        return explained

    def announce(self, k: int, tell: Callable[[list[Upcoming], list[str]], object]) -> None:
        """With each new plan, call `tell` in the engine's own thread if the next requests have changed.

        It is for prefetching; see `Announcer`.  These include requests that the engine admits at once.  Only
        the last listener is called, and none in shadow mode.  If `tell` raises, the error is logged and
        `tell` is not called again.  O(k) per plan.
        """
        self.seen.announcer = Announcer(k, tell)

    # -- the control file --------------------------------------------------------------------------

    def _control(self) -> Switch | None:
        path, about = self.settings.control_file, self.about
        if path and about.ranks != 1 and about.agree is None:
            text = "peek: control_file is not looked at: %s ranks might not see it at once"
            logger.warning(text, about.ranks or "several")
            return None
        return Switch(self.settings.mode, path, self.settings.control_every, about.agree) if path else None

    def _asked(self) -> str:
        """Count one more call; return the mode that the control file asks for."""
        if self._switch is None:
            return self.mode
        try:
            mode = self._switch.look()
            self.recording.wanted = self._switch.traces is not False
            return mode if not self.settings.config.is_stock else self.mode
        except Exception:
            log_or_raise(self.settings.strict, "peek: control_file is no longer looked at")
            self._switch = None
            return self.mode

    def _turn(self, mode: str) -> None:
        logger.warning("peek: switched from %s to %s", self.mode, mode)
        self.mode = mode
        if self.adapter is None and mode != "off" and not self.aside:
            self._attach()
        elif self.adapter is not None and mode == "off":
            self._take_away()
        else:
            if self.adapter is not None:
                self._set_shadow(self.adapter)
            self.count(True)

    # -- the adapter -------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Make a new adapter and shield, so that nothing of a failed adapter is called again."""
        self.shield = Shield(self.settings.strict, self.shield.fallbacks, self.back_off.then)
        adapter = self.adapter = self.shield.call(self._made)
        if adapter is not None:
            adapter.statements = self.recording.statements
            adapter.planner = ObservedPlanner(adapter.planner, self.seen)
            self._set_shadow(adapter)
            how = "in shadow: plans, and leaves the order alone" if self.mode == "shadow" else "active"
            logger.info("peek: %s; %s; %s", how, self.about, self.settings)
        elif self.aside:
            text = "peek: stands aside, stock order: %s; %s; %s"
            logger.warning(text, self.aside, self.about, self.settings)
        else:
            self.back_off.failed()
        self.count(True)

    def _made(self) -> A | None:
        try:
            self.aside = self._why_stand_aside() or ""
            return None if self.aside else self._make(self.shield)
        except EngineMismatch as mismatch:  # it would be the same at every attempt
            if self.settings.strict:
                raise
            self.aside = str(mismatch)
            return None

    def _set_shadow(self, adapter: A) -> None:
        shadow = adapter.planner.shadow = self.mode == "shadow"
        self.foretold.follow(adapter if shadow else None)

    def _take_away(self) -> None:
        """Give the engine its own objects back."""
        self.count(True)  # what the adapter has counted since
        try:
            if self.adapter is not None:
                self.adapter.detach()
        except Exception:
            log_or_raise(self.settings.strict, "peek: could not put back everything of the engine's own")
        self.adapter = None
        self.foretold.follow(None)
        self.count(True)
