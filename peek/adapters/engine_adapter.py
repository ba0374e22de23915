"""What the adapters of both engines do alike: one planner, requests handed to it, admissions learned from.

An engine's own adapter derives from `EngineAdapter` and knows the engine's queue, requests and cache.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any, Final
from weakref import ref

from peek.adapters.activation import Settings
from peek.adapters.containment import Agreement, Quarantine, Shield
from peek.planner import Planner
from peek.request import PendingRequest

TESTED: Final = {
    "vllm": ("0.19.1", "0.24.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.9", "0.5.17", "0.5.23"),
}
"""Versions that the tests of the adapters run on."""


@dataclass(frozen=True)
class EngineInfo:
    """The engine, model and rank that an adapter stands beside, for the log and the labels of the metrics.

    Attributes:
        engine, version: "vllm" or "sglang", and which.
        model: the name it is served under, "" if unknown.
        cache: the kind of prefix cache, in words.
        dp_rank, tp_rank: data-parallel and tensor-parallel rank.
        speaks: whether this rank exports metrics: one of each tensor-parallel group does.
        ranks: schedulers that must come to the same order, 0 if unknown.
        agree: makes one mode of what each of several ranks has read, when all of them call it; None if they
            cannot.
        logger: the engine's logger that log lines go through, "" where the root logger shows them.
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


def version_of(*packages: str) -> str:
    """The version of the first of these packages that is installed."""
    for name in packages:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


LOOKS: Final = 16
"""Running requests that are looked at in a step while no account needs all of them: each in its turn."""


class Generated:
    """Charge the tokens of running requests to their tenants, and tell the lengths of complete answers.

    Tenants take no turns before a second one has been seen; till then each request is looked at now and
    then.  Keeps no request alive, only what it has generated until it has been looked at once more.

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
        self._several = False
        self._running: OrderedDict[str, tuple[ref[Any], Sized, str, int]] = OrderedDict()

    def seen(self, tenant: str) -> None:
        """A request of this tenant has arrived.  O(1)."""
        if self._first is None:
            self._first = tenant
        self._several |= tenant != self._first

    def runs(self, request: Any, request_id: str, tenant: str) -> None:
        """A request was admitted.  O(1)."""
        answer = self._outputs(request)
        self._running[request_id] = (ref(request), answer, tenant, len(answer))

    def count(self) -> None:
        """Charge what has come since the last call; once a step.  O(running), O(1) with one tenant."""
        for _ in range(len(self._running) if self._several else min(LOOKS, len(self._running))):
            request_id, (where, answer, tenant, before) = self._running.popitem(last=False)
            request, now = where(), len(answer)
            if self._several and now > before:
                self._charge(tenant, now - before)
            if request is None or _has_ended(request):
                self._answered(now, request_id)
            else:
                self._running[request_id] = (where, answer, tenant, now)


def _has_ended(request: Any) -> bool:
    """Ask the request: vLLM's method is `is_finished`, SGLang's is `finished`."""
    ended = getattr(request, "is_finished", None) or request.finished
    return bool(ended())


def first_text(candidates: Iterable[object]) -> str:
    """The first candidate that is a text with something in it, "" without."""
    return next((text for text in candidates if isinstance(text, str) and text), "")


class EngineAdapter:
    """One planner beside one scheduler of an engine.

    Args:
        settings: what was asked for; not stock.
        shield: stands before whatever the engine calls back.
        outputs: what a request has generated so far; grows in place.
        make: makes the planner out of the arguments that both engines' have in common.

    Attributes:
        planner: the planner; `Attachment` puts an `ObservedPlanner` around it.
        quarantine: requests that could not be translated.
        agreement: whether the engine finds in its cache what the adapter expects.
        reordered: cycles that changed the order of the engine's queue.
        cached_real: prompt tokens of admitted requests that the engine found in its cache.
        protected_evictions: candidates for eviction passed over because a waiting request needs them.
    """

    def __init__(
        self,
        settings: Settings,
        shield: Shield,
        outputs: Callable[[Any], Sized],
        make: Callable[..., Any] = Planner,
    ) -> None:
        # While neither queue nor cache has changed, the last plan stands however long.
        self.planner: Any = make(
            settings.config, timer=time.perf_counter, strict=settings.strict, plan_lasts_s=inf
        )
        self.quarantine = Quarantine(settings.strict)
        self.agreement = Agreement()
        self.reordered = 0
        self.cached_real = 0
        self.protected_evictions = 0
        self._shield = shield
        self._tenants = settings.tenants
        self._generated = Generated(self._charge, self._answered, outputs)

    def detach(self) -> None:
        """Give the engine its own objects back; may be called again."""
        raise NotImplementedError

    def _charge(self, tenant: str, tokens: int) -> None:
        self.planner.generated(tenant, tokens)

    def _answered(self, tokens: int, request_id: str) -> None:
        self.planner.answered(tokens, request_id)

    def _hand_over(self, pending: PendingRequest, held: bool = False) -> None:
        """Give a translated request to the planner."""
        self.planner.add(pending, held)
        self._generated.seen(pending.tenant)

    def _note_cached(self, found: int, expected: Callable[[], int] | None) -> None:
        """Count what the engine found in its cache for an admitted request.

        `expected` is asked only if the admission belongs to the sample; None where nothing was expected.
        """
        self.cached_real += found
        if expected is not None and self.agreement.wants():
            self.agreement.note(expected(), found)

    def _demand(self, node_id: int) -> float:
        """How much the queue needs something cached; counts what is needed."""
        demand = float(self.planner.eviction_score(node_id))
        self.protected_evictions += demand > 0.0
        return demand
