"""What the adapters of both engines have in common: planner, tenants' charges, statements of requests."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import inf, isfinite
from reprlib import repr as shortened
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar
from weakref import ref

from peek.adapters.activation import Settings
from peek.adapters.containment import Agreement, Quarantine, Shield
from peek.adapters.priorities import PriorityPlanners
from peek.planner import LazyPlan, Planner
from peek.request import PendingRequest

T = TypeVar("T")

logger = logging.getLogger("peek")

TESTED: Final = {
    "vllm": ("0.19.1", "0.24.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.9", "0.5.17", "0.5.23"),
}
"""Versions on which the adapters' tests run."""


@dataclass(frozen=True)
class EngineInfo:
    """The engine, model and rank beside which an adapter stands, for the log and the labels of the metrics.

    Attributes:
        engine, version: "vllm" or "sglang", and its version.
        model: the name under which the model is served, "" if unknown.
        cache: the kind of prefix cache, in words.
        dp_rank, tp_rank: data-parallel and tensor-parallel rank.
        speaks: whether this rank exports metrics; one rank of each tensor-parallel group does.
        ranks: number of schedulers that must reach the same order, 0 if unknown.
        agree: each rank calls it with the mode that it has read; returns one for all.  None if they cannot.
        logger: the engine's logger that log lines go through, "" if the root logger shows them.
    """

    engine: str
    version: str = ""
    model: str = ""
    cache: str = "unknown"
    dp_rank: int = 0
    tp_rank: int = 0
    speaks: bool = True
    ranks: int = 1
    agree: Callable[[str], str] | None = field(default=None, compare=False)
    logger: str = ""

    def __str__(self) -> str:
        model = f", model {self.model}" if self.model else ""
        return f"{self.engine} {self.version}{model}, rank {self.dp_rank}.{self.tp_rank}, cache {self.cache}"


def version_of(*packages: str, unknown: str = "of unknown version") -> str:
    """Return the version of the first of these packages that is installed, `unknown` if none is."""
    for name in packages:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return unknown


LOOKS: Final = 16
"""Number of running requests looked at in one step, in turn, while only one tenant has been seen.  Each newly
admitted request adds two, so that requests with short answers do not pile up."""


class Generated:
    """Calls `charge(tenant, tokens)` for generated tokens, and `answered(tokens, request_id)` at the end.

    Charging begins with the second tenant seen.  `outputs` returns the tokens that a request has generated so
    far, in an object that grows in place.  Requests are referenced weakly; the output of a request that is
    gone is kept until the next look.
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
        self._several = False
        self._looks = LOOKS
        self._running: OrderedDict[str, tuple[ref[Any], Sized, str, int]] = OrderedDict()

    def seen(self, tenant: str) -> None:
        """Note that a request of this tenant arrived.  O(1)."""
        if self._first is None:
            self._first = tenant
        self._several |= tenant != self._first

    def runs(self, request: Any, request_id: str, tenant: str) -> None:
        """Note that a request was admitted.  O(1)."""
        answer = self._outputs(request)
        self._running[request_id] = (ref(request), answer, tenant, len(answer))
        self._looks += 2

    def count(self) -> None:
        """Charge the tokens generated since the last call; call it once per step.

        O(running); with one tenant O(requests admitted since the last call).
        """
        for _ in range(len(self._running) if self._several else min(self._looks, len(self._running))):
            request_id, (where, answer, tenant, before) = self._running.popitem(last=False)
            request, now = where(), len(answer)
            if self._several and now > before:
                self._charge(tenant, now - before)
            # `is_finished` is vLLM's, `finished` SGLang's.
            if request is None or (getattr(request, "is_finished", None) or request.finished)():
                self._answered(now, request_id)
            else:
                self._running[request_id] = (where, answer, tenant, now)
        self._looks = LOOKS


def first_text(candidates: Iterable[object]) -> str:
    """Return the first candidate that is a non-empty string, "" if none is."""
    return next((text for text in candidates if isinstance(text, str) and text), "")


LONGEST_SESSION: Final = 256
"""Most characters of a session's name, because names are kept, and any client can send long ones."""

SESSION: Final = "peek_session"
"""The parameter of a request's body that names its session: a text or a number."""

TTFT_TARGET: Final = "peek_ttft_target_s"
"""The parameter that states its target: seconds to the first token, a number or the text of one."""


class Stated(NamedTuple):
    """What a request states: its session ("" for none), and its target in seconds (None for none)."""

    session: str = ""
    ttft_target_s: float | None = None


NOTHING: Final = Stated()


