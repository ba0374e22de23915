"""A lab: an engine's real scheduler with `peek` beside it, and the requests that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from support.broken import Broken
from support.stepping import Steps

A, B = list(range(100, 164)), list(range(200, 264))


@dataclass(frozen=True)
class Ask:
    """One request: its prompt, tokens to generate, the tenant that it names, what its body says besides."""

    name: str
    tokens: list[int]
    output: int = 1
    tenant: str | None = None
    says: dict[str, Any] | None = None
    salt: str | None = None
    priority: int = 0


class Played(NamedTuple):
    """The order of admission, what was cached of each then, and the attachment, None of a stock engine."""

    order: list[str]
    cached: dict[str, int]
    beside: Any


class Lab:
    """An engine's lab; what is only declared here is the engine's own.

    Attributes:
        engine, version: as in `TESTED`.
        view: the adapter's attribute through which it looks into the cache.
        pressed: cache and seats in which twelve requests with `answer` tokens to generate are short of room.
        low_first: whether a smaller priority goes first.
        caches_at_once: whether others of the same batch find what one of it will compute.
        stepper: of the engine that was started last.
    """

    engine: str
    version: str
    view: str
    pressed: dict[str, Any]
    answer: int
    low_first: bool
    caches_at_once: bool
    stepper: Steps

    make: Callable[..., Any]
    """A new engine for a label, None for a stock one, tokens of cache, seats, priority, options of `peek`."""
    request: Callable[[Ask], Any]
    """The engine's request; of those that are made, each arrived later than the one before."""
    spoil: Callable[[Any], str]
    """Make a request one that cannot be translated; return what must not show of it in the log."""
    in_order: Callable[[Any], list[Any]]
    """The requests that wait in a stepper's engine, the next one first."""
    plan: Callable[[], list[str]]
    """Have the queue put in order as if seats were free; the names in it."""
    withdraw: Callable[[Any], None]
    """Take a request out of the queue, as an engine does that runs it for a while."""
    come_back: Callable[[Any], None]
    """Put it back where the engine would."""
    misread: Callable[[pytest.MonkeyPatch], None]
    """Have the engine find less in its cache than its names promise."""
    check_stock_objects: Callable[[], None]
    """Nothing of `peek` is left in the engine that was started last."""
    plays: Callable[..., Any]
    """A strategy of plays for this engine."""
    perform: Callable[..., Any]
    """Play one to the end: the play, a label or None, whether results overlap, `each_step`, options."""
    simulate: Callable[[Any, str], tuple[float, Any]]
    """Play a workload in virtual time in a mode: the hit, and the account of the shadow if there is one."""
    account_at_the_end: Callable[[Any], Any]
    """Of a stepper's shadow that follows nobody any more; None if it never saw anybody."""

    def planners(self, adapter: Any) -> list[Any]:
        """The adapter's planner, or those of all priorities."""
        planner = getattr(adapter.planner, "observed", adapter.planner)
        return planner._all() if hasattr(planner, "_all") else [planner]

    # -- by hand -----------------------------------------------------------------------------------

    @property
    def beside(self) -> Any:
        return self.stepper.beside

    @property
    def adapter(self) -> Any:
        return self.beside.adapter

    def start(
        self,
        label: str | None = "peek",
        *,
        tokens: int = 8000,
        seats: int = 1,
        priority: bool = False,
        strict: bool = True,
        **options: Any,
    ) -> Steps:
        self.stepper = self.make(label, tokens, seats, priority, {"strict": strict, **options})
        return self.stepper

    def add(self, *asks: Ask) -> list[Any]:
        requests = [self.request(ask) for ask in asks]
        for request in requests:
            self.stepper.add(request)
        return requests

    def start_busy(self, **more: Any) -> None:
        """Start an engine whose only seat is taken."""
        self.start(**more)
        self.add(Ask("running", [3] * 40, 60, priority=-9 if self.low_first else 9))
        self.stepper.step()

    def sabotage(self, method: str, after: int) -> None:
        """From its `after`-th call on, a method of planner or view fails."""
        name = "planner" if hasattr(self.adapter.planner, method) else self.view
        setattr(self.adapter, name, Broken(getattr(self.adapter, name), method, after))

    def play(
        self,
        asks: list[Ask],
        label: str | None = "peek",
        *,
        warm: Iterable[Ask] = (),
        tokens: int = 1600,
        seats: int = 1,
        **options: Any,
    ) -> Played:
        """All of `asks` come at once, when `warm` have been served; nothing is left when this returns."""
        stepper = self.start(label, tokens=tokens, seats=seats, **options)
        self.add(*warm)
        stepper.run_out()
        before = len(stepper.admissions)
        self.add(*asks)
        stepper.run_out()
        stepper.check_nothing_is_left()
        return self._played(before)

    def busy(self, label: str | None, method: str = "", after: int = 0, **options: Any) -> Played:
        """Sharing, pressure and an abort of `r11`, of `r0` to `r11`: every call into `peek` happens.

        Args:
            method: of planner or view, that fails after so many calls.
        """
        stepper = self.start(label, **self.pressed, **options)
        if method:
            self.sabotage(method, after)
        self.add(*[Ask(f"r{i}", (A, B)[i % 2] + [300 + i] * 20, self.answer) for i in range(12)])
        for _ in range(3):
            stepper.step()
        stepper.abort("r11")
        stepper.run_out()
        assert all(record.finished or record.aborted for record in stepper.records.values())
        return self._played(0)

    def _played(self, first: int) -> Played:
        admissions = self.stepper.admissions[first:]
        found = {each.rid: each.cached for each in admissions if not each.again}
        return Played([each.rid for each in admissions], found, self.beside)