class Statements:
    """Reads what requests state; logs the first unusable value of each name."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, parameters: object, sessions: Iterable[object] = ()) -> Stated:
        """Return what a request states; an unusable value counts as not given.  O(1), raises nothing.

        `parameters` are those of its body; anything but a dict counts as none.  If they name no session, it
        is the first text in `sessions`, the engine's own candidates, that is not too long.
        """
        theirs = first_text(_session(text) for text in sessions if isinstance(text, str))
        if not isinstance(parameters, dict):
            return Stated(theirs)
        text = f"a text of at most {LONGEST_SESSION} characters or a finite number"
        session = self._usable(parameters, SESSION, _session, text)
        target = self._usable(parameters, TTFT_TARGET, _seconds, "a finite number of seconds above 0")
        return Stated(session or theirs, target)

    def _usable(
        self, parameters: dict[Any, Any], name: str, read: Callable[[object], T | None], needed: str
    ) -> T | None:
        value = parameters.get(name)
        usable = None if value is None else read(value)
        if usable is None and value is not None and name not in self._told:
            self._told.add(name)
            text = "peek: a request's %s is %s, which is ignored; need %s; others are ignored in silence"
            logger.warning(text, name, _shown(value), needed)
        return usable


def _session(value: object) -> str | None:
    if isinstance(value, str):
        return value if len(value) <= LONGEST_SESSION else None
    try:
        return str(value) if _is_number(value) and isfinite(value) else None
    except (OverflowError, ValueError):  # an integer with hundreds of digits
        return None


def _seconds(value: object) -> float | None:
    try:
        seconds = float(value) if isinstance(value, str) or _is_number(value) else 0.0
    except (OverflowError, ValueError):
        return None
    return seconds if 0.0 < seconds < inf else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    try:
        return shortened(value)
    except ValueError:  # Python does not print an integer with thousands of digits
        return f"of type {type(value).__name__}"


def found_in(view: Any, namespace: str, key: bytes) -> tuple[int, int]:
    """Return how many symbols of a key a cache holds now, and the tokens that they save.  O(that many)."""
    matched, cursor = view.advance(view.root(namespace), memoryview(key).cast("i"), 0)
    worth = getattr(view, "worth", None)
    return matched, int(matched * view.unit_tokens if worth is None else worth(cursor, matched))


class EngineAdapter:
    """One planner beside one scheduler of an engine; an engine's own adapter derives from it.

    Args:
        settings: settings of the adapter, not stock.
        shield: wraps whatever the engine calls back.
        outputs: see `Generated`.
        priority_of: see `PriorityPlanners`; None if the engine does not schedule by priority.
        options: further arguments of the planner, which only one engine needs.

    Attributes:
        planner: the planner; `Attachment` wraps it in an `ObservedPlanner`.
        reordered: cycles that changed the order of the engine's queue.
        cached_real: prompt tokens of admitted requests that the engine found in its cache.
        protected_evictions: times that an eviction candidate was found to be needed by a waiting request.
    """

    def __init__(
        self,
        settings: Settings,
        shield: Shield,
        outputs: Callable[[Any], Sized],
        priority_of: Callable[[str], int] | None = None,
        **options: Any,
    ) -> None:
        # The last plan stands for as long as neither queue nor cache changes.
        options |= {"timer": time.perf_counter, "strict": settings.strict, "plan_lasts_s": inf}
        make = partial(Planner, settings.config, **options)
        self.planner: Any = make() if priority_of is None else PriorityPlanners(make, priority_of)
        self.quarantine = Quarantine(settings.strict)
        self.agreement = Agreement()
        self.reordered = self.cached_real = self.protected_evictions = 0
        self.statements = Statements()
        self._followed: LazyPlan | None = None
        """The plan that the queue follows; None if requests have arrived or moved since."""
        self._away = False
        """Whether the queue may be in another order than the engine's own."""
        self._shield = shield
        self._tenants = settings.tenants
        self._generated = Generated(
            lambda tenant, tokens: self.planner.generated(tenant, tokens),
            lambda tokens, name: self.planner.answered(tokens, name),
            outputs,
        )

    def detach(self) -> None:
        """Give the engine its own objects back; called once."""
        raise NotImplementedError

    def _hand_over(self, pending: PendingRequest, held: bool = False) -> None:
        self.planner.add(pending, held)
        self._generated.seen(pending.tenant)

    def _admit(self, request: Any, request_id: str, cached: int, expected: Callable[[], int] | None) -> int:
        """Note that the engine admitted a planned request; return the tokens that are charged for it.

        `cached` is the number of tokens that the engine found in its cache.  `expected` returns the number
        expected, and is called for a sample of admissions; None compares nothing.
        """
        pending = self.planner.request(request_id)
        self._generated.runs(request, request_id, pending.tenant)
        self.cached_real += cached
        if expected is not None and self.agreement.wants():
            self.agreement.note(expected(), cached)
        return int(self.planner.remove(request_id, True, int(pending.num_tokens) - cached))

    def _demand(self, node_id: int) -> float:
        """Return the demand for a cached node or block; count it in `protected_evictions` if above 0."""
        demand = float(self.planner.eviction_score(node_id))
        self.protected_evictions += demand > 0.0
        return demand
